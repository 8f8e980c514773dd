# SPDX-License-Identifier: Apache-2.0
"""fedac: Federated Accelerated SGD, for training with few communication rounds.

Examples
--------
>>> import fedac
>>> data = fedac.load("synthetic")
>>> F = fedac.LogisticRegression(data.X, data.y, l2=1e-3)
>>> result = fedac.simulate(F, "fedac-i", M=64, K=16, T=128, eta=0.5, seed=1)
>>> result.best.status
'ok'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedac.algorithms import Algorithm, compose, fedac
    from fedac.data import Clients, Dataset, load, split
    from fedac.experiments.comparison import Comparison, compare
    from fedac.federation.link import Link
    from fedac.federation.schedule import Decay
    from fedac.objectives import (
        Augmented,
        HuberRegression,
        LeastSquares,
        LogisticRegression,
        NoisyQuadratic,
        PoissonRegression,
        SoftmaxRegression,
        SquaredHinge,
        optimum,
    )
    from fedac.objectives.network import Network
    from fedac.simulation import Result, Run, Schedule
    from fedac.simulation.simulator import simulate

__version__ = "0.3.0"

__all__ = [
    "Algorithm",
    "Augmented",
    "Clients",
    "Comparison",
    "Dataset",
    "Decay",
    "HuberRegression",
    "LeastSquares",
    "Link",
    "LogisticRegression",
    "Network",
    "NoisyQuadratic",
    "PoissonRegression",
    "Result",
    "Run",
    "Schedule",
    "SoftmaxRegression",
    "SquaredHinge",
    "compare",
    "compose",
    "fedac",
    "load",
    "optimum",
    "simulate",
    "split",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``fedac --help`` must not wait for SciPy."""
    if name == "models":  # a module, as in fedac.models.mlp
        return import_module("fedac.models")
    if name not in __all__:
        raise AttributeError(f"module 'fedac' has no attribute '{name}'")
    if name == "Network":  # the only public name that imports PyTorch
        return import_module("fedac.objectives.network").Network
    # Light packages first: importing a `Decay` must not import SciPy.
    homes = (
        "algorithms", "federation.schedule", "federation.link", "data", "objectives", "simulation",
        "experiments.comparison",
    )  # fmt: skip
    modules = (import_module(f"fedac.{home}") for home in homes)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def __dir__() -> list[str]:
    return __all__
