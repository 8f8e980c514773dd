"""The processes that average with each other, with clear errors when one is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.errors import InputError
from fedac.require import require_positive


class WorkerLostError(RuntimeError):
    """A synchronization failed: a worker has died or cannot be reached."""


class Workers:
    """A process group.

    Parameters
    ----------
    group : ProcessGroup, optional
        The default group unless given.
    device : device
        Where the tensors are that the processes exchange.
    timeout : float, optional
        Seconds until an exchange has failed; the group's own unless given.

    Attributes
    ----------
    rank, size : int
        The rank of this process, and the number of processes.
    activity : str
        What is going on, for errors.
    """

    def __init__(self, group: Any, *, device: torch.device, timeout: float | None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "there is no process group: call torch.distributed.init_process_group first, and "
                "start the program with torchrun"
            )
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise InputError("this process is not a member of the group")
        self.size = dist.get_world_size(group)
        self.device = device
        self.activity = "the start"
        self._group = group
        if timeout is not None:
            self._group = self._with_timeout(require_positive("timeout", timeout))

    def start_sum(self, tensor: Tensor) -> Any:
        """Start to replace a tensor by its sum over all processes; `finish` what is returned."""
        return self._guard(lambda: dist.all_reduce(tensor, group=self._group, async_op=True))

    def finish(self, work: Any) -> None:
        """Wait until a sum is complete."""
        self._guard(work.wait)

    def copy_from_first(self, tensor: Tensor) -> None:
        """Replace a tensor by that of rank 0."""
        source = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        self._guard(lambda: dist.broadcast(tensor, source, group=self._group))

    def exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the messages of all processes, by rank. They are sent as JSON, not as pickles."""
        mine = torch.tensor(
            list(json.dumps(message).encode()), dtype=torch.uint8, device=self.device
        )
        sizes = self._gather(torch.tensor([len(mine)], device=self.device))
        padded = torch.zeros(max(map(int, sizes)), dtype=torch.uint8, device=self.device)
        padded[: len(mine)] = mine
        rows = self._gather(padded)
        return [
            json.loads(bytes(row[: int(size)].tolist()))
            for row, size in zip(rows, sizes, strict=True)
        ]

    def _gather(self, mine: Tensor) -> list[Tensor]:
        all_of_them = [torch.empty_like(mine) for _ in range(self.size)]
        self._guard(lambda: dist.all_gather(all_of_them, mine, group=self._group))
        return all_of_them

    def _with_timeout(self, timeout: float) -> Any:
        """Return a new group: the timeout of an existing one cannot be changed."""
        members: dict[str, Any] = {}
        if self._group is not None:
            members["ranks"] = dist.get_process_group_ranks(self._group)
            members["use_local_synchronization"] = True
        limit = timedelta(seconds=timeout)
        return self._guard(lambda: dist.new_group(timeout=limit, **members))

    def _guard(self, call: Callable[[], Any]) -> Any:
        before = time.perf_counter()
        try:
            return call()
        except RuntimeError as error:
            waited = time.perf_counter() - before
            reason = str(error).partition("\n")[0]
            raise WorkerLostError(
                f"rank {self.rank} of {self.size}: {self.activity} failed after {waited:.1f} s; a "
                "worker has died, cannot be reached, or has stopped taking steps. Restart from the "
                f"last checkpoint. ({reason})"
            ) from error
