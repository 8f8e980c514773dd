"""What an actor on another node is told about a round."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedac.simulation.engines.linear.kernels.simd import aligned
from fedac.simulation.engines.linear.kernels.types import Boundary, Tables

Record = TypeVar("Record", bound=tuple[Any, ...])


class Widths(NamedTuple):
    """How many lanes, sequences and messages the kernels compute with; those of a `Workers`."""

    S: int
    V: int
    T: int


class Job(NamedTuple):
    """A round of some lanes. Who takes part and what they draw, an actor finds out by itself."""

    t: int
    """The first step of the round."""
    gap: int
    lanes: tuple[int, ...]
    """Which lanes of the problem these are."""
    widths: Widths
    tables: Tables | None
    """None: the same as in the last job with these lanes and this length."""
    start: npt.NDArray[Any]
    boundary: Boundary | None = None
    """For clients that enter and leave in their own way."""
    memory: int = 0
    """Which of the memories of clients these lanes use."""


def own_copy(record: Record) -> Record:
    """Copy all arrays of a record: Ray's are read-only, and Numba would compile for them anew.

    >>> frozen = np.arange(2.0)
    >>> frozen.flags.writeable = False
    >>> own_copy((frozen, 7))
    (array([0., 1.]), 7)
    >>> own_copy((frozen, 7))[0].flags.writeable
    True
    """
    parts = [_own(part) for part in record]
    return type(record)(*parts) if hasattr(record, "_fields") else type(record)(parts)


def _own(part: Any) -> Any:
    if isinstance(part, np.ndarray):
        copy = aligned(part.shape, part.dtype)
        copy[...] = part
        return copy
    return own_copy(part) if isinstance(part, tuple) else part
