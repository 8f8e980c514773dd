"""One average over all workers: a single all-reduce of one flat buffer."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.errors import InputError
from fedac.torch.workers import Workers

# Sent in place of the weight by a worker whose tensors are not finite.
NOT_FINITE = -1.0


class NonFiniteStateError(RuntimeError):
    """A worker's state holds NaN or infinity; no worker's state was changed."""


class Average:
    """A weighted mean of tensors, which is started when it is made.

    The buffer begins with two numbers per rank: its weight, and a hash of its settings, which
    must be the same in all processes. Every rank fills in its own and leaves the others 0, so that
    the sum has them all. The tensors times the weight follow. `steps` is how many this worker has
    taken; with `keep`, a copy of its tensors is kept.
    """

    def __init__(
        self,
        workers: Workers,
        tensors: Sequence[Tensor],
        *,
        weight: float,
        settings: str,
        steps: int,
        keep: bool,
    ) -> None:
        self.steps = steps
        self._workers, self._settings = workers, settings
        self._buffer = flatten(tensors, workers.device, leading_zeros=2 * workers.size)
        body = self._buffer[2 * workers.size :]
        self._own = body.clone() if keep else None
        if not torch.isfinite(body).all():
            body.zero_()  # NaN would spoil the sum
            self._own, weight = None, NOT_FINITE
        elif weight != 1:
            body *= weight
        self._buffer[workers.rank] = weight
        # Whole numbers below 2**24 are exact in float32.
        self._buffer[workers.size + workers.rank] = zlib.crc32(settings.encode()) % 2**24
        self.bytes = self._buffer.nbytes
        with workers.guard():
            self._work = dist.all_reduce(self._buffer, group=workers.group, async_op=True)

    def wait(self) -> float:
        """Wait until the sum is complete; return the seconds it took."""
        before = time.perf_counter()
        with self._workers.guard():
            self._work.wait()
        return time.perf_counter() - before

    def mean(self, on_nonfinite: str) -> Tensor:
        """Return the mean as a flat tensor, or say whose state is not finite."""
        size = self._workers.size
        weights, hashes = self._buffer[: 2 * size].view(2, size).tolist()
        if len(set(hashes)) > 1:
            raise InputError(
                f"processes differ in lr after {self.steps} steps; this one has {self._settings}. "
                "Schedulers must do the same in all processes. No state was averaged"
            )
        bad = [str(rank) for rank, weight in enumerate(weights) if weight == NOT_FINITE]
        total = sum(weight for weight in weights if weight != NOT_FINITE)
        if bad and (on_nonfinite == "raise" or total <= 0):
            advice = ", or on_nonfinite='skip-worker'" if on_nonfinite == "raise" else ""
            raise NonFiniteStateError(
                f"the state of rank {', '.join(bad)} holds NaN or infinity after {self.steps} "
                f"steps; no state was averaged. Use a smaller lr{advice}"
            )
        if total <= 0:
            raise InputError("no worker counted any examples; call count(examples) every step")
        mean = self._buffer[2 * size :]
        mean /= total
        if not torch.isfinite(mean).all():
            raise NonFiniteStateError(
                f"the sum of all states overflows {mean.dtype} after {self.steps} steps; no state "
                "was averaged. Use a smaller lr"
            )
        return mean

    def progress(self, tensors: Sequence[Tensor]) -> Tensor | float:
        """Return how far this worker has moved since; 0 if it was not finite then."""
        return 0.0 if self._own is None else flatten(tensors, self._workers.device) - self._own


def flatten(tensors: Sequence[Tensor], device: torch.device, *, leading_zeros: int = 0) -> Tensor:
    """Copy tensors into one, with the most precise of their types, at least float32.

    >>> flatten([torch.ones(2), torch.full((1, 1), 3.0)], torch.device("cpu"), leading_zeros=1)
    tensor([0., 1., 1., 3.])
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    size = leading_zeros + sum(tensor.numel() for tensor in tensors)
    flat = torch.zeros(size, dtype=dtype, device=device)
    for part, tensor in zip(_split(flat[leading_zeros:], tensors), tensors, strict=True):
        part.copy_(tensor.detach())
    return flat


@torch.no_grad()
def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the parts of a flat tensor back into the tensors."""
    for part, tensor in zip(_split(flat, tensors), tensors, strict=True):
        tensor.copy_(part)


def _split(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
