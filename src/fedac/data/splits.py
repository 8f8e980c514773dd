# SPDX-License-Identifier: Apache-2.0
"""Splits of rows among clients: by name, by a file of client names, or by an array.

Every client gets at least one row, without redrawing splits until they fit.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.data.clients import Clients, Integers, Names, are_real, as_names, group_targets
from fedac.errors import InputError
from fedac.validate import Array, require_count, require_nonnegative, require_positive, unknown_name

# More shares would take minutes, and the labels are probably names of rows.
MOST_SHARES = 10**8
# A longer line is not a client's name: the file is probably something else.
LONGEST_NAME = 200


def split(
    data: Any, clients: int | None = None, by: str | npt.ArrayLike = "iid", seed: int = 0
) -> Clients:
    """Split the rows of a data set among clients.

    Parameters
    ----------
    data : Dataset or LinearModel or array
        An object with labels ``y``, or the labels themselves.
    clients : int
        Number of clients. Omit it if `by` is an array.
    by : str or array
        How to split the rows, or an array with the name of every row's client:

        - ``"iid"``: shuffled and cut into equal parts.
        - ``"label"``: sorted by label or real target and cut into equal parts.
        - ``"dirichlet(a)"``: each label in shares drawn from a Dirichlet distribution, more uneven
          for smaller a; then every client without rows gets one. Real targets are put into ten
          groups first.
        - ``"power(a)"``: shuffled, one row each and the rest in proportion to k^-a for client k.
    seed : int
        Seed of the split, independent of the seed of a simulation.

    Examples
    --------
    >>> split([1, -1, 1, -1, 1, -1], clients=2, by="label").owners
    array([1, 0, 1, 0, 1, 0])
    """
    labels = as_names("the labels to split", getattr(data, "labels", getattr(data, "y", data)))
    if not isinstance(by, str):
        named = Clients(by, labels)
        if clients not in (None, len(named)):
            raise InputError(f"clients={clients} contradicts by, which names {len(named)} clients")
        return named
    make, a, N = check_split(clients, by, seed)
    if len(labels) < N:
        raise InputError(
            f"{N} clients need at least {N} rows, one for each; there are {len(labels)}"
        )
    return Clients(make(labels, N, a, np.random.default_rng(seed)), labels, how=by)


def is_split(by: str) -> bool:
    """Return whether a text names a split; the number in its parentheses is not checked."""
    return _parse(by)[0] in SPLITS


def check_split(clients: int | None, by: str, seed: int) -> tuple[Splitter, float, int]:
    """Return a split's function, its parameter and the number of clients, or raise `InputError`."""
    key, number = _parse(by)
    if key not in SPLITS:
        unknown = unknown_name("split", by, SPLITS)
        if _is_file(by):
            raise InputError(f"{unknown}; to read a file: by=Path({by!r}).read_text().splitlines()")
        raise unknown
    make, check = SPLITS[key]
    try:
        a = 0.0 if check is None else check(f"a of {key}", float(number))
    except InputError as error:
        raise InputError(f"split {by!r}: {error}") from None
    except ValueError:
        raise InputError(f"split {by!r}: {number!r} is not a number") from None
    if clients is None:
        raise InputError("clients is missing: give the number of clients")
    require_count("seed of the split", seed, least=0)
    return make, a, require_count("clients", clients)


def check_clients(clients: int | None, by: str, seed: int = 0) -> None:
    """Raise the errors of `as_clients` that do not depend on the data, before it is loaded."""
    if is_split(by):
        check_split(clients, by, seed)
    elif not _is_file(by):
        raise InputError(
            f"{unknown_name('split', by, SPLITS)}; nor is '{by}' a file. For a "
            "column of the data, use --client COLUMN (in Python, client= of fedac.load)"
        )


def as_clients(clients: Any, data: Any, number: int | None = None, seed: int = 0) -> Clients:
    """Return the clients of the rows of a Dataset or an objective.

    `clients` is a `Clients`, an array that names the client of each row, the client column of the
    data, a split with its `number` of clients, a file, or a number of clients of an iid split. The
    file has one client name per line, in the order of the rows. If all names are whole numbers,
    they are sorted as numbers. For a file named like a split, write ``./iid``.
    """
    n = data.n_samples
    if n >= 2**62:
        raise InputError("clients need rows, and this objective has none: use a linear model")
    labels = getattr(data, "labels", getattr(data, "y", np.zeros(n)))
    if isinstance(clients, str | Path):
        columns = getattr(data, "columns", None)
        if isinstance(clients, str) and is_split(clients):
            return split(labels, number, clients, seed)
        if columns is not None and columns.client == clients:
            found: Clients = data.clients
        else:
            found = Clients(_read_names(str(clients), data), labels, how=Path(clients).name)
    elif isinstance(clients, Clients):
        found = clients
    elif np.ndim(clients) == 0:
        found = split(labels, clients, "iid", seed)
    else:
        names = as_names("clients", clients)
        found = Clients(names, labels if len(names) == n else None)
    if len(found.rows) != n:
        what = getattr(data, "name", "the objective")
        raise InputError(
            f"clients hold {len(found.rows)} rows, but {what} has {n}; split the same data"
        )
    if number not in (None, len(found)):
        raise InputError(f"there are {len(found)} clients ({found.how}), not {number}: omit it")
    return found


