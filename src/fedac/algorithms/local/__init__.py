# SPDX-License-Identifier: Apache-2.0
"""Local rules: the steps of a client between two synchronizations."""
