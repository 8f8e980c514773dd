"""Averaging across processes, every K steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.algorithms.fingerprints import fingerprint
from fedac.averaging import require_weighting
from fedac.checkpoints import MissingCheckpointError
from fedac.errors import InputError, unknown_name
from fedac.require import require_count
from fedac.torch import checkpoint as files
from fedac.torch.communication import Average, Workers, flatten, require_same, unflatten
from fedac.torch.optimizer import LocalOptimizer
from fedac.torch.schedule import SyncSchedule

ON_NONFINITE = ("raise", "skip-worker")


class Synchronizer:
    """Averages the sequences of an optimizer over a process group.

    All processes create one at the same time. Before the first step all of them take the
    parameters (and averaged buffers) of rank 0.

    Parameters
    ----------
    optimizer : LocalOptimizer
        `FedAc` or `LocalSGD`, say, with the same settings in every process.
    group : ProcessGroup, optional
        The default group unless given.
    weighting : "uniform" or "examples"
        Whether workers count equally, or by their examples.
    examples : int, optional
        How many examples this worker has, for weighting="examples"; unless given, it counts by
        the examples given to `count` since the last round.
    at : iterable of int, optional
        Steps after which to synchronize, instead of every `local_steps`, with gaps of at most
        `local_steps`. After the last one, every `local_steps` again.
    on_nonfinite : "raise" or "skip-worker"
        Whether NaN or infinity in a worker's state stops all workers, or the worker is left out
        of the average and continues from it.
    buffers : Module, optional
        A model whose floating-point buffers (those of BatchNorm, say) are averaged too, and whose
        buffers go into checkpoints. A buffer that holds infinity (a mask, say) stays as it is.
    overlap : bool
        Whether to continue training while an average is computed. It is applied `delay` steps
        later, plus the local progress since.
    delay : int, optional
        See `overlap`; 1 unless given.
    timeout : float, optional
        Seconds until a synchronization has failed; the group's own unless given.

    Attributes
    ----------
    rank, world_size : int
        The rank of this process, and the number of processes.
    rounds : int
        Synchronizations so far.
    bytes, seconds : int, float
        How much this process has sent, and how long it has waited.
    """

    def __init__(
        self,
        optimizer: LocalOptimizer,
        *,
        group: Any = None,
        weighting: str = "uniform",
        examples: int | None = None,
        at: Iterable[int] | None = None,
        on_nonfinite: str = "raise",
        buffers: torch.nn.Module | None = None,
        overlap: bool = False,
        delay: int | None = None,
        timeout: float | None = None,
    ) -> None:
        if not isinstance(optimizer, LocalOptimizer):
            kind = type(optimizer).__name__
            raise InputError(f"only optimizers of fedac.torch can be synchronized, got {kind}")
        if on_nonfinite not in ON_NONFINITE:
            raise unknown_name("on_nonfinite", str(on_nonfinite), ON_NONFINITE)
        self.optimizer = optimizer
        self.weighting = require_weighting(weighting)
        if examples is not None and weighting != "examples":
            raise InputError("examples is for weighting='examples' only")
        self.examples = None if examples is None else require_count("examples", examples)
        self.on_nonfinite = on_nonfinite
        self.rounds = 0
        self.bytes = 0
        self.seconds = 0.0
        self._schedule = SyncSchedule(_local_steps(optimizer), at=at, overlap=overlap, delay=delay)
        # Parameters that were never trained are the same everywhere.
        self._trained = optimizer.trained_parameters()
        if not self._trained:
            raise InputError("the optimizer has no parameters that require gradients")
        self._all_buffers = [] if buffers is None else list(buffers.buffers())
        self._buffers = [
            b for b in self._all_buffers if b.is_floating_point() and bool(b.isfinite().all())
        ]
        self._workers = Workers(group, device=self._trained[0].device, timeout=timeout)
        self.rank, self.world_size = self._workers.rank, self._workers.size
        self._pending: Average | None = None
        self._counted = 0
        self._counted_until = optimizer.steps
        self._equal_at: int | None = None  # the step after which all states were equal
        self._require_agreement(timeout)
        if optimizer.steps == 0:
            self._start_from_first()

    def count(self, examples: int) -> None:
        """Add the examples of a step, for weighting="examples" without a fixed number of them."""
        self._counted += require_count("examples", examples, least=0)

    def step(self) -> bool:
        """Synchronize if it is time to; call it after every optimizer step.

        Returns whether an average was applied.
        """
        before = self.rounds
        steps = self.optimizer.steps
        if self._pending is not None and steps >= self._pending.steps + self._schedule.delay:
            self.flush()
        if self._schedule.is_due(steps):
            self.flush()
            self._start_average()
            if not self._schedule.delay:
                self.flush()
        return self.rounds > before

    def synchronize(self) -> None:
        """Average now, whatever the schedule; all processes must call it."""
        self.flush()
        self._start_average()
        self.flush()

    def flush(self) -> None:
        """Wait for the average that is being computed, if there is one, and apply it."""
        if self._pending is None:
            return
        average, self._pending = self._pending, None
        self.seconds += average.wait()
        mean = average.mean(self.on_nonfinite)
        moved = self.optimizer.steps != average.steps
        if moved:
            mean += average.progress(self._tensors())
        unflatten(mean, self._tensors())
        self._begin_round(average.steps)
        self._equal_at = None if moved else self.optimizer.steps
        self.rounds += 1

    def checkpoint(self, path: str | Path, **extra: Any) -> None:
        """Write all that `resume` needs, atomically; only right after a synchronization.

        All processes call it and rank 0 writes. `extra` may hold numbers, texts and tensors, such
        as the state of a scheduler.
        """
        steps = self.optimizer.steps
        if self._pending is not None and self._pending.steps == steps:
            self.flush()
        if self._equal_at != steps:
            raise InputError(
                f"workers differ after {steps} steps; write checkpoints right after a "
                "synchronization"
            )
        if self.rank == 0:
            buffers = self._all_buffers
            files.save(Path(path), self.optimizer, buffers, rounds=self.rounds, extra=extra)

    def resume(self, path: str | Path, *, missing_ok: bool = False) -> dict[str, Any] | None:
        """Continue from a checkpoint and return its `extra`; all processes must call it.

        If one process cannot read it, all refuse and none is changed. With `missing_ok`, return
        None if there is no file: the run starts from scratch.
        """
        try:
            content = files.load(Path(path), self.optimizer, self._all_buffers, self._workers)
        except MissingCheckpointError:
            if missing_ok:
                return None
            raise
        self.rounds = content["rounds"]
        self._pending = None
        self._counted = 0
        self._counted_until = self._equal_at = self.optimizer.steps
        self._begin_round(self.optimizer.steps)
        return dict(content["extra"])

    def _begin_round(self, steps: int) -> None:
        # By the steps, not by `rounds`: a second synchronizer starts to count at 0.
        self.optimizer.begin_round(self._schedule.rounds(steps))

    def _start_average(self) -> None:
        if _local_steps(self.optimizer) != self._schedule.local_steps:
            raise InputError("local_steps has changed; make a new Synchronizer in all processes")
        if set(self.optimizer.trained_parameters()) - set(self._trained):
            raise InputError(
                "parameters were added or unfrozen; make a new Synchronizer in all processes"
            )
        self._workers.activity = f"synchronization {self.rounds + 1}"
        self._pending = Average(
            self._workers,
            self._tensors(),
            weight=self._next_weight(),
            settings=_describe_settings(self.optimizer),
            steps=self.optimizer.steps,
            keep=self._schedule.delay > 0,
        )
        self.bytes += self._pending.bytes

    def _next_weight(self) -> float:
        """Return how much this worker counts; 1 if it has taken no step since the last average."""
        if self.examples is not None:
            return float(self.examples)
        counted = self.weighting == "examples" and self.optimizer.steps > self._counted_until
        weight = float(self._counted) if counted else 1.0
        self._counted, self._counted_until = 0, self.optimizer.steps
        return weight

    def _tensors(self) -> list[Tensor]:
        return [*(s for p in self._trained for s in self.optimizer.sequences(p)), *self._buffers]

    def _start_from_first(self) -> None:
        """Take the parameters of rank 0, as DistributedDataParallel does."""
        params = [p for p in self.optimizer.parameters() if p.is_floating_point()]
        tensors = [*params, *self._buffers]
        flat = flatten(tensors, self._workers.device)
        with self._workers.guard():
            first = dist.get_global_rank(self._workers.group, 0)
            dist.broadcast(flat, first, group=self._workers.group)
        unflatten(flat, tensors)
        self.optimizer.restart()
        self._equal_at = 0

    def _require_agreement(self, timeout: float | None) -> None:
        """Refuse processes that differ now: later they would wait for each other."""
        mine = {
            "algorithm": self.optimizer.algorithm.name,
            "local_steps": self._schedule.local_steps,
            "settings": _describe_settings(self.optimizer),
            "what a step computes": fingerprint(self.optimizer.algorithm),
            "parameters": _describe_tensors(self.optimizer.parameters()),
            "trained parameters": _describe_tensors(self._trained),
            "buffers": _describe_tensors(self._buffers),
            "schedule": self._schedule.at or "regular",
            "weighting": self.weighting,
            "on_nonfinite": self.on_nonfinite,
            "delay": self._schedule.delay,
            "timeout": None if timeout is None else float(timeout),
            "steps": self.optimizer.steps,
        }
        reports = self._workers.exchange(mine)
        for name in mine:
            require_same(name, [theirs[name] for theirs in reports])


def synchronize(optimizer: LocalOptimizer, **options: Any) -> Synchronizer:
    """Make an optimizer average over all processes every `local_steps` steps, by itself.

    Options are those of `Synchronizer`, which is returned. A second call replaces the first one's
    synchronizer; with overlap, `flush` that one before.
    """
    synchronizer = Synchronizer(optimizer, **options)
    optimizer.after_step = synchronizer.step
    return synchronizer


def _local_steps(optimizer: LocalOptimizer) -> int:
    steps: set[int] = {group["local_steps"] for group in optimizer.param_groups}
    if len(steps) != 1:
        raise InputError(f"all parameter groups must have the same local_steps, got {steps}")
    return steps.pop()


def _describe_settings(optimizer: LocalOptimizer) -> str:
    """Return lr and mu of all groups; the other hyperparameters follow from them."""
    settings = [(float(group["lr"]), float(group["mu"])) for group in optimizer.param_groups]
    return " | ".join(f"lr={lr!r} mu={mu!r}" for lr, mu in settings)


def _describe_tensors(tensors: Sequence[Tensor]) -> str:
    """Return types and shapes: "float32 [2, 3], float32 [2]"."""
    return ", ".join(f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in tensors)
