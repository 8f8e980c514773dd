"""Ways to split rows among clients, by name or by an array that names every row's client.

Every client gets a row, and nothing is drawn until it fits: a split either exists or is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.arrays import Array
from fedac.data.clients import Clients, Integers
from fedac.errors import InputError, unknown_name
from fedac.require import require_count, require_nonnegative, require_positive


def split(
    data: Any, clients: int | None = None, by: str | npt.ArrayLike = "iid", seed: int = 0
) -> Clients:
    """Split the rows of a data set among clients.

    Parameters
    ----------
    data : Dataset, LinearModel or array
        What has labels ``y``, or the labels themselves.
    clients : int
        How many clients; left out where `by` is an array.
    by : str or array
        ``"iid"``, shuffled and cut into equal parts; ``"label"``, sorted by label and cut into
        equal parts; ``"dirichlet(a)"``, for each label shares of the clients drawn from a Dirichlet
        distribution, the more uneven the smaller a; ``"power(a)"``, shuffled, client k's size in
        proportion to k^-a; or the name of every row's client.
    seed : int
        Of the split, not of the draws of a simulation.

    Examples
    --------
    >>> labels = [1, -1, 1, -1, 1, -1]
    >>> split(labels, clients=2, by="label").owners
    array([1, 0, 1, 0, 1, 0])
    >>> split(labels, by=["rome", "oslo", "rome", "rome", "oslo", "rome"]).sizes
    array([2, 4])
    """
    labels = np.asarray(getattr(data, "y", data))
    if labels.ndim != 1 or not labels.size:
        raise InputError("split needs a data set, or the labels of its rows")
    if not isinstance(by, str):
        named = Clients(by, labels)
        if clients not in (None, len(named)):
            raise InputError(f"clients={clients} contradicts by, which names {len(named)} clients")
        return named
    if clients is None:
        raise InputError("clients, how many there are, is missing")
    N, n = require_count("clients", clients), len(labels)
    if n < N:
        raise InputError(f"{N} clients need at least {N} rows, one for each; there are {n}")
    make, parameter = _parse(by)
    rng = np.random.default_rng(require_count("seed of the split", seed, least=0))
    return Clients(make(labels, N, parameter, rng), labels, how=by)


def _iid(labels: Array, N: int, _: float, rng: np.random.Generator) -> Integers:
    return _cut(rng.permutation(len(labels)), _sizes(np.ones(N), len(labels)))


def _by_label(labels: Array, N: int, _: float, rng: np.random.Generator) -> Integers:
    shuffled = rng.permutation(len(labels))
    in_order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return _cut(in_order, _sizes(np.ones(N), len(labels)))


def _dirichlet(labels: Array, N: int, a: float, rng: np.random.Generator) -> Integers:
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        owners[rows] = np.repeat(np.arange(N), _sizes(_shares(a, N, rng), len(rows), least=0))
    # A client without rows takes one from whoever has the most.
    counts = np.bincount(owners, minlength=N)
    for poor in np.flatnonzero(counts == 0):
        rich = int(counts.argmax())
        owners[rng.choice(np.flatnonzero(owners == rich))] = poor
        counts[rich] -= 1
        counts[poor] += 1
    return owners


def _power(labels: Array, N: int, a: float, rng: np.random.Generator) -> Integers:
    sizes = _sizes(np.arange(1, N + 1, dtype=np.float64) ** -a, len(labels))
    return _cut(rng.permutation(len(labels)), sizes)


def _shares(a: float, N: int, rng: np.random.Generator) -> Array:
    """Draw shares from a symmetric Dirichlet distribution, in logarithms: tiny a underflow.

    A gamma variable of shape a is one of shape a + 1 times U^(1/a).
    """
    logs = np.log(rng.standard_gamma(a + 1, N)) + np.log(rng.random(N)) / a
    shares: Array = np.exp(logs - logs.max())
    return shares


def _sizes(weights: Array, n: int, *, least: int = 1) -> Integers:
    """Return whole sizes in proportion to weights that add up to n, each at least `least`."""
    exact = weights / weights.sum() * (n - least * len(weights))
    sizes: Integers = np.floor(exact).astype(np.int64) + least
    # What is left goes to those who lost most by rounding.
    lost: Integers = np.argsort(np.floor(exact) - exact, kind="stable")
    sizes[lost[: n - sizes.sum()]] += 1
    return sizes


def _cut(order: Integers, sizes: Integers) -> Integers:
    """Return the owner of each row, given the rows in order and how many each client gets."""
    owners = np.empty(len(order), np.int64)
    owners[order] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


Splitter = Callable[[Array, int, float, np.random.Generator], Integers]
# Each with what checks the number in its parentheses, if it takes one.
SPLITS: dict[str, tuple[Splitter, Callable[[str, float], float] | None]] = {
    "iid": (_iid, None),
    "label": (_by_label, None),
    "dirichlet(a)": (_dirichlet, require_positive),
    "power(a)": (_power, require_nonnegative),
}


def _parse(by: str) -> tuple[Splitter, float]:
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", by.strip())
    name, number = (found[1], found[2]) if found else (by, None)
    key = name if number is None else f"{name}(a)"
    if key not in SPLITS:
        raise unknown_name("split", by, SPLITS)
    make, check = SPLITS[key]
    if check is None or number is None:
        return make, 0.0
    try:
        return make, check(f"a of {name}(a)", float(number))
    except ValueError as error:
        why = error if isinstance(error, InputError) else f"'{number}' is not a number"
        raise InputError(f"split {by!r}: {why}") from None
