# SPDX-License-Identifier: Apache-2.0
"""The end of a round in PyTorch, from top to bottom: `Rounds.end_round`.

The user's loop takes the local steps of a round. Then every worker leaves it with a message, the
mean of all messages is computed, and every worker serves the same mean. So all of them know the new
sequences without a broadcast. A worker's memory stays in its process.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedac.algorithms import ClientWork, RoundInfo
from fedac.algorithms.algorithm import State
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError
from fedac.federation.compression import BFLOAT16, FLOAT32, Sender
from fedac.federation.round import leave, serve
from fedac.torch import _agreement
from fedac.torch._averaging import (
    EXACT,
    NOT_FINITE,
    AllReduce,
    Average,
    BFloat16AllReduce,
    Header,
    checksum,
    flatten,
    is_finite,
    is_gathered,
    move_state,
    parts,
    unflatten,
)
from fedac.torch._communication import NonFiniteStateError, Workers
from fedac.torch._compression import Gather
from fedac.torch._costs import traffic
from fedac.torch._optimizer import LocalOptimizer
from fedac.torch._state import is_paused, plain_settings, sequence_dtype, write
from fedac.validate import require_count

# Sums of smaller numbers do not overflow float32.
LARGE = 1e38


def plain_name(name: str) -> str:
    """Return a name without the prefixes of DistributedDataParallel and torch.compile."""
    return re.sub(r"(^|\.)(module|_orig_mod)\.", r"\1", name)


class LeftGroup(NamedTuple):
    """A parameter group whose round this worker has left."""

    group: dict[str, Any]
    params: list[Tensor]
    hp: Hyperparameters
    steps: int
    paused: bool  # in all workers, so that the round leaves it unchanged


class Synchronization(NamedTuple):
    """One row of `Synchronizer.history`, as seen by this process."""

    round: int  # its number, from 1
    step: int  # after which it was started
    seconds: float  # how long this process waited for it
    bytes: int  # handed over by this process
    traffic: int  # sent by this process, as gloo does it (`fedac.torch.traffic`)
    skipped: tuple[int, ...]  # ranks that were left out because their state was not finite
    # The Euclidean distance of this worker's message from the mean; for large models, estimated
    # from 65,536 of their numbers.
    spread: float


@dataclass(eq=False)
class Rounds:
    """Ends the rounds of an optimizer."""

    optimizer: LocalOptimizer
    named: dict[Tensor, str]  # the trained parameters and their names
    buffers: Buffers
    workers: Workers
    schedule: SyncSchedule
    wire: str
    wire_seed: int
    error_feedback: bool
    on_nonfinite: str

    def __post_init__(self) -> None:
        if self.wire != FLOAT32:  # all ranks must know what differences are taken from
            self.optimizer.keep_broadcasts()
        self.forget_residuals()
        self._free: Tensor | None = None  # memory for the next average
        self._rounds_differently = False  # whether equal states of ranks differ in some bits

    def forget_residuals(self) -> None:
        """Forget the rounding errors of the last message that arrived, by vector."""
        p, S = next(iter(self.named)), len(self.optimizer.algorithm.sent)
        size = sum(p.numel() for p in self.named) if self.error_feedback else 0
        self.residuals = [torch.zeros(size, dtype=sequence_dtype(p))] * S

    @torch.no_grad()
    def end_round(
        self, number: int, weight: float, *, idle: bool = False, finished: bool = False
    ) -> Generator[int, None, tuple[Synchronization, bool] | None]:
        """End a round: leave, compress, mean, serve, enter the next one.

        This generator pauses once, while the mean is computed: with overlap, the user's loop goes
        on there. It yields the bytes sent. It returns a row for the history and whether all workers
        have finished, or None if no worker has moved. If it raises, no state has changed.

        An `idle` worker has taken no step, unlike others, and its message is not used. One that has
        `finished` has run out of batches, and adopts the settings of the other workers.
        """
        optimizer, workers, steps = self.optimizer, self.workers, self.optimizer.steps

        # Leave the round. Nothing of the optimizer changes before the mean has arrived.
        left = self._left_groups(idle)
        message, memory = self._leave(left, weight)

        # Compress the message, and start the mean.
        settings = _agreement.settings_of(optimizer.param_groups)
        header = Header(weight, self._digest(settings), steps, finished)
        own_steps = self._own_steps(left, message)
        average = self._start_average(header, message, memory, own_steps)
        sent = flatten(self.moving() if self.schedule.delay else [], workers.device)
        self._free = average.buffer
        yield average.bytes

        # Take the mean over the workers whose state is finite.
        seconds = average.wait()
        headers = average.headers()
        weights = [header.weight for header in headers]
        _agreement.require_same_steps(headers)
        settings = _agreement.agree_on_settings(workers, headers, settings, steps=steps)
        if not self._has_mean(headers, steps):
            return None
        mean, divisor = average.collect(weights)
        if sum(header.size for header in headers) > LARGE and not is_finite(mean):
            raise NonFiniteStateError(
                f"the sum of all states overflows {mean.dtype} after {steps} steps; no state was "
                "averaged. Use a smaller lr"
            )
        differ = len({header.digest for header in headers}) > 1
        if differ and not (optimizer.takes_mean or self._rounds_differently):
            self._rounds_differently = _agreement.require_same_start(workers, optimizer, self.named)
        spread = average.distance(mean, divisor)

        # Serve the mean, and enter the next round with what this worker has moved meanwhile.
        if finished:
            for group, (lr, mu, weight_decay) in zip(optimizer.param_groups, settings, strict=True):
                group.update(lr=lr, mu=mu, weight_decay=weight_decay)
                group["last"] = plain_settings(group)
            hps = [optimizer.hyperparameters(group["last"]) for group in optimizer.param_groups]
            left = [part._replace(hp=hp) for part, hp in zip(left, hps, strict=False)]
        overlapped, used = optimizer.steps != steps, weights[workers.rank] > 0
        furthest = max(header.steps for header in headers)
        # By steps, not by rounds: a second synchronizer counts its rounds from 0.
        optimizer.lower_lr(self.schedule.rounds(furthest))
        exact = self._exact()
        if not optimizer.takes_mean or overlapped:
            if divisor != 1:
                mean /= divisor
            values = parts(mean, [*message, *exact, *own_steps])
            this = RoundInfo(number=optimizer.rounds)
            if "moves" in optimizer.algorithm.asks:
                moved = float(optimizer.squared_moves(self.named, values))
                this = replace(this, spread=average.spread, moved=moved)
            end = len(message) + len(exact)
            received = iter(values[:end])
            mean_steps = list(map(float, values[end:])) or [0.0] * len(left)
            since = iter(self._moved_since(average, sent)) if overlapped else None
            self._serve(left, received, since, memory, weights, this, mean_steps)
            for tensor, value in zip(exact, received, strict=True):
                new = value if since is None else value + next(since)
                # Variances and other nonnegative tensors stay nonnegative.
                if since and bool((value >= 0).all()) and bool((tensor >= 0).all()):
                    new = torch.maximum(new, torch.minimum(value, tensor))
                tensor.copy_(new)
        elif divisor == 1 and not optimizer.in_place:
            left_memory = move_state(mean, message, exact)
            self._free = average.buffer if left_memory is None else left_memory
        else:
            unflatten(mean, [*message, *exact], divisor=divisor)

        # Close the round: steps taken meanwhile belong to the next one.
        for group, part in zip(optimizer.param_groups, left, strict=False):
            group["taken"] = max(0, group["taken"] - part.steps)
        optimizer.rounds += not all(part.paused for part in left)
        if finished:
            optimizer.steps = furthest
        optimizer.refresh()
        if optimizer.inner is not None:
            optimizer.inner.end_round(used=used)
        if used and average.residuals is not None:
            self.residuals = average.residuals
        M, algorithm = workers.size, optimizer.algorithm
        row = Synchronization(
            round=number,
            step=furthest,
            seconds=seconds,
            bytes=average.bytes,
            traffic=traffic(average.bytes, world_size=M, wire=self.wire, algorithm=algorithm) // M,
            skipped=tuple(m for m, weight in enumerate(weights) if weight == NOT_FINITE),
            spread=spread,
        )
        return row, all(header.finished for header in headers)

    def moving(self) -> list[Tensor]:
        """Return the tensors that local steps and forward passes change."""
        local = [s for p in self.named for s in self.optimizer.sequences(p)]
        return [*local, *self._exact()]

    def _left_groups(self, idle: bool) -> list[LeftGroup]:
        trained = set(map(id, self.named))  # a tensor's own hash is slower
        return [
            LeftGroup(
                group,
                [p for p in group["params"] if id(p) in trained],
                self.optimizer.hyperparameters(group["last"]),
                group["taken"],
                is_paused(group) if idle else not group["taken"],
            )
            for group in self.optimizer.param_groups
        ]

    def _leave(
        self, left: Sequence[LeftGroup], weight: float
    ) -> tuple[list[Tensor], dict[Tensor, State]]:
        """Return the message, and the new memory of all parameters."""
        optimizer = self.optimizer
        message: list[Tensor] = []
        memory: dict[Tensor, State] = {}
        asks = "gradient" in optimizer.algorithm.asks and any(part.steps for part in left)
        gradients = optimizer.full_gradients() if asks else {}
        for group, params, hp, steps, _ in left:
            for p in params:
                local = tuple(optimizer.sequences(p))
                if optimizer.takes_mean:
                    message += local
                    continue
                sequences, after = optimizer.kept(p, "sent"), optimizer.kept(p, "memory")
                if steps:
                    ratio = group["counted"][self.workers.rank] / weight if weight > 0 else 1.0
                    done = ClientWork(steps=steps, gradient=gradients.get(p))
                    values, after = leave(
                        optimizer.algorithm, local, sequences, after, hp, done, weight_ratio=ratio
                    )
                else:
                    values = optimizer.algorithm.bases(sequences)
                message += values
                # Copies: with overlap, local steps may go on in these tensors.
                memory[p] = tuple(t.clone(memory_format=torch.contiguous_format) for t in after)
        return message, memory

    def _own_steps(self, left: Sequence[LeftGroup], message: Sequence[Tensor]) -> list[Tensor]:
        """Return this worker's steps in the round, by group, if the method asks for their mean."""
        if "steps" not in self.optimizer.algorithm.asks:
            return []
        return [torch.tensor(part.steps, dtype=message[0].dtype) for part in left]

    def _start_average(
        self,
        header: Header,
        message: list[Tensor],
        memory: dict[Tensor, State],
        own_steps: list[Tensor],
    ) -> Average:
        """Compress the message for the wire, and start the mean."""
        algorithm, kept, free = self.optimizer.algorithm, self.optimizer.kept, self._free
        arguments = (self.workers, header, message, [*self._exact(), *own_steps])
        if is_gathered(self.wire, algorithm):
            began = [kept(p, "sent") for p in self.named]
            sender = Sender(
                self.wire, self.wire_seed, m=self.workers.rank, r=self.optimizer.rounds,
                residuals=[r.numpy() for r in self.residuals] if self.error_feedback else None,
            )  # fmt: skip
            memories = [memory[p] for p in self.named]
            return Gather(
                *arguments, algorithm=algorithm, began=began, memory=memories, sender=sender,
                reuse=free,
            )  # fmt: skip
        squared_moves = partial(self.optimizer.squared_moves, self.named)
        options: dict[str, Any] = {
            "private": [tensor for tensors in memory.values() for tensor in tensors],
            "squared_moves": squared_moves if "moves" in algorithm.asks else None,
            "reuse": free,
        }
        if self.wire == BFLOAT16:
            flat = [s for p in self.named for s in algorithm.bases(kept(p, "sent"))]
            return BFloat16AllReduce(*arguments, began=flat, **options)
        return AllReduce(*arguments, **options)

    def _has_mean(self, headers: Sequence[Header], steps: int) -> bool:
        """Check whether any worker has moved; raise if there can be no mean."""
        weights = [header.weight for header in headers]
        bad = [str(m) for m, weight in enumerate(weights) if weight == NOT_FINITE]
        used = any(weight > 0 for weight in weights)
        if bad and (self.on_nonfinite == "raise" or not used):
            advice = ", or on_nonfinite='skip-worker'" if self.on_nonfinite == "raise" else ""
            raise NonFiniteStateError(
                f"the state of rank {', '.join(bad)} holds NaN or infinity after {steps} "
                f"steps; no state was averaged. Use a smaller lr{advice}"
            )
        if not used and not all(header.finished for header in headers):
            raise InputError("no worker counted any examples; call count(examples) every step")
        return used

    def _serve(
        self,
        left: Sequence[LeftGroup],
        mean: Iterator[Tensor],
        since: Iterator[Tensor] | None,
        memory: dict[Tensor, State],
        weights: Sequence[float],
        this: RoundInfo,
        mean_steps: Sequence[float],
    ) -> None:
        """Serve the mean message, and enter the next round with this worker's progress `since`.

        It keeps its new memory if its message was used. `mean_steps` are the workers' mean steps,
        by group.
        """
        optimizer, algorithm = self.optimizer, self.optimizer.algorithm
        for (group, params, hp, _, paused), steps in zip(left, mean_steps, strict=True):
            if not (optimizer.takes_mean or paused):
                # Workers that are absent keep their last weights.
                before, counted = group["counted"], zip(weights, group["counted"], strict=True)
                group["counted"] = [weight if weight > 0 else last for weight, last in counted]
                total = sum(group["counted"])
                share, ratio = sum(w for w in weights if w > 0) / total, sum(before) / total
                this = replace(this, share=share, steps=steps)
            for p in params:
                message = tuple(next(mean) for _ in algorithm.sent)
                if optimizer.takes_mean:
                    torch._foreach_copy_(optimizer.sequences(p), message)
                elif not paused:
                    sent, server = optimizer.kept(p, "sent"), optimizer.kept(p, "server")
                    after = serve(algorithm, message, sent, server, hp, this, weight_ratio=ratio)
                    write((*sent, *server), (*after[0], *after[1]))
                    if weights[self.workers.rank] > 0:
                        write(optimizer.kept(p, "memory"), memory[p])
                    optimizer.enter(p)
                for tensor, moved in zip(optimizer.sequences(p), since or (), strict=False):
                    if optimizer.takes_mean or not paused:
                        tensor += moved

    def _moved_since(self, average: Average, sent: Tensor) -> list[Tensor]:
        """Return how far everything has moved since it was sent; 0 if it was not finite then."""
        moving = self.moving()
        if average.header.weight == NOT_FINITE:
            return [torch.zeros_like(tensor) for tensor in moving]
        since = parts(sent, moving)
        for then, now in zip(since, moving, strict=True):
            torch.sub(now.detach(), then, out=then)  # reuses the copy, no longer needed
        return since

    def _exact(self) -> list[Tensor]:
        """Return what is averaged with the message: buffers, and a user's optimizer state."""
        inner = self.optimizer.inner
        state = inner.averaged(set(self.named)) if inner else ()
        return [*self.buffers.averaged(), *state]

    def _digest(self, settings: list[list[float]]) -> int:
        """Return a hash of rounded settings, and of where the round began if it is compared."""
        began = 0
        if not (self.optimizer.takes_mean or self._rounds_differently):
            sent = [t for p in self.named for t in self.optimizer.kept(p, "sent")]
            began = checksum(sent, self.workers.device)
        text = " ".join(f"{x:.9g}" for group in settings for x in group)
        return zlib.crc32(f"{text} {began}".encode()) % EXACT


