# SPDX-License-Identifier: Apache-2.0
"""Vectors that every client keeps between its rounds, on the host or in a file; freed memory."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedac.errors import LargeMemoryWarning
from fedac.objectives.base import RowNumbers
from fedac.validate import Array

# Larger memories go to a temporary file: this share of the free main memory.
SHARE_OF_MEMORY = 0.5
# Numbers of glibc's malloc.h, and bytes: the largest threshold that all versions take, and several
# chunks of models.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD, KEPT_BYTES = 32 * 2**20, 128 * 2**20
TYPES = {torch.float32: np.float32, torch.float64: np.float64}


class ClientVectors:
    """Some vectors for every lane and client, zeros before a client's first round."""

    def __init__(self, count: int, lanes: int, M: int, dim: int, dtype: torch.dtype) -> None:
        shape, kind = (lanes, M, dim), np.dtype(TYPES[dtype])
        size = count * lanes * M * dim * kind.itemsize
        in_file = size > SHARE_OF_MEMORY * free_memory()
        if in_file:
            warnings.warn(
                f"the clients' memories need {size / 1e9:.1f} GB and are kept in a temporary file",
                LargeMemoryWarning,
                stacklevel=8,
            )
        # Pages of zeros take no memory until they are written.
        make = _in_file if in_file else np.zeros
        self._kept: list[Any] = [make(shape, kind) for _ in range(count)]
        self._lanes = np.arange(lanes)  # those that are left
        self._started = np.zeros(M, bool)

    def load(
        self, lanes: RowNumbers, members: RowNumbers, first: tuple[Tensor, ...], device: Any
    ) -> tuple[Tensor, ...]:
        """Return the vectors of some clients; those without any yet begin with `first`."""
        new = torch.as_tensor(~self._started[members], device=device)
        found = []
        for kept, begun in zip(self._kept, first, strict=True):
            own = torch.from_numpy(kept[np.ix_(self._lanes[lanes], members)]).to(device)
            found.append(torch.where(new[:, None], begun.to(own.dtype), own))
        return tuple(found)

    def store(self, lanes: RowNumbers, members: RowNumbers, values: tuple[Tensor, ...]) -> None:
        """Replace the vectors of some clients."""
        for kept, value in zip(self._kept, values, strict=True):
            kept[np.ix_(self._lanes[lanes], members)] = value.detach().cpu().numpy()
        self._started[members] = True

    def state(self, name: str) -> dict[str, Any]:
        """Return the vectors of all clients that have some, by name."""
        members = np.flatnonzero(self._started)
        found: dict[str, Any] = {f"{name}/members": members}
        for i, kept in enumerate(self._kept):
            found[f"{name}/{i}"] = kept[np.ix_(self._lanes, members)]
        return found

    def restore(self, name: str, arrays: Mapping[str, Array]) -> None:
        """Set what `state` returned."""
        members = arrays[f"{name}/members"]
        for i, kept in enumerate(self._kept):
            kept[np.ix_(self._lanes, members)] = arrays[f"{name}/{i}"]
        self._started[members] = True

    def keep_lanes(self, left: RowNumbers) -> None:
        """Drop the other lanes; the numbers of those that are left start again from 0."""
        self._lanes = self._lanes[left]


def free_memory() -> float:
    """Return the bytes of main memory that are free, infinite if the system does not tell."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


@cache
def keep_freed_memory() -> None:
    """Let glibc keep the memory that a step frees for the next step, from now on in this process.

    By default it may return it to the system, so every step would get new pages, which the kernel
    fills with zeros: a third of the time of some runs. Other systems have no such settings.
    """
    if sys.platform != "linux":
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:  # None with musl
        set_option(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        set_option(M_TRIM_THRESHOLD, KEPT_BYTES)


def _in_file(shape: tuple[int, ...], kind: Any) -> Any:
    with tempfile.TemporaryFile() as file:  # the map keeps its own handle
        return np.memmap(file, kind, mode="w+", shape=shape)
