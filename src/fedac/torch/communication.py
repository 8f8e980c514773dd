"""How processes communicate: messages, and clear errors if one is lost or differs."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.errors import InputError
from fedac.require import require_positive

# Longer values are cut in errors.
LONG = 100


class WorkerLostError(RuntimeError):
    """A synchronization failed: a worker has died or cannot be reached."""


class NonFiniteStateError(RuntimeError):
    """A worker's state holds NaN or infinity; no worker's state was changed."""


class Workers:
    """A process group whose messages are on `device`; for `group` and `timeout` see `Synchronizer`.

    `activity` is what the processes are doing, for errors.
    """

    def __init__(self, group: Any, *, device: torch.device, timeout: float | None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "there is no process group: call torch.distributed.init_process_group first, and "
                "start the program with torchrun"
            )
        self.group: Any = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise InputError("this process is not a member of the group")
        self.device = device
        self.activity = "the start"
        if timeout is not None:  # that of an existing group cannot be changed
            limit = timedelta(seconds=require_positive("timeout", timeout))
            ranks = dist.get_process_group_ranks(self.group)
            with self.guard():
                self.group = dist.new_group(ranks, timeout=limit, use_local_synchronization=True)

    def exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the messages of all processes, by rank. They are sent as JSON, not as pickles."""
        text = json.dumps(message).encode()
        longest = max(int(length) for length in self._gather([len(text)]))
        return [json.loads(bytes(row.tolist())) for row in self._gather(text.ljust(longest))]

    def _gather(self, numbers: Sequence[int]) -> list[Tensor]:
        mine = torch.tensor(list(numbers), device=self.device)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        with self.guard():
            dist.all_gather(rows, mine, group=self.group)
        return rows

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Explain the errors of PyTorch's own communication."""
        before = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            waited = time.perf_counter() - before
            reason = str(error).partition("\n")[0]
            raise WorkerLostError(
                f"rank {self.rank} of {self.size}: {self.activity} failed after {waited:.1f} s; a "
                "worker has died, cannot be reached, or has stopped taking steps. Restart from the "
                f"last checkpoint. ({reason})"
            ) from error


def flatten(tensors: Sequence[Tensor], device: torch.device, *, leading_zeros: int = 0) -> Tensor:
    """Copy tensors into one, with the most precise of their types, at least float32.

    >>> flatten([torch.ones(2), torch.full((1, 1), 3.0)], torch.device("cpu"), leading_zeros=1)
    tensor([0., 1., 1., 3.])
    """
    zeros = torch.zeros(leading_zeros, dtype=torch.float32, device=device)
    return torch.cat([zeros, *(tensor.detach().reshape(-1).to(device) for tensor in tensors)])


def parts(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat tensor into tensors like the given ones.

    >>> parts(torch.arange(3.0), [torch.ones(1, 1), torch.ones(2)])
    [tensor([[0.]]), tensor([1., 2.])]
    """
    cut = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(like).to(like) for part, like in zip(cut, tensors, strict=True)]


@torch.no_grad()
def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the parts of a flat tensor back into the tensors."""
    for part, tensor in zip(parts(flat, tensors), tensors, strict=True):
        tensor.copy_(part)


def require_same(name: str, values: Sequence[object]) -> None:
    """Refuse processes whose values, given by rank, differ.

    >>> require_same("local_steps", [8, 8, 16])
    Traceback (most recent call last):
    fedac.errors.InputError: processes differ in local_steps: 8 at rank 0, 1; 16 at rank 2
    """
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        text = str(value)
        if len(text) > LONG:  # the hash shows that texts differ after their beginning
            text = f"{text[:LONG]}... ({zlib.crc32(text.encode()):08x})"
        ranks.setdefault(text, []).append(str(rank))
    if len(ranks) > 1:
        found = "; ".join(f"{text} at rank {', '.join(who)}" for text, who in ranks.items())
        raise InputError(f"processes differ in {name}: {found}")
