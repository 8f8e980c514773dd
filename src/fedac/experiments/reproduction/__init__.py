# SPDX-License-Identifier: Apache-2.0
"""Reproduction of the paper: its figures, its authors' numbers, the demo and the instability."""
