"""The end of a round in PyTorch, from top to bottom: `Rounds.end_round`.

The user's loop takes the local steps of a round. Then every worker leaves it with a message, the
mean of all messages is computed, and every worker serves the same mean. So all of them know the new
sequences without a broadcast. A worker's memory stays in its process.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Generator, Iterable, Sequence
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
from fedac.torch._agreement import (
    adopt,
    agree_on_settings,
    require_same_start,
    require_same_steps,
    settings_of,
)
from fedac.torch._averaging import (
    NOT_FINITE,
    AllReduce,
    Average,
    BFloat16AllReduce,
    DoubleBuffer,
    Gather,
    Header,
    checksum,
    digest_of,
    flatten,
    is_finite,
    is_gathered,
    parts,
    unflatten,
)
from fedac.torch._communication import NonFiniteStateError, Workers
from fedac.torch._compression import Packet
from fedac.torch._optimizer import LocalOptimizer
from fedac.torch._state import is_paused, sequence_dtype, write
from fedac.validate import require_count

# Sums of smaller numbers do not overflow float32.
LARGE = 1e38
# Prefixes that DistributedDataParallel and torch.compile add to names.
WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod)\.")


class LeftGroup(NamedTuple):
    """A parameter group whose round this worker has left."""

    group: dict[str, Any]
    params: list[Tensor]
    hp: Hyperparameters
    steps: int
    paused: bool  # in all workers: then the round changes nothing


class RoundEnd(NamedTuple):
    """The outcome of a round."""

    steps: int  # the largest number of any worker
    seconds: float  # waited for the mean
    bytes: int
    skipped: tuple[int, ...]  # ranks whose state was not finite
    spread: float  # distance of this worker's message from the mean
    overlapped: bool  # whether this worker took steps meanwhile
    everyone_finished: bool


class Rounds:
    """Ends the rounds of an optimizer; `named` has the trained parameters and their names."""

    # The rounding errors of the last message that arrived, by vector, with error feedback.
    residuals: list[Tensor] | None = None

    def __init__(
        self,
        optimizer: LocalOptimizer,
        named: dict[Tensor, str],
        buffers: Buffers,
        workers: Workers,
        schedule: SyncSchedule,
        *,
        wire: str,
        wire_seed: int,
        error_feedback: bool,
        on_nonfinite: str,
    ) -> None:
        self.optimizer, self.named, self.buffers, self.workers = optimizer, named, buffers, workers
        self.schedule, self.on_nonfinite = schedule, on_nonfinite
        self.wire, self.wire_seed = wire, wire_seed
        if error_feedback:
            self.residuals = []
        if wire != FLOAT32:  # all ranks must know what differences are taken from
            optimizer.keep_broadcasts()
        self._double = DoubleBuffer()
        self._rounds_differently = False  # whether equal states of ranks differ in some bits

    @torch.no_grad()
    def end_round(
        self, weight: float, *, idle: bool = False, finished: bool = False
    ) -> Generator[int, None, RoundEnd | None]:
        """End a round: leave, compress, mean, serve, enter the next one.

        This generator pauses once, while the mean is computed: with overlap, the user's loop goes
        on there. It yields the bytes sent and returns None if no worker has moved. If it raises, no
        state has changed.

        An `idle` worker has taken no step, unlike others, and its message is not used. One that has
        `finished` has run out of batches, and adopts the settings of the other workers.
        """
        optimizer, workers = self.optimizer, self.workers
        steps = optimizer.steps

        # Leave the round. Nothing of the optimizer changes before the mean has arrived.
        left = self._left_groups(idle)
        message, memory = self._leave(left, weight)

        # Compress the message, and start the mean.
        settings = settings_of(optimizer.param_groups)
        header = Header(weight, digest_of(settings, self._began()), steps, finished)
        average = self._start_average(header, message, memory)
        sent = flatten(self.moving(), workers.device) if self.schedule.delay else None
        self._double.free = average.buffer
        yield average.bytes

        # Take the mean over the workers whose state is finite.
        seconds = average.wait()
        headers = average.headers()
        weights = [header.weight for header in headers]
        require_same_steps(headers)
        settings = agree_on_settings(workers, headers, settings, steps=steps)
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
            self._rounds_differently = require_same_start(workers, optimizer, self.named)
        spread = average.distance(mean, divisor)

        # Serve the mean, and enter the next round with what this worker has moved meanwhile.
        if finished:
            adopt(optimizer.param_groups, settings)
            hps = [optimizer.hyperparameters(group["last"]) for group in optimizer.param_groups]
            left = [part._replace(hp=hp) for part, hp in zip(left, hps, strict=False)]
        overlapped, used = optimizer.steps != steps, weights[workers.rank] > 0
        furthest = max(header.steps for header in headers)
        # By steps, not by rounds: a second synchronizer counts its rounds from 0.
        r, exact = self.schedule.rounds(furthest), self._exact()
        if optimizer.takes_mean and not overlapped:
            if divisor == 1 and not optimizer.in_place:
                self._double.settle(mean, message, exact)
            else:
                unflatten(mean, [*message, *exact], divisor=divisor)
            optimizer.lower_lr(r)
        else:
            if divisor != 1:
                mean /= divisor
            received = parts(mean, [*message, *exact])
            local = [s for p in self.named for s in optimizer.sequences(p)]
            since = self._moved_since(average, sent) if overlapped else None
            if optimizer.takes_mean:
                torch._foreach_copy_(local, received[: len(message)])
            else:
                self._serve(left, received[: len(message)], memory, weights)
            optimizer.lower_lr(r)
            self._enter(left, since and since[: len(local)])
            settle(exact, received[len(message) :], since and since[len(local) :])

        # Close the round: steps taken meanwhile belong to the next one.
        for group, part in zip(optimizer.param_groups, left, strict=False):
            group["taken"] = max(0, group["taken"] - part.steps)
        optimizer.rounds += not all(part.paused for part in left)
        if finished:
            optimizer.steps = furthest
        optimizer.refresh()
        if optimizer.inner is not None:
            optimizer.inner.end_round(used=used)
        if used and self.residuals is not None:
            self.residuals = average.residuals or []
        return RoundEnd(
            steps=furthest,
            seconds=seconds,
            bytes=average.bytes,
            skipped=tuple(m for m, weight in enumerate(weights) if weight == NOT_FINITE),
            spread=spread,
            overlapped=overlapped,
            everyone_finished=all(header.finished for header in headers),
        )

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
        """Return the message, and the new memory of the parameters that have moved."""
        optimizer = self.optimizer
        message: list[Tensor] = []
        memory: dict[Tensor, State] = {}
        for group, params, hp, steps, _ in left:
            for p in params:
                local = tuple(optimizer.sequences(p))
                if optimizer.takes_mean:
                    message += local
                    continue
                sequences = optimizer.kept(p, "sent")
                if not steps:
                    message += sequences
                    continue
                ratio = group["counted"][self.workers.rank] / weight if weight > 0 else 1.0
                mine, after = leave(
                    optimizer.algorithm, local, sequences, optimizer.kept(p, "memory"), hp,
                    ClientWork(steps=steps), weight_ratio=ratio,
                )  # fmt: skip
                message += mine
                # Copies: with overlap, local steps may go on in these tensors.
                memory[p] = tuple(tensor.clone() for tensor in after)
        return message, memory

    def _start_average(
        self, header: Header, message: list[Tensor], memory: dict[Tensor, State]
    ) -> Average:
        """Compress the message for the wire, and start the mean."""
        optimizer, free = self.optimizer, self._double.free
        arguments = (self.workers, header, message, self._exact())

        def compress(flat: Tensor, leading: int) -> Packet:
            # The packet updates memories to what is received. Those that the optimizer keeps must
            # not change before the mean has arrived.
            memories = [
                tuple(tensor.contiguous() for tensor in memory[p])
                if p in memory
                else tuple(map(torch.clone, optimizer.kept(p, "memory")))
                for p in self.named
            ]
            packet = Packet(
                optimizer.algorithm,
                flat,
                began=[optimizer.kept(p, "sent") for p in self.named],
                memory=memories,
                residuals=self._current_residuals(),
                leading=leading,
                sender=Sender(self.wire, self.wire_seed, m=self.workers.rank, r=optimizer.rounds),
            )
            memory.update((p, m) for p, m in zip(self.named, memories, strict=True) if p in memory)
            return packet

        if is_gathered(self.wire, optimizer.algorithm):
            return Gather(*arguments, compress=compress, reuse=free)
        private = [tensor for tensors in memory.values() for tensor in tensors]
        if self.wire == BFLOAT16:
            began = [s for p in self.named for s in optimizer.kept(p, "sent")]
            return BFloat16AllReduce(*arguments, private=private, reuse=free, began=began)
        return AllReduce(*arguments, private=private, reuse=free)

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
        mean: Sequence[Tensor],
        memory: dict[Tensor, State],
        weights: Sequence[float],
    ) -> None:
        """Serve the mean message, and keep this worker's new memory if its message was used."""
        optimizer, received = self.optimizer, iter(mean)
        algorithm = optimizer.algorithm
        for group, params, hp, _, paused in left:
            if not paused:
                share, ratio = count_weights(group, weights)
                this = RoundInfo(number=optimizer.rounds, share=share)
            for p in params:
                message = tuple(next(received) for _ in algorithm.sequences)
                if paused:
                    continue
                sent, server = optimizer.kept(p, "sent"), optimizer.kept(p, "server")
                after = serve(algorithm, message, sent, server, hp, this, weight_ratio=ratio)
                write((*sent, *server), (*after[0], *after[1]))
                if weights[self.workers.rank] > 0:
                    write(optimizer.kept(p, "memory"), memory[p])

    def _enter(self, left: Sequence[LeftGroup], progress: Sequence[Tensor] | None) -> None:
        """Enter the next round, with this worker's progress since it left the last one."""
        optimizer, more = self.optimizer, iter(progress or ())
        for part in left:
            for p in part.params:
                if not (optimizer.takes_mean or part.paused):
                    optimizer.enter(p)
                for tensor, moved in zip(optimizer.sequences(p), more, strict=False):
                    if optimizer.takes_mean or not part.paused:
                        tensor += moved

    def _moved_since(self, average: Average, sent: Tensor | None) -> list[Tensor]:
        """Return how far everything has moved since it was sent; 0 if it was not finite then."""
        moving = self.moving()
        if sent is None or average.header.weight == NOT_FINITE:
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

    def _began(self) -> int:
        """Return a checksum of where the round began, if it is worth comparing."""
        if self.optimizer.takes_mean or self._rounds_differently:
            return 0
        sent = [t for p in self.named for t in self.optimizer.kept(p, "sent")]
        return checksum(sent, self.workers.device)

    def _current_residuals(self) -> list[Tensor] | None:
        if self.residuals is None:
            return None
        numbers = sum(p.numel() for p in self.named)
        zeros = torch.zeros(numbers, dtype=sequence_dtype(next(iter(self.named))))
        return self.residuals or [zeros] * len(self.optimizer.algorithm.sequences)


