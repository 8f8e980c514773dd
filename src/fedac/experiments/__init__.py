# SPDX-License-Identifier: Apache-2.0
"""Experiments: sweeps and their store, comparisons, reports and the paper's figures."""
