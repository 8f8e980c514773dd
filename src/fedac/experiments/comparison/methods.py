"""Which methods are compared unless others are asked for."""

from __future__ import annotations

from fedac.algorithms import get
from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.labels import label_of

# Minibatch SGD, what others use, and compositions that have won somewhere (docs/benchmark.md).
DEFAULT_METHODS = (
    "mb-sgd",
    "mb-ac-sgd",
    "fedavg",
    "fedavgm",
    "diloco",
    "outer-nesterov",
    "fedadam",
    "scaffold",
    "fedavg+cv+nesterov(1,0.9)",
    "fedac-i",
    "fedac-ii",
    "fedac-i+local",
    "fedac-i+local+nesterov(1,0.3)",
    "fedac-i+cv",
    "fedac-i+cv+nesterov(1,0.3)",
)


# SlowMo is not in the list: at a constant step size it is FedAvgM.


def label(method: str) -> str:
    """Return what a table calls a method, or a baseline.

    Examples
    --------
    >>> label("fedac-i"), label("lbfgs")
    ('FedAc-I', 'L-BFGS')
    """
    return BASELINES.get(method) or label_of(method)


def default_methods(*, everybody: bool) -> tuple[str, ...]:
    """Return the methods to compare, where all clients take part in every round or only some.

    Examples
    --------
    >>> "scaffnew" in default_methods(everybody=False)
    False
    """
    methods = (*DEFAULT_METHODS, "scaffnew")
    some = tuple(name for name in methods if everybody or not get(name).everybody)
    return some + tuple(BASELINES)