def are_drawn(clients: Any) -> bool:
    """Return whether a split draws the clients: `clients` is then its name or their number."""
    if isinstance(clients, str):
        return is_split(clients)
    return not isinstance(clients, Clients | Path) and np.ndim(clients) == 0


def is_column(clients: Any) -> bool:
    """Return whether these clients can only be a column of a table: neither split nor file."""
    return isinstance(clients, str) and not is_split(clients) and not _is_file(clients)


def _is_file(name: str) -> bool:
    return os.path.isfile(name)  # noqa: PTH113 - Path.is_file raises if a name is too long


def _read_names(by: str, data: Any) -> npt.NDArray[np.generic]:
    if not _is_file(by):
        check_clients(None, by)
    path = Path(by)
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file with one client name per line") from None
    for number, name in enumerate(names, start=1):
        if not 0 < len(name) <= LONGEST_NAME:
            what = f"has {len(name)} characters" if name else "is empty"
            raise InputError(f"{path}, line {number} {what}: one client name per line is needed")
    if len(names) != data.n_samples:
        raise InputError(
            f"{path} has {len(names)} lines, but {getattr(data, 'name', 'the objective')} has "
            f"{data.n_samples} rows; write the name of every row's client on its own line"
        )
    # Sorted like the same names in an array of numbers: 9 before 10.
    if all(name.isdecimal() and len(name) < 19 and str(int(name)) == name for name in names):
        return np.array(names, dtype=np.int64)
    return np.array(names)


def _parse(by: str) -> tuple[str, str]:
    """Return a key of `SPLITS`, if it is one, and the text in the parentheses."""
    found = re.fullmatch(r"(\w+)\((.*)\)", by.strip())
    return (f"{found[1]}(a)", found[2]) if found else (by.strip(), "")


def _by_label(labels: Names, N: int, _: float, rng: np.random.Generator) -> Integers:
    shuffled = rng.permutation(len(labels))
    in_order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return _assign(in_order, _sizes(np.ones(N), len(labels)))


def _power(labels: Names, N: int, a: float, rng: np.random.Generator) -> Integers:
    sizes = _sizes(np.arange(1, N + 1, dtype=np.float64) ** -a, len(labels))
    return _assign(rng.permutation(len(labels)), sizes)


def _dirichlet(labels: Names, N: int, a: float, rng: np.random.Generator) -> Integers:
    shuffled = rng.permutation(len(labels))
    grouped = group_targets(labels) if are_real(labels) else labels
    kinds, kind = np.unique(grouped[shuffled], return_inverse=True)
    if len(kinds) * N > MOST_SHARES:
        raise InputError(
            f"dirichlet(a) draws a share for every client and label: {N} clients and "
            f"{len(kinds)} labels are too many; group similar labels"
        )
    by_label = shuffled[np.argsort(kind, kind="stable")]
    owners = np.empty(len(labels), np.int64)
    for rows in np.split(by_label, np.cumsum(np.bincount(kind))[:-1]):
        # A gamma variable of shape a is one of shape a + 1 times U^(1/a): in logarithms, because it
        # underflows for small a. At a = 1e-300 one client already gets everything.
        logs = np.log(rng.standard_gamma(a + 1, N)) - rng.standard_exponential(N) / max(a, 1e-300)
        sizes = _sizes(np.exp(logs - logs.max()), len(rows), least=0)
        owners[rows] = np.repeat(np.arange(N), sizes)
    return _fill_empty_clients(owners, N, rng)


def _fill_empty_clients(owners: Integers, N: int, rng: np.random.Generator) -> Integers:
    """Give a row to each client without one, always from the client that has the most."""
    counts = np.bincount(owners, minlength=N)
    empty = np.flatnonzero(counts == 0)
    # The largest cap on client sizes that frees enough rows.
    sizes = range(1, int(counts.max()) + 1)
    low = bisect_right(sizes, -len(empty), key=lambda size: -np.maximum(counts - size, 0).sum())
    freed = np.maximum(counts - low, 0)
    freed[np.flatnonzero(freed)[: freed.sum() - len(empty)]] -= 1
    # Each client gives away the first of its rows in random order.
    order = rng.permutation(len(owners))
    order = order[np.argsort(owners[order], kind="stable")]
    rank = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    filled = owners.copy()
    filled[order[rank < freed[owners[order]]]] = rng.permutation(empty)
    return filled


def _sizes(weights: Array, n: int, *, least: int = 1) -> Integers:
    """Return whole sizes that add up to n: `least` each, the rest in proportion to weights."""
    exact = weights / weights.sum() * (n - least * len(weights))
    sizes: Integers = np.floor(exact).astype(np.int64) + least
    # The remaining rows go to the clients that lost most by rounding.
    lost: Integers = np.argsort(np.floor(exact) - exact, kind="stable")
    sizes[lost[: n - sizes.sum()]] += 1
    return sizes


def _assign(order: Integers, sizes: Integers) -> Integers:
    """Return the owner of each row, given the rows in order and the size of each client."""
    owners = np.empty(len(order), np.int64)
    owners[order] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


Splitter = Callable[[Names, int, float, np.random.Generator], Integers]
# The function of each split, and the check of the number in its parentheses, if it takes one.
SPLITS: dict[str, tuple[Splitter, Callable[[str, float], float] | None]] = {
    "iid": (_power, None),  # a = 0
    "label": (_by_label, None),
    "dirichlet(a)": (_dirichlet, require_positive),
    "power(a)": (_power, require_nonnegative),
}
