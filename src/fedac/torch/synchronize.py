"""Averaging across processes: one all-reduce of one flat buffer every K steps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from fedac.errors import InputError
from fedac.require import require_count, require_positive
from fedac.torch import checkpoint as files
from fedac.torch.agreement import (
    describe_numbers,
    describe_steps,
    describe_tensors,
    mark,
    require_same,
)
from fedac.torch.flat import flatten, unflatten
from fedac.torch.group import Group
from fedac.torch.optimizer import LocalOptimizer

# In the header, in the place of its weight: the state of this rank is not finite.
NOT_FINITE = -1.0


class NonFiniteStateError(RuntimeError):
    """A worker's state holds NaN or infinity; nobody's state was changed."""


class Synchronizer:
    """Averages the sequences of an optimizer over a process group.

    All processes make one at the same time. They start alike: before the first step everybody
    takes the parameters (and averaged buffers) of rank 0.

    Parameters
    ----------
    optimizer : LocalOptimizer
        `FedAc` or `LocalSGD`, in every process with the same numbers.
    group : ProcessGroup, optional
        The default group unless given.
    weighting : "uniform" or "examples"
        Workers count alike, or by the examples that `count` was told since the last round.
    at : iterable of int, optional
        Steps after which to synchronize, instead of every `local_steps`; no two further apart.
        After the last it is every `local_steps` again.
    on_nonfinite : "raise" or "skip-worker"
        Whether a state that is not finite stops everybody, or is left out of the average, which
        its worker then takes over.
    buffers : Module, optional
        A model whose floating-point buffers (BatchNorm's, say) are averaged too, and whose
        buffers go into checkpoints. One that holds infinity (a mask, say) is left as it is.
    overlap : bool
        Whether to go on training while the average is on its way. It is applied `delay` steps
        later, with the local progress made since added to it.
    delay : int, optional
        See `overlap`; 1 unless given.
    timeout : float, optional
        Seconds after which a synchronization has failed; the group's own unless given.

    Attributes
    ----------
    rounds : int
        Synchronizations so far.
    bytes, seconds : int, float
        What this process has handed to all-reduces, and how long it has waited for them.
    """

    def __init__(
        self,
        optimizer: LocalOptimizer,
        *,
        group: Any = None,
        weighting: str = "uniform",
        at: Iterable[int] | None = None,
        on_nonfinite: str = "raise",
        buffers: torch.nn.Module | None = None,
        overlap: bool = False,
        delay: int | None = None,
        timeout: float | None = None,
    ) -> None:
        for name, value, known in (
            ("weighting", weighting, ("uniform", "examples")),
            ("on_nonfinite", on_nonfinite, ("raise", "skip-worker")),
        ):
            if value not in known:
                raise InputError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")
        if not isinstance(optimizer, LocalOptimizer):
            raise InputError(
                f"only FedAc and LocalSGD can be synchronized, got {type(optimizer).__name__}"
            )
        if not isinstance(buffers, torch.nn.Module | None):
            raise InputError(f"buffers must be a model, got {type(buffers).__name__}")
        # A parameter that was always frozen is the same everywhere.
        self._trained = [p for p in optimizer.parameters() if optimizer.moves(p)]
        if not self._trained:
            raise InputError("the optimizer has no parameters that require gradients")
        self.optimizer = optimizer
        self.weighting = weighting
        self.on_nonfinite = on_nonfinite
        self.rounds = 0
        self.bytes = 0
        self.seconds = 0.0
        self._examples = 0
        self._weighed_at = optimizer.steps
        # Averaged are floating-point buffers only; checkpoints hold all of them.
        self._all_buffers = [] if buffers is None else list(buffers.buffers())
        self._buffers = [
            buffer
            for buffer in self._all_buffers
            if buffer.is_floating_point() and bool(torch.isfinite(buffer).all())
        ]
        self._local_steps = _local_steps(optimizer)
        self._at = None if at is None else _schedule(at, self._local_steps)
        self._last = 0 if self._at is None else max(self._at)
        self._delay = _delay(delay, overlap=overlap, local_steps=self._local_steps)
        self._device = self._trained[0].device
        self._pending: _Pending | None = None
        self._timeout = None if timeout is None else require_positive("timeout", timeout)
        self._group = Group(group, timeout=self._timeout)
        self.rank, self.world_size = self._group.rank, self._group.size
        self._require_agreement()
        # The step after which all states were the same, for checkpoints.
        self._alike_at: int | None = None
        if optimizer.steps == 0:
            self._start_alike()

    def count(self, examples: int) -> None:
        """Tell how many examples a step has used, where workers are weighted by them."""
        self._examples += require_count("examples", examples, least=0)

    def step(self) -> bool:
        """Synchronize if it is time to; call it after every optimizer step.

        Returns whether an average was applied.
        """
        before = self.rounds
        steps = self.optimizer.steps
        if self._pending is not None and steps >= self._pending.due:
            self.flush()
        if self._is_due(steps):
            self.flush()
            self._begin()
            if not self._delay:
                self.flush()
        return self.rounds > before

    def synchronize(self) -> None:
        """Average now, whatever the schedule says; all processes must call it."""
        self.flush()
        self._begin()
        self.flush()

    def flush(self) -> None:
        """Apply an average that is still on its way, if there is one."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        before = time.perf_counter()
        self._group.finish(pending.work, self._next())
        self.seconds += time.perf_counter() - before
        self._apply(pending)
        self.rounds += 1

    def checkpoint(self, path: str | Path, **extra: Any) -> None:
        """Write all that `resume` needs, atomically; right after a synchronization only.

        The first process writes for all: after a synchronization they agree. `extra` may hold
        numbers, texts and tensors, such as the position of a sampler.
        """
        steps = self.optimizer.steps
        if self._pending is not None and self._pending.begun == steps:
            self.flush()
        if self._alike_at != steps:
            raise InputError(
                f"workers differ after {steps} steps; write checkpoints right after a "
                "synchronization"
            )
        if self.rank == 0:
            files.save(
                Path(path), self.optimizer, self._all_buffers, rounds=self.rounds, extra=extra
            )

    def resume(self, path: str | Path, *, missing_ok: bool = False) -> dict[str, Any] | None:
        """Go on from a checkpoint and return its `extra`; all processes must call it.

        Where one process cannot read it, all refuse, and nobody is changed. With `missing_ok`,
        no file at all means a fresh start: None is returned.
        """
        content: dict[str, Any] | None = None
        said = {"trouble": "", "steps": -1, "missing": False}
        try:
            content = files.read(Path(path), self.optimizer, self._all_buffers)
            said["steps"] = content["steps"]
        except InputError as error:
            said["trouble"] = str(error)
            said["missing"] = isinstance(error, files.MissingCheckpointError)
        everybody = self._ask(said)
        if missing_ok and all(theirs["missing"] for theirs in everybody):
            return None
        if said["trouble"]:
            raise InputError(said["trouble"])
        for rank, theirs in enumerate(everybody):
            if theirs["trouble"]:
                raise InputError(f"rank {rank} cannot resume: {theirs['trouble']}")
        require_same("the steps of their checkpoints", [t["steps"] for t in everybody])
        assert content is not None
        files.restore(content, self.optimizer, self._all_buffers)
        self.rounds = content["rounds"]
        self._pending = None
        self._examples = 0
        self._weighed_at = self._alike_at = self.optimizer.steps
        extra: dict[str, Any] = content["extra"]
        return extra

    def _is_due(self, steps: int) -> bool:
        if self._at is None:
            return steps % self._local_steps == 0
        beyond = steps - self._last
        return steps in self._at or (beyond > 0 and beyond % self._local_steps == 0)

    def _begin(self) -> None:
        """Send this process's share of an average on its way."""
        if _local_steps(self.optimizer) != self._local_steps:
            raise InputError("local_steps was changed; make a new Synchronizer in all processes")
        trained = set(self._trained)
        if any(self.optimizer.moves(p) and p not in trained for p in self.optimizer.parameters()):
            raise InputError(
                "parameters were added, or were trained that had been frozen; make a new "
                "Synchronizer in all processes"
            )
        pending = self._pack()
        self.bytes += pending.buffer.numel() * pending.buffer.element_size()
        pending.work = self._group.start_sum(pending.buffer, self._next())
        self._pending = pending

    def _tensors(self) -> list[Tensor]:
        return [*(s for p in self._trained for s in self.optimizer.sequences(p)), *self._buffers]

    def _pack(self) -> _Pending:
        """Write weight and mark of every rank (all others fill in zero), then the sequences."""
        buffer = flatten(self._tensors(), self._device, ahead=2 * self.world_size)
        body = buffer[2 * self.world_size :]
        weight = self._weight()
        before = body.clone() if self._delay else None
        if bool(torch.isfinite(body).all()):
            if weight != 1:
                body *= weight
        else:
            body.zero_()  # NaN would spoil the sum of all
            weight = NOT_FINITE
        buffer[self.rank] = weight
        buffer[self.world_size + self.rank] = mark(self.optimizer)
        steps = self.optimizer.steps
        return _Pending(buffer, before, begun=steps, due=steps + self._delay)

    def _weight(self) -> float:
        """Return how much this worker counts; one whose steps are all averaged counts like any."""
        by_examples = self.weighting == "examples" and self.optimizer.steps > self._weighed_at
        weight = float(self._examples) if by_examples else 1.0
        self._examples, self._weighed_at = 0, self.optimizer.steps
        return weight

    def _apply(self, pending: _Pending) -> None:
        header = pending.buffer[: 2 * self.world_size].tolist()
        weights, marks = header[: self.world_size], header[self.world_size :]
        mean = pending.buffer[2 * self.world_size :]
        if len(set(marks)) > 1:
            raise InputError(
                f"processes differ in lr after {pending.begun} steps; this one has "
                f"{describe_numbers(self.optimizer)}. Schedulers must do the same in all of them. "
                "No state was averaged"
            )
        bad = [rank for rank, weight in enumerate(weights) if weight == NOT_FINITE]
        total = sum(weight for weight in weights if weight != NOT_FINITE)
        if bad and (self.on_nonfinite == "raise" or total <= 0):
            advice = "" if self.on_nonfinite == "skip-worker" else ", or on_nonfinite='skip-worker'"
            raise NonFiniteStateError(
                f"the state of rank {', '.join(map(str, bad))} holds NaN or infinity after "
                f"{pending.begun} steps; no state was averaged. Use a smaller lr{advice}"
            )
        if total <= 0:
            raise InputError("no worker counted any examples; call count(examples) every step")
        mean /= total
        if not bool(torch.isfinite(mean).all()):
            raise NonFiniteStateError(
                f"the sum of all states overflows {mean.dtype} after {pending.begun} steps; no "
                "state was averaged. Use a smaller lr"
            )
        moved = self.optimizer.steps != pending.begun
        if pending.before is not None and moved and self.rank not in bad:
            # What this worker has done since the average set out is added to it.
            mean += flatten(self._tensors(), self._device) - pending.before
        unflatten(mean, self._tensors())
        self.optimizer.refresh()
        self._alike_at = None if moved else self.optimizer.steps

    def _start_alike(self) -> None:
        """Take the parameters of rank 0, as DistributedDataParallel does."""
        params = [p for p in self.optimizer.parameters() if p.is_floating_point()]
        tensors = [*params, *self._buffers]
        flat = flatten(tensors, self._device)
        self._group.take_from_first(flat)
        unflatten(flat, tensors)
        self.optimizer.restart()
        self._alike_at = 0

    def _require_agreement(self) -> None:
        """Refuse processes with different numbers now: later they would wait for each other."""
        mine = {
            "algorithm": self.optimizer.algorithm.name,
            "local_steps": self._local_steps,
            "hyperparameters": describe_numbers(self.optimizer),
            "parameters": describe_tensors(self.optimizer.parameters()),
            "trained parameters": describe_tensors(self._trained),
            "buffers": describe_tensors(self._buffers),
            "schedule": "regular" if self._at is None else describe_steps(self._at),
            "weighting": self.weighting,
            "on_nonfinite": self.on_nonfinite,
            "delay": self._delay,
            "timeout": self._timeout,
            "steps": self.optimizer.steps,
        }
        everybody = self._ask(mine)
        for name in mine:
            require_same(name, [theirs[name] for theirs in everybody])

    def _ask(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what all processes say, by rank."""
        return [json.loads(text) for text in self._group.ask(json.dumps(mine), self._device)]

    def _next(self) -> str:
        return f"synchronization {self.rounds + 1}"


class _Pending:
    """An average on its way."""

    work: Any

    def __init__(self, buffer: Tensor, before: Tensor | None, *, begun: int, due: int) -> None:
        self.buffer = buffer
        self.before = before
        self.begun = begun
        self.due = due


def synchronize(optimizer: LocalOptimizer, **options: Any) -> Synchronizer:
    """Have an optimizer average over all processes by itself, every `local_steps` steps.

    Options are those of `Synchronizer`, which is returned. Called again, it takes the place of
    the one before; with overlap, `flush` that one first.
    """
    synchronizer = Synchronizer(optimizer, **options)

    def after_step(*_: Any) -> None:
        synchronizer.step()

    if optimizer in _hooks:
        _hooks.pop(optimizer).remove()
    _hooks[optimizer] = optimizer.register_step_post_hook(after_step)
    return synchronizer


_hooks: WeakKeyDictionary[LocalOptimizer, RemovableHandle] = WeakKeyDictionary()


def _delay(delay: int | None, *, overlap: bool, local_steps: int) -> int:
    if not overlap:
        if delay is not None:
            raise InputError("delay is for overlap=True only")
        return 0
    number = 1 if delay is None else require_count("delay", delay)
    if number >= local_steps:
        raise InputError(
            f"delay must be from 1 to local_steps - 1 = {local_steps - 1}, got {delay}"
        )
    return number


def _local_steps(optimizer: LocalOptimizer) -> int:
    steps = {require_count("local_steps", group["local_steps"]) for group in optimizer.param_groups}
    if len(steps) != 1:
        raise InputError(f"all parameter groups must have the same local_steps, got {steps}")
    return steps.pop()


def _schedule(at: Iterable[int], local_steps: int) -> frozenset[int]:
    if isinstance(at, str) or not isinstance(at, Iterable):
        raise InputError(f"at must be a list of steps, got {at!r}")
    steps = sorted({require_count("every step in at", step) for step in at})
    if not steps:
        raise InputError("at must hold a step")
    gap = max(b - a for a, b in pairwise([0, *steps]))
    if gap > local_steps:
        raise InputError(
            f"two synchronizations are {gap} steps apart, more than local_steps={local_steps}"
        )
    return frozenset(steps)
