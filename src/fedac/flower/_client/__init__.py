# SPDX-License-Identifier: Apache-2.0
"""The client of a federation: its round, its memory, its local steps."""
