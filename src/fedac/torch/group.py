"""A process group that says plainly what its failures mean."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.errors import InputError


class WorkerLostError(RuntimeError):
    """A synchronization failed: a worker has died or cannot be reached."""


class Group:
    """The processes that average with each other.

    Parameters
    ----------
    group : ProcessGroup, optional
        The default group unless given.
    timeout : float, optional
        Seconds after which something collective has failed; the group's own unless given.

    Attributes
    ----------
    rank, size : int
        This process's place in the group, and how many there are.
    """

    def __init__(self, group: Any = None, *, timeout: float | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "no process group: call torch.distributed.init_process_group first, and start "
                "the program by torchrun"
            )
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise InputError("this process is not in the group; only its members synchronize")
        self.size = dist.get_world_size(group)
        self._group = group if timeout is None else self._with_timeout(group, timeout)

    def start_sum(self, tensor: Tensor, purpose: str) -> Any:
        """Begin to replace a tensor by its sum over all processes; `finish` what is returned."""
        return self._guard(
            purpose,
            lambda: dist.all_reduce(tensor, dist.ReduceOp.SUM, group=self._group, async_op=True),
        )

    def finish(self, work: Any, purpose: str) -> None:
        """Wait until something that was begun is done."""
        self._guard(purpose, work.wait)

    def take_from_first(self, tensor: Tensor) -> None:
        """Replace a tensor by that of rank 0."""
        source = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        self._guard("the start", lambda: dist.broadcast(tensor, source, group=self._group))

    def ask(self, text: str, device: torch.device) -> list[str]:
        """Return the texts of all processes, by rank; they travel by way of the device."""
        mine = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
        sizes = self._gather(torch.tensor([len(mine)], device=device))
        padded = torch.zeros(max(map(int, sizes)), dtype=torch.uint8, device=device)
        padded[: len(mine)] = mine
        rows = self._gather(padded)
        return [
            bytes(row[: int(size)].tolist()).decode() for row, size in zip(rows, sizes, strict=True)
        ]

    def _gather(self, mine: Tensor) -> list[Tensor]:
        everybody = [torch.empty_like(mine) for _ in range(self.size)]
        self._guard("the start", lambda: dist.all_gather(everybody, mine, group=self._group))
        return everybody

    def _with_timeout(self, group: Any, timeout: float) -> Any:
        """Return a group with our timeout: that of a given one cannot be changed."""
        try:
            limit = timedelta(seconds=timeout)
        except OverflowError:
            raise InputError(f"timeout is too long, got {timeout:g} s") from None
        if group is None:
            return self._guard("the start", lambda: dist.new_group(timeout=limit))
        ranks = dist.get_process_group_ranks(group)
        return self._guard(
            "the start",
            lambda: dist.new_group(ranks, timeout=limit, use_local_synchronization=True),
        )

    def _guard(self, purpose: str, call: Callable[[], Any]) -> Any:
        before = time.perf_counter()
        try:
            return call()
        except RuntimeError as error:
            waited = time.perf_counter() - before
            raise WorkerLostError(
                f"rank {self.rank} of {self.size}: {purpose} failed after {waited:.1f} s; a worker "
                "has died, cannot be reached, or has stopped taking steps. Start again from the "
                f"last checkpoint. ({_reason(error)})"
            ) from error


def _reason(error: Exception) -> str:
    """Return the first line of an error, without PyTorch's place and Gloo's wishes around it."""
    line = str(error).partition("\n")[0]
    return re.sub(r"^\[[^\]]*:\d+\] |\W*GLHF.*$", "", line)
