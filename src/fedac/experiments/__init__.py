"""Experiments: sweeps and their store, comparisons, reports and the paper's figures."""
