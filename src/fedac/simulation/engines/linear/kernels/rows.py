# SPDX-License-Identifier: Apache-2.0
"""Access to the entries of rows: sparse ones, sparse ones of ones, and dense ones."""

import numpy as np

from fedac.simulation.engines.linear.kernels.interface import by_type


@by_type
def entries(data, i):
    """Return where the entries of a row begin and end."""
    if len(data) == 1:
        return lambda data, i: (np.uint64(0), np.uint64(data[0].shape[1]))
    return lambda data, i: (np.uint64(data[0][i]), np.uint64(data[0][i + np.uint64(1)]))


@by_type
def column(data, k):
    """Return the coordinate of an entry."""
    return (lambda data, k: k) if len(data) == 1 else (lambda data, k: np.uint64(data[1][k]))


@by_type
def entry(data, i, k):
    """Return the number of an entry of row i."""
    if len(data) == 1:
        return lambda data, i, k: data[0][i, k]
    return (lambda data, i, k: 1.0) if len(data) == 2 else (lambda data, i, k: data[2][k])
