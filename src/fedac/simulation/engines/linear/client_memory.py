"""What clients remember between rounds, for the lanes that share a vector."""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError
from fedac.simulation.engines.linear.kernels.simd import aligned
from fedac.simulation.engines.linear.kernels.types import Kept

# Clients whose memories are moved at a time when lanes leave.
AT_ONCE = 1024
# Python has a name for it from 3.13 on.
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)

Allocate = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]


@dataclass(eq=False)
class ClientMemory:
    """The memories of all clients in some lanes.

    Attributes
    ----------
    indices : list of int
        Which lanes of the problem these are, in the order of the memory's columns.
    kept : Kept
        The memories, and who has one.
    """

    indices: list[int]
    kept: Kept

    @classmethod
    def make(
        cls,
        indices: list[int],
        clients: int,
        shape: tuple[int, int, int],
        dtype: npt.DTypeLike,
        allocate: Allocate = aligned,
    ) -> ClientMemory:
        """Make the memory of lanes; `shape` is their coordinates, vectors and padded lanes.

        Pages of zeros take no space until a client first takes part.
        """
        d, P, V = shape
        memory = allocate((clients, d * P * V), dtype)
        return cls(indices, Kept(memory, np.zeros(clients, np.bool_)))

    def keep(self, indices: list[int], V: int) -> None:
        """Remove the lanes that have diverged."""
        if indices == self.indices:
            return
        columns = [self.indices.index(index) for index in indices]
        N, numbers = self.kept.memory.shape
        memory = self.kept.memory.reshape(N, numbers // V, V)
        for first in range(0, len(memory), AT_ONCE):
            # Pages of clients that never took part must not be touched.
            if not self.kept.started[first : first + AT_ONCE].any():
                continue
            some = memory[first : first + AT_ONCE]
            some[..., : len(columns)] = some[..., columns]
        self.indices = indices


def reserved(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros that may take more space than there is, as long as most of them stay zeros.

    So every actor has a place for all clients, and pages for its own only.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if sys.platform != "linux" or size == 0:
        return aligned(shape, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype).reshape(shape)


class Home(NamedTuple):
    """A machine that keeps memories of clients."""

    share: float
    """Of all memories."""
    free: int | None
    """Bytes, if the system says so."""
    name: str


def here() -> Home:
    """Return this machine, which keeps everything."""
    return Home(1.0, free_bytes(), "")


def require_space(sizes: dict[str, int], itemsize: int, homes: Iterable[Home]) -> None:
    """Refuse memories that do not fit into what is free; `sizes` are the factors of their size."""
    needed = float(np.prod([float(size) for size in sizes.values()])) * itemsize
    for share, free, name in homes:
        if free is not None and share * needed > free:
            factors = " x ".join(f"{size:,} {name}" for name, size in sizes.items())
            part = f", {share * needed / 1e6:,.0f} MB of it{name}" if name else ""
            raise InputError(
                f"what the clients remember takes {needed / 1e6:,.0f} MB ({factors}){part}, but "
                f"only {free / 1e6:,.0f} MB are free{' there' if name else ''}; use fewer clients, "
                f"{'more nodes, ' if name else ''}or fewer step sizes at a time"
            )


def free_bytes() -> int | None:
    """Return how much memory is free, if the system says so."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    names: Any = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
