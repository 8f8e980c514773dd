# SPDX-License-Identifier: Apache-2.0
"""The algorithms of the paper by name, and all others as compositions."""

from __future__ import annotations

from fedac.algorithms.algorithm import Algorithm, ClientWork, RoundInfo, State, Vector
from fedac.algorithms.catalog import fedac
from fedac.algorithms.local.fedac import FEDAC_I, FEDAC_II, FEDAC_VANILLA
from fedac.algorithms.local.fedavg import FEDAVG, FEDAVG_WEIGHTED
from fedac.algorithms.minibatch import MB_AC_SGD, MB_SGD
from fedac.algorithms.parsing import ALGORITHMS, compose, expand, get, is_known, split_names

__all__ = [
    "ALGORITHMS",
    "FEDAC_I",
    "FEDAC_II",
    "FEDAC_VANILLA",
    "FEDAVG",
    "FEDAVG_WEIGHTED",
    "MB_AC_SGD",
    "MB_SGD",
    "Algorithm",
    "ClientWork",
    "RoundInfo",
    "State",
    "Vector",
    "compose",
    "expand",
    "fedac",
    "get",
    "is_known",
    "split_names",
]
