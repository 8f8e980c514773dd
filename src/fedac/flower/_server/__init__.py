# SPDX-License-Identifier: Apache-2.0
"""The server of a federation: strategy, rounds, replies, checkpoints."""
