"""Which rows each client holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedac.arrays import content_hash
from fedac.errors import InputError

Integers = npt.NDArray[np.int64]


class Clients:
    """The rows of every client; each row belongs to one, and every client has a row.

    Parameters
    ----------
    owners : array, shape (n,)
        The client of each row: any names or numbers.
    labels : array, shape (n,), optional
        The label of each row, for the table and the picture.
    how : str
        How the rows were split, in words.

    Attributes
    ----------
    names : tuple of str
        The clients' names in their order, which is that of the sorted names.
    rows : array of int, shape (n,)
        All rows, those of the first client first.
    bounds : array of int, shape (N + 1,)
        Client m holds ``rows[bounds[m]:bounds[m + 1]]``.

    Examples
    --------
    >>> clients = Clients(["rome", "oslo", "rome"])
    >>> len(clients), clients.names, clients.rows_of(1)
    (2, ('oslo', 'rome'), array([0, 2]))
    """

    def __init__(
        self, owners: npt.ArrayLike, labels: npt.ArrayLike | None = None, *, how: str = "given"
    ) -> None:
        named = np.asarray(owners)
        if named.ndim != 1 or not named.size or named.dtype.kind not in "iufbUS":
            raise InputError("clients must be an array with a name or a number for every row")
        if named.dtype.kind == "f" and not np.isfinite(named).all():
            raise InputError("clients has NaN or infinite entries: every row needs a client")
        if labels is not None and np.shape(labels) != named.shape:
            raise InputError(f"{len(named)} rows have clients, but labels {np.shape(labels)}")
        unique, owner = np.unique(named, return_inverse=True)
        self._unique = unique
        self.labels = None if labels is None else np.asarray(labels)
        self.how = how
        self.rows: Integers = np.argsort(owner, kind="stable")
        self.bounds: Integers = np.concatenate([[0], np.cumsum(np.bincount(owner))])

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.bounds) - 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, in their order."""
        return tuple(map(str, self._unique.tolist()))

    @property
    def sizes(self) -> Integers:
        """How many rows each client holds."""
        return np.diff(self.bounds)

    @property
    def owners(self) -> Integers:
        """The number of the client that holds each row."""
        owners = np.empty(len(self.rows), np.int64)
        owners[self.rows] = np.repeat(np.arange(len(self)), self.sizes)
        return owners

    def rows_of(self, m: int) -> Integers:
        """Return the rows of client number m, in ascending order."""
        return self.rows[self.bounds[m] : self.bounds[m + 1]]

    def fingerprint(self) -> str:
        """Return a hash of who holds which rows."""
        return content_hash(f"clients {len(self)}", self.rows, self.bounds)


def as_clients(clients: Clients | Sequence[object] | npt.ArrayLike, n: int) -> Clients:
    """Return clients that hold n rows, from an array that names the client of each row."""
    found = clients if isinstance(clients, Clients) else Clients(clients)  # type: ignore[arg-type]
    if len(found.rows) != n:
        raise InputError(
            f"clients hold {len(found.rows)} rows, but the objective has {n}; split the same data"
        )
    return found
