"""What figures and pages call algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from fedac.algorithms import split_names
from fedac.errors import InputError
from fedac.experiments.plugins import find_algorithm


def labels_of(names: Sequence[str]) -> list[str]:
    """Return the labels of algorithms; no two are the same.

    Examples
    --------
    >>> labels_of(["fedac-i+step(2)", "mine"])
    ['FedAc-I + step(2)', 'mine']
    """
    found = [label_of(name) for name in names]
    return [
        f"{label} ({name})" if found.count(label) > 1 else label
        for name, label in zip(names, found, strict=True)
    ]


def label_of(name: str) -> str:
    """Return the label of an algorithm, with what a store added to its name.

    Examples
    --------
    >>> label_of("fedavg, mu=0.1"), label_of("fedac-i+step(2)"), label_of("mine")
    ('FedAvg, mu=0.1', 'FedAc-I + step(2)', 'mine')
    """
    plain = split_names(name)[0].partition(" ")[0]
    try:
        label = find_algorithm(plain).label
    except InputError:  # the user's own, in a store
        label = plain
    return label + name.removeprefix(plain)
