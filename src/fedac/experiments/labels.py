"""What figures and pages call a method."""

from __future__ import annotations

from fedac.algorithms import get, split_names
from fedac.errors import InputError


def label_of(name: str) -> str:
    """Return the label of an algorithm, with what a store added to its name.

    Examples
    --------
    >>> label_of("fedavg, mu=0.1"), label_of("fedac-i+step(2)"), label_of("mine")
    ('FedAvg, mu=0.1', 'FedAc-I + step(2)', 'mine')
    """
    plain = split_names(name)[0].partition(" ")[0]
    try:
        label = get(plain).label
    except InputError:  # the user's own
        label = plain
    return label + name.removeprefix(plain)
