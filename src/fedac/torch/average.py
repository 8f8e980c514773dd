"""One average over all workers: a single all-reduce of one flat buffer."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.torch.flat import flatten
from fedac.torch.workers import Workers

# Sent in place of the weight by a worker whose tensors are not finite.
NOT_FINITE = -1.0


class NonFiniteStateError(RuntimeError):
    """A worker's state holds NaN or infinity; no worker's state was changed."""


class Average:
    """A weighted mean of tensors, which is started when it is made.

    The buffer begins with two numbers per rank: its weight, and a code that must be the same in
    all processes. Every rank fills in its own and leaves the others 0, so that the sum has them
    all. The tensors times the weight follow. `steps` is how many this worker has taken; with
    `keep`, a copy of its tensors is kept.
    """

    def __init__(
        self,
        workers: Workers,
        tensors: Sequence[Tensor],
        *,
        weight: float,
        code: int,
        steps: int,
        keep: bool,
    ) -> None:
        self._workers = workers
        self.steps = steps
        self._buffer = flatten(tensors, workers.device, leading_zeros=2 * workers.size)
        body = self._buffer[2 * workers.size :]
        self._own = body.clone() if keep else None
        if bool(torch.isfinite(body).all()):
            if weight != 1:
                body *= weight
        else:
            body.zero_()  # NaN would spoil the sum
            self._own, weight = None, NOT_FINITE
        self._buffer[workers.rank] = weight
        self._buffer[workers.size + workers.rank] = code
        self.bytes = self._buffer.numel() * self._buffer.element_size()
        self._work = workers.start_sum(self._buffer)

    def wait(self) -> float:
        """Wait until the sum is complete; return the seconds it took."""
        before = time.perf_counter()
        self._workers.finish(self._work)
        return time.perf_counter() - before

    def has_one_code(self) -> bool:
        """Check whether all processes sent the same code."""
        codes = self._buffer[self._workers.size : 2 * self._workers.size].tolist()
        return len(set(codes)) == 1

    def mean(self, on_nonfinite: str) -> Tensor:
        """Return the mean as a flat tensor, or say whose state is not finite."""
        weights = self._buffer[: self._workers.size].tolist()
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
        mean = self._buffer[2 * self._workers.size :]
        mean /= total
        if not bool(torch.isfinite(mean).all()):
            raise NonFiniteStateError(
                f"the sum of all states overflows {mean.dtype} after {self.steps} steps; no state "
                "was averaged. Use a smaller lr"
            )
        return mean

    def progress(self, tensors: Sequence[Tensor]) -> Tensor | float:
        """Return how far this worker has moved since; 0 if it was not finite then."""
        return 0.0 if self._own is None else flatten(tensors, self._workers.device) - self._own