class Buffers:
    """The buffers of a model, such as the running statistics of BatchNorm."""

    def __init__(self, model: nn.Module | None) -> None:
        if not (model is None or isinstance(model, nn.Module)):
            raise InputError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self._model = nn.Module() if model is None else model
        self._averaged = [
            name
            for name, buffer in self.by_name().items()
            if buffer.is_floating_point() and bool(buffer.isfinite().all())
        ]

    def averaged(self) -> list[Tensor]:
        found = self.by_name()
        return [found[name] for name in self._averaged]

    def by_name(self) -> dict[str, Tensor]:
        """Return all buffers; a module may have replaced their tensors."""
        return dict(self._model.named_buffers())


class SyncSchedule:
    """The steps after which an average is started, and how much later it is applied.

    >>> schedule = SyncSchedule(4, at=[3, 5], overlap=False, delay_steps=None)
    >>> [step for step in range(1, 14) if schedule.is_due(step)]
    [3, 5, 9, 13]
    >>> [schedule.rounds(step) for step in (2, 3, 5, 8, 9, 13)]
    [0, 1, 2, 2, 3, 4]
    """

    def __init__(
        self, local_steps: int, *, at: Iterable[int] | None, overlap: bool, delay_steps: int | None
    ) -> None:
        self.local_steps = local_steps
        if not (at is None or isinstance(at, Iterable)):
            raise InputError(f"at must be a list of steps such as [3, 8, 16], got {at!r}")
        self.at = sorted({require_count("every step in at", step) for step in at or ()})
        if at is not None and not self.at:
            raise InputError("at is empty; give at least one step")
        gap = max((b - a for a, b in pairwise([0, *self.at])), default=0)
        if gap > local_steps:
            raise InputError(
                f"two synchronizations are {gap} steps apart, more than local_steps={local_steps}"
            )
        if delay_steps is not None and not overlap:
            raise InputError("delay_steps needs overlap=True")
        given = 1 if delay_steps is None else delay_steps
        self.delay = require_count("delay_steps", given) if overlap else 0
        if self.delay >= local_steps:
            raise InputError(
                f"delay_steps must be from 1 to local_steps - 1 = {local_steps - 1}, got "
                f"{self.delay}"
            )

    def rounds(self, steps: int) -> int:
        """Return the number of averages started in the first steps."""
        last = max(self.at, default=0)
        return bisect(self.at, steps) + max(steps - last, 0) // self.local_steps

    def is_due(self, steps: int) -> bool:
        """Check whether an average starts after this number of steps."""
        last = max(self.at, default=0)
        return steps in self.at if steps < last else (steps - last) % self.local_steps == 0
