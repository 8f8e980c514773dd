"""Averaging across processes, every K steps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.algorithms.server.rule import ServerRule
from fedac.averaging import require_weighting
from fedac.checkpoints import MissingCheckpointError
from fedac.errors import InputError, unknown_name
from fedac.require import require_count
from fedac.rounding import FLOAT32
from fedac.torch import checkpoint as files
from fedac.torch.agreement import (
    agree_on_state,
    local_steps_of,
    require_agreement,
)
from fedac.torch.averages import Average, Gathered, Mean, Reduced
from fedac.torch.communication import Workers, flatten, parts, unflatten
from fedac.torch.foreign import ForeignOptimizer, as_local
from fedac.torch.rounds import Round
from fedac.torch.schedule import SyncSchedule
from fedac.torch.settings import lr_and_mu
from fedac.wire import Sender, require_wire, require_wire_seed

ON_NONFINITE = ("raise", "skip-worker")


class Synchronizer:
    """Ends the rounds of an optimizer: averages over a process group, and serves the mean.

    All processes create one at the same time. Before the first step all of them take the
    parameters (and averaged buffers) of rank 0.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        `FedAc` or `LocalSGD`, say, with the same settings in every process; or any other, AdamW
        say, with `local_steps`.
    model : Module, optional
        The model, whose floating-point buffers (those of BatchNorm, say) are averaged too, and
        whose buffers go into checkpoints. A buffer that holds infinity (a mask, say) stays as it
        is.
    local_steps : int, optional
        Steps between two synchronizations, K, for an optimizer that is not ours.
    server : str or ServerRule, optional
        What is done with the average, "nesterov(0.7,0.9)" say, for an optimizer that is not ours.
    state : "local", "average" or "reset", optional
        Whether the state of an optimizer that is not ours (momentum, say) stays in its process
        when a round ends, as it does unless given, is averaged too, or begins anew.
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
    overlap : bool
        Whether to continue training while an average is computed. It is applied `delay_steps`
        later, plus the local progress since.
    delay_steps : int, optional
        See `overlap`; 1 unless given.
    timeout : float, optional
        Seconds until a synchronization has failed; the group's own unless given.
    wire : "float32", "bfloat16" or "int8"
        Whether messages travel as they are, or rounded to half or a quarter of float32's bytes
        (`fedac.wire`).
    wire_seed : int
        The seed of the draws by which "int8" rounds.

    Attributes
    ----------
    optimizer : LocalOptimizer
        The optimizer; if it is not ours, what is known of it here.
    rank, world_size : int
        The rank of this process, and the number of processes.
    steps : int
        Steps of the optimizer so far.
    rounds : int
        Synchronizations so far.
    bytes, seconds : int, float
        How much this process has handed over to be sent, and how long it has waited.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None = None,
        *,
        local_steps: int | None = None,
        server: str | ServerRule | None = None,
        state: str | None = None,
        group: Any = None,
        weighting: str = "uniform",
        examples: int | None = None,
        at: Iterable[int] | None = None,
        on_nonfinite: str = "raise",
        overlap: bool = False,
        delay_steps: int | None = None,
        timeout: float | None = None,
        wire: str = FLOAT32,
        wire_seed: int = 0,
    ) -> None:
        ours = as_local(optimizer, local_steps=local_steps, server=server, state=state)
        if on_nonfinite not in ON_NONFINITE:
            raise unknown_name("on_nonfinite", str(on_nonfinite), ON_NONFINITE)
        self.optimizer = ours
        self.weighting = require_weighting(weighting)
        if examples is not None and weighting != "examples":
            raise InputError("examples is for weighting='examples' only")
        self.examples = None if examples is None else require_count("examples", examples)
        self.on_nonfinite = on_nonfinite
        self.wire, self.wire_seed = require_wire(wire), require_wire_seed(wire_seed)
        self.rounds = 0
        self.bytes = 0
        self.seconds = 0.0
        self._schedule = SyncSchedule(
            local_steps_of(ours), at=at, overlap=overlap, delay_steps=delay_steps
        )
        # Parameters that were never trained are the same everywhere.
        self._trained = ours.trained_parameters()
        if not self._trained:
            raise InputError("the optimizer has no parameters that require gradients")
        if not (model is None or isinstance(model, torch.nn.Module)):
            raise InputError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self._model = model
        self._averaged_names = [
            name
            for name, buffer in (() if model is None else model.named_buffers())
            if buffer.is_floating_point() and bool(buffer.isfinite().all())
        ]
        if overlap and state == "average":
            raise InputError(
                "state='average' and overlap=True do not go together: a mean of squares plus later "
                "progress may be negative; use state='local'"
            )
        self._workers = Workers(group, device=self._trained[0].device, timeout=timeout)
        self.rank, self.world_size = self._workers.rank, self._workers.size
        self._pending: tuple[Round, Average] | None = None
        self._counted = 0
        self._averaged_at = ours.steps  # when the last average was started
        self._on_disk: dict[Path, int] = {}  # the steps of checkpoints, by file
        self._equal_at: int | None = None  # the step after which all states were equal
        if self.wire != FLOAT32:  # all ranks must know what differences are taken to
            ours.keep_broadcasts()
        require_agreement(
            self._workers,
            ours,
            trained=self._trained,
            buffers=self._buffers,
            options={
                "schedule": self._schedule.at or "regular",
                "weighting": self.weighting,
                "on_nonfinite": self.on_nonfinite,
                "delay_steps": self._schedule.delay,
                "timeout": None if timeout is None else float(timeout),
                "wire": self.wire,
                "wire_seed": self.wire_seed,
            },
        )
        if ours.steps == 0:
            self._start_from_first()
        if isinstance(ours, ForeignOptimizer):
            ours.attach()

    @property
    def steps(self) -> int:
        """Steps of the optimizer so far."""
        return self.optimizer.steps

    def count(self, examples: int) -> None:
        """Add the examples of a step, for weighting="examples" without a fixed number of them."""
        self._counted += require_count("examples", examples, least=0)

    def step(self) -> bool:
        """Synchronize if it is time to; call it after every optimizer step.

        Returns whether an average was applied.
        """
        before = self.rounds
        steps = self.optimizer.steps
        if self._pending is not None and steps >= self._pending[1].steps + self._schedule.delay:
            self.flush()
        if self._schedule.is_due(steps):
            self.flush()
            self._start_average()
            if not self._schedule.delay:
                self.flush()
        return self.rounds > before

    def synchronize(self) -> None:
        """Average now, whatever the schedule; all processes must call it.

        Right after a round it sends nothing, unless buffers are averaged, which a forward pass may
        have changed. If no step was taken, a server's momentum never acts twice.
        """
        self.flush()
        self._start_average()
        self.flush()

    def flush(self) -> None:
        """Wait for the average that is being computed, if there is one, and apply it."""
        if self._pending is None:
            return
        (this_round, average), self._pending = self._pending, None
        self.seconds += average.wait()
        mean = average.mean(self.on_nonfinite)
        moved = self.optimizer.steps != average.steps
        progress = average.progress(self._moving()) if moved else None
        # By the steps, not by `rounds`: a second synchronizer starts to count at 0.
        r = self._schedule.rounds(average.steps)
        if self.optimizer.takes_mean:
            values = mean.values if progress is None else mean.values.add_(progress)
            unflatten(values, self._moving())
            self.optimizer.lower_lr(r)
        else:
            self._serve(this_round, mean, progress, r)
        this_round.close()
        self.optimizer.refresh()
        if self.optimizer.inside is not None:
            self.optimizer.inside.end_round(used=mean.used)
        self._equal_at = None if moved else self.optimizer.steps
        self.rounds += 1

    def checkpoint(self, path: str | Path, **extra: Any) -> None:
        """Write all that `resume` needs, atomically; only right after a synchronization.

        All processes call it and rank 0 writes. If the algorithm has memory, every rank first
        writes its own beside it, to `path.rank1.step128`, say. `extra` may hold numbers, texts and
        tensors, such as the state of a scheduler.
        """
        steps = self.optimizer.steps
        if self._pending is not None and self._pending[1].steps == steps:
            self.flush()
        if self._equal_at != steps:
            raise InputError(
                f"workers differ after {steps} steps; write checkpoints right after a "
                "synchronization"
            )
        files.save(
            Path(path),
            self.optimizer,
            self._all_buffers(),
            self._workers,
            last=self._on_disk.get(Path(path).absolute()),
            rounds=self.rounds,
            extra=extra,
        )
        self._on_disk[Path(path).absolute()] = steps

    def resume(self, path: str | Path, *, missing_ok: bool = False) -> dict[str, Any] | None:
        """Continue from a checkpoint and return its `extra`; all processes must call it.

        If one process cannot read it, all refuse and none is changed. With `missing_ok`, return
        None if there is no file: the run starts from scratch.
        """
        r = self._schedule.rounds
        try:
            content = files.load(Path(path), self.optimizer, self._all_buffers(), self._workers, r)
        except MissingCheckpointError:
            if missing_ok:
                return None
            raise
        self.rounds = content["rounds"]
        self._pending = None
        self._counted = 0
        self._averaged_at = self._equal_at = self.optimizer.steps
        self._on_disk[Path(path).absolute()] = self.optimizer.steps
        return dict(content["extra"])

    def _serve(self, this_round: Round, mean: Mean, progress: Tensor | None, r: int) -> None:
        """End a round with more than the mean; r is the next one's, for an lr that falls."""
        beside = self._beside()
        received = parts(mean.values, [*this_round.message, *beside])
        messages = received[: len(this_round.message)]
        this_round.serve(messages, share=mean.share, used=mean.used)
        self.optimizer.lower_lr(r)
        moved = None if progress is None else parts(progress, self._moving())
        this_round.enter_next(moved)
        numbers = sum(tensor.numel() for tensor in beside)
        values = mean.values[len(mean.values) - numbers :]
        if progress is not None:
            values += progress[len(progress) - numbers :]
        unflatten(values, beside)

    def _start_average(self) -> None:
        steps = self.optimizer.steps
        taken = steps > self._averaged_at or any(g["taken"] for g in self.optimizer.param_groups)
        equal = self._equal_at == steps and not self._buffers
        if not taken and (equal or not self.optimizer.takes_mean):
            if not self._buffers:  # the last round has made all states equal
                self._equal_at = steps
            return
        if local_steps_of(self.optimizer) != self._schedule.local_steps:
            raise InputError("local_steps has changed; make a new Synchronizer in all processes")
        if set(self.optimizer.trained_parameters()) - set(self._trained):
            raise InputError(
                "parameters were added or unfrozen; make a new Synchronizer in all processes"
            )
        self._workers.activity = f"synchronization {self.rounds + 1}"
        inside = self.optimizer.inside
        if inside is not None and inside.state == "average" and inside.names is None:
            agree_on_state(self._workers, inside)
        this_round = Round(self.optimizer, self._trained)
        average = self._average_of(this_round)
        self._pending, self._averaged_at = (this_round, average), steps
        self.bytes += average.bytes

    def _average_of(self, this_round: Round) -> Average:
        common: dict[str, Any] = {
            "weight": self._next_weight(),
            "settings": lr_and_mu(self.optimizer.param_groups),
            "steps": self.optimizer.steps,
            "moving": self._moving() if self._schedule.delay else (),
        }
        if self.wire == FLOAT32:
            tensors = [*this_round.message, *self._beside()]
            return Reduced(self._workers, tensors, private=this_round.private, **common)
        sender = Sender(self.wire, self.wire_seed, m=self.rank, r=self.optimizer.rounds)
        return Gathered(self._workers, this_round.pack(sender, self._beside()), **common)

    def _next_weight(self) -> float:
        """Return how much this worker counts; 1 if it has taken no step since the last average."""
        if self.examples is not None:
            return float(self.examples)
        counted = self.weighting == "examples" and self.optimizer.steps > self._averaged_at
        weight = float(self._counted) if counted else 1.0
        self._counted = 0
        return weight

    def _moving(self) -> list[Tensor]:
        """Return all that local steps and forward passes move."""
        return [*(s for p in self._trained for s in self.optimizer.sequences(p)), *self._beside()]

    def _all_buffers(self) -> list[Tensor]:
        return [] if self._model is None else list(self._model.buffers())

    @property
    def _buffers(self) -> list[Tensor]:
        """The buffers that are averaged; a module may have put new tensors in their place."""
        found = {} if self._model is None else dict(self._model.named_buffers())
        return [found[name] for name in self._averaged_names]

    def _beside(self) -> list[Tensor]:
        """Return what is averaged besides the message: buffers, and state of a user's optimizer."""
        inside = self.optimizer.inside
        return [*self._buffers, *(inside.averaged(set(self._trained)) if inside else ())]

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


def synchronize(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None, **options: Any
) -> Synchronizer:
    """Make an optimizer average over all processes every `local_steps` steps, by itself.

    Options are those of `Synchronizer`, which is returned. A second call replaces the first one's
    synchronizer; with overlap, `flush` that one before.
    """
    synchronizer = Synchronizer(optimizer, model, **options)
    synchronizer.optimizer.after_step = synchronizer.step
    return synchronizer