def count_weights(group: dict[str, Any], weights: Sequence[float]) -> tuple[float, float]:
    """Store the weights of a round's workers in a group; those absent keep their last weights.

    Return the share of those present, and the old total over the new one.

    >>> group = {"counted": [2.0, 2.0]}
    >>> count_weights(group, [6.0, 0.0]), group
    ((0.75, 0.5), {'counted': [6.0, 2.0]})
    """
    before = group["counted"]
    group["counted"] = [w if w > 0 else kept for w, kept in zip(weights, before, strict=True)]
    total = sum(group["counted"])
    return sum(w for w in weights if w > 0) / total, sum(before) / total


class Buffers:
    """The buffers of a model, such as the running statistics of BatchNorm."""

    def __init__(self, model: nn.Module | None) -> None:
        if not (model is None or isinstance(model, nn.Module)):
            raise InputError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self._model = model
        found = self._find()
        self.names = [WRAPPERS.sub(r"\1", name) for name in found]
        self._averaged = [
            name
            for name, buffer in found.items()
            if buffer.is_floating_point() and bool(buffer.isfinite().all())
        ]

    def averaged(self) -> list[Tensor]:
        """Return the averaged buffers; a module may have replaced their tensors."""
        found = self._find()
        return [found[name] for name in self._averaged]

    def all(self) -> list[Tensor]:
        """Return all of them."""
        return list(self._find().values())

    def _find(self) -> dict[str, Tensor]:
        return {} if self._model is None else dict(self._model.named_buffers())


@torch.no_grad()
def settle(
    tensors: Sequence[Tensor], mean: Sequence[Tensor], progress: Sequence[Tensor] | None
) -> None:
    """Replace tensors by a mean, plus their progress since that was started.

    Variances and other nonnegative tensors stay nonnegative.
    """
    for i, (tensor, value) in enumerate(zip(tensors, mean, strict=True)):
        new = value
        if progress is not None:
            new = value + progress[i]
            if bool((value >= 0).all()) and bool((tensor >= 0).all()):
                new = torch.maximum(new, torch.minimum(value, tensor))
        tensor.copy_(new)


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
