"""Clients by name: a split such as ``dirichlet(0.1)``, or a file that names every row's client."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedac.data import Clients, Dataset, split
from fedac.data.splits import SPLITS, check_split, is_split
from fedac.errors import InputError, unknown_name

# A longer line is not a name: the file is something else.
LONGEST_NAME = 200


def load_clients(data: Dataset, clients: int | None, by: str, seed: int = 0) -> Clients:
    """Split the rows of a data set by a spec of `fedac.split`, or by a file.

    A file has one client name per line, in the order of the rows; names that are all whole numbers
    are sorted as numbers. A file named like a split is written ``./iid``.

    Examples
    --------
    >>> from fedac.data import load
    >>> load_clients(load("synthetic"), 4, "label")
    Clients(4 clients, 32561 rows, label)
    """
    if not _is_file(by):
        return split(data, clients, by, seed)
    names = _read_names(Path(by))
    if len(names) != data.n_samples:
        raise InputError(
            f"{by} has {len(names)} lines, but {data.name} has {data.n_samples} rows; "
            "give the name of every row's client on a line of its own"
        )
    found = Clients(names, data.y, how=Path(by).name)
    if clients not in (None, len(found)):
        raise InputError(f"clients={clients} contradicts {by}, which names {len(found)} clients")
    return found


def check_clients(clients: int | None, by: str, seed: int = 0) -> None:
    """Refuse what `load_clients` would refuse whatever the data: before they are read."""
    if not _is_file(by):
        check_split(clients, by, seed)


def _is_file(by: str) -> bool:
    if is_split(by):
        return False
    # os.path.isfile, because Path.is_file raises if a name is too long for the system.
    if not os.path.isfile(by):  # noqa: PTH113
        raise InputError(f"{unknown_name('split', by, SPLITS)}; nor is '{by}' a file")
    return True


def _read_names(path: Path) -> npt.NDArray[np.generic]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file with one client name per line") from None
    names = [line.strip() for line in lines]
    for number, name in enumerate(names, start=1):
        if not 0 < len(name) <= LONGEST_NAME:
            what = f"has {len(name)} characters" if name else "is empty"
            raise InputError(f"{path}, line {number} {what}: one client name per line is needed")
    # As the same names in an array of numbers: 9 before 10.
    if all(name.isdecimal() and len(name) < 19 and str(int(name)) == name for name in names):
        return np.array(names, dtype=np.int64)
    return np.array(names)
