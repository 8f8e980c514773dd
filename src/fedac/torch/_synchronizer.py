# SPDX-License-Identifier: Apache-2.0
"""`synchronize` and its `Synchronizer`: averaging over all processes every K steps."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedac.algorithms.checks import require_equal_steps
from fedac.algorithms.server import ServerRule
from fedac.errors import InputError
from fedac.federation.checkpoint import MissingCheckpointError
from fedac.federation.compression import FLOAT32, INT8, require_wire, require_wire_seed
from fedac.federation.round import require_weighting
from fedac.torch import _agreement, _checkpoint
from fedac.torch._any_optimizer import WrappedOptimizer, as_local
from fedac.torch._communication import Workers, require_same
from fedac.torch._round import Buffers, Rounds, Synchronization, SyncSchedule, plain_name
from fedac.validate import require_count, require_positive, unknown_name

ON_NONFINITE = ("raise", "skip-worker")
MISSING = ("raise", "reset")
# Attributes of a DTensor, and of the parameters of FullyShardedDataParallel.
SHARDED = ("placements", "_fsdp_flattened")


class Synchronizer:
    """Ends the rounds of an optimizer: averages over a process group, and serves the mean.

    All processes create one at the same time. Before the first step all of them take the
    parameters (and averaged buffers) of rank 0. Later, states that differ are averaged at once.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        An optimizer of `fedac.torch`, such as `FedAc`, with the same settings in every process; or
        any other, such as AdamW, with `local_steps`.
    model : Module, optional
        The model. Its floating-point buffers (BatchNorm's statistics, for example) are averaged
        too, except for buffers with infinities, such as masks. Checkpoints hold all buffers.
    local_steps : int, optional
        Steps between two synchronizations, K, for an optimizer of PyTorch.
    server : str or ServerRule, optional
        The server rule, such as "nesterov(0.7,0.9)", for an optimizer of PyTorch.
    state : "local" or "average" or "reset", optional
        What happens to the state of an optimizer of PyTorch (momentum, for example) when a round
        ends: it stays in its process, is averaged too, or is reset. Default: "local".
    group : ProcessGroup, optional
        The workers. Default: the default group.
    node : ProcessGroup, optional
        The processes of this node, if they train as one with DistributedDataParallel. Then `group`
        has one process of every node.
    weighting : "uniform" or "examples"
        Whether workers have equal weights, or weights in proportion to their examples.
    examples : int, optional
        The number of examples of this worker, for weighting="examples". If omitted, the examples
        passed to `count` since the last round.
    at : iterable of int, optional
        Steps after which to synchronize, instead of every `local_steps`, with gaps of at most
        `local_steps`. After the last one, every `local_steps` again.
    on_nonfinite : "raise" or "skip-worker"
        Whether NaN or infinity in a worker's state stops all workers, or the worker is left out of
        the average, with a warning, and continues from it.
    overlap : bool
        Whether to continue training while an average is computed. It is applied `delay_steps`
        later, plus the local progress since.
    delay_steps : int, optional
        See `overlap`. Default: 1.
    timeout : float, optional
        Seconds until a synchronization fails. Default: the group's timeout.
    wire : "float32" or "bfloat16" or "int8"
        The format of messages: unrounded, or rounded to half or a quarter of the bytes.
        "bfloat16" is summed by an all-reduce, except with control variates.
    wire_seed : int
        The seed of the random rounding of "int8".
    error_feedback : bool
        Whether a worker adds the rounding error of its last "int8" message to the next one.

    Attributes
    ----------
    optimizer : LocalOptimizer
        The optimizer; a wrapper if it is one of PyTorch.
    rounds : int
        Synchronizations so far.
    bytes : int
        How much this process has handed over to be sent.
    seconds : float
        How long it has waited.
    history : list of Synchronization
        One row for each synchronization of this synchronizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module | None = None,
        *,
        local_steps: int | None = None,
        server: str | ServerRule | None = None,
        state: str | None = None,
        group: Any = None,
        node: Any = None,
        weighting: str = "uniform",
        examples: int | None = None,
        at: Iterable[int] | None = None,
        on_nonfinite: str = "raise",
        overlap: bool = False,
        delay_steps: int | None = None,
        timeout: float | None = None,
        wire: str = FLOAT32,
        wire_seed: int = 0,
        error_feedback: bool = False,
    ) -> None:
        self.optimizer = as_local(optimizer, local_steps=local_steps, server=server, state=state)
        if on_nonfinite not in ON_NONFINITE:
            raise unknown_name("on_nonfinite", str(on_nonfinite), ON_NONFINITE)
        self._examples = Examples(weighting, examples)
        self.timeout = None if timeout is None else require_positive("timeout", timeout)
        for name, value in (("overlap", overlap), ("error_feedback", error_feedback)):
            if not isinstance(value, bool):
                raise InputError(f"{name} must be True or False, got {value!r}")
        wire = require_wire(wire)
        _require_compatible(state, overlap=overlap, wire=wire, error_feedback=error_feedback)
        self.rounds = self.bytes = 0
        self.seconds = 0.0
        self.history: list[Synchronization] = []
        # A round whose mean is being computed.
        self._pending: Generator[int, None, tuple[Synchronization, bool] | None] | None = None
        self._weight = 1.0  # of this worker in the last average
        self._has_nodes = node is not None
        self._joining = self._finished = self._everyone_finished = False
        self._averaged_at = self.steps  # the step after which the last average was started
        self._equal_at: int | None = None  # the step after which all states were equal
        self._on_disk: dict[Path, int] = {}  # the steps of checkpoints, by file

        K, params = _agreement.local_steps_of(self.optimizer), self.optimizer.parameters()
        schedule = SyncSchedule(K, at=at, overlap=overlap, delay_steps=delay_steps)
        trained = _require_trainable(self.optimizer.trained_parameters())
        buffers = Buffers(model)
        in_model: dict[str, Tensor] = dict(() if model is None else model.named_parameters())
        names = {p: plain_name(name) for name, p in in_model.items()}
        if model is not None and names.keys().isdisjoint(params):
            raise InputError(
                "the model has none of the optimizer's parameters; pass the one it trains"
            )
        for i, p in enumerate(params):
            names.setdefault(p, "not in the model" if in_model else f"parameter {i}")
        self._names = [names[p] for p in params] if in_model else None
        workers = Workers(group, node, device=trained[0].device)
        options: dict[str, Any] = {
            "wire": wire,
            "wire_seed": require_wire_seed(wire_seed),
            "error_feedback": error_feedback,
            "on_nonfinite": on_nonfinite,
        }
        named = {p: names[p] for p in trained}
        self._rounds = Rounds(self.optimizer, named, buffers, workers, schedule, **options)
        options |= {
            "names of parameters": self._names,
            "schedule": schedule.at or "regular",
            "weighting": weighting,
            "fixed numbers of examples": examples is not None,
            "delay_steps": schedule.delay,
            "timeout": self.timeout,
        }
        _agreement.require_agreement(
            workers, self.optimizer, trained=trained, buffers=buffers.averaged(), options=options
        )
        workers.use_own_groups(self.timeout)
        if node is None and isinstance(model, nn.parallel.DistributedDataParallel):
            ranks, theirs = map(dist.get_process_group_ranks, (workers.group, model.process_group))
            if len(set(ranks) & set(theirs)) > 1:
                warnings.warn(
                    "the model is wrapped in DistributedDataParallel, which averages gradients in "
                    "every step; pass the model itself, or see node=",
                    stacklevel=3,
                )
        mine = set(params)  # the rest of the model is frozen, or some other optimizer's
        untrained = [p for p in in_model.values() if p not in mine and p.is_floating_point()]
        self._make_equal(untrained)
        self._count_from_the_start()
        if isinstance(self.optimizer, WrappedOptimizer):
            self.optimizer.attach()

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        return self._rounds.workers.rank

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return self._rounds.workers.size

    @property
    def steps(self) -> int:
        """Steps of the optimizer so far."""
        return self.optimizer.steps

    def count(self, examples: int) -> None:
        """Add the examples of a step, for weighting="examples" without a fixed number of them.

        Call it before the optimizer's step, which may end the round.
        """
        self._examples.count(examples)

    def step(self) -> bool:
        """Synchronize if it is time to; call it after every optimizer step.

        Returns whether an average was applied.
        """
        before, schedule = self.rounds, self._rounds.schedule
        self._examples.require_counted()
        if self._pending is not None and self.steps >= self._averaged_at + schedule.delay:
            self.flush()
        # A GradScaler may have skipped the step: then this one was averaged already.
        if schedule.is_due(self.steps) and self.steps > self._averaged_at:
            self.flush()
            self._end_round()
            if not schedule.delay:
                self.flush()
        return self.rounds > before

    def synchronize(self) -> None:
        """Average now, independently of the schedule; all processes must call it.

        Right after a round it sends nothing, unless buffers are averaged, which a forward pass may
        have changed. The server's momentum is not applied again unless a step was taken.
        """
        self._require_current()
        self.flush()
        self._end_round()
        self.flush()

    @contextmanager
    def join(self) -> Iterator[None]:
        """Allow different numbers of batches in different processes; all of them must use it.

        A process that runs out of batches keeps synchronizing, with weight 0 in rounds in which it
        takes no step. All processes leave together, with equal states and the largest number of
        steps.

        Examples
        --------
        >>> with averages.join():  # doctest: +SKIP
        ...     for batch in batches:
        ...         ...
        """
        self._require_current()
        if self._joining:
            raise InputError("averages.join() is already in use; leave it first")
        algorithm, (first, *_) = self.optimizer.algorithm, self.optimizer.param_groups
        require_equal_steps(algorithm, self.optimizer.hyperparameters(first["last"]))
        self._joining = True
        try:
            yield
            self.flush()
            self._finished = True
            while not self._everyone_finished:
                self._end_round()
                self.flush()
        finally:
            self._joining = self._finished = self._everyone_finished = False

    def flush(self) -> None:
        """Wait for the average that is being computed, if there is one, and apply it."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            next(pending)
        except StopIteration as stop:
            if stop.value is None:  # every worker has finished, and none has moved
                self._everyone_finished = True
                return
            row, everyone_finished = stop.value
        self._everyone_finished = self._finished and everyone_finished
        if self._finished:
            self._averaged_at = self.steps
        # With overlap, this worker may have taken steps since.
        self._equal_at = self.steps if self._averaged_at == self.steps else None
        self.rounds += 1
        self.seconds += row.seconds
        self.history.append(row)
        if row.skipped and self.rank in (0, *row.skipped):
            times = sum(len(row.skipped) for row in self.history)
            warnings.warn(
                f"synchronization {self.rounds}, after {row.step} steps, left out rank "
                f"{', '.join(map(str, row.skipped))}, whose state holds NaN or infinity; workers "
                f"were left out {times} times so far",
                RuntimeWarning,
                stacklevel=2,
            )

    def checkpoint(self, path: str | Path, **extra: Any) -> None:
        """Write a checkpoint for `resume`, atomically; only right after a synchronization.

        All processes call it, rank 0 writes, and all wait for it. State that differs between ranks
        (memory of the algorithm, state of a PyTorch optimizer) goes into one file per rank next to
        it, such as `path.rank1.step128`. `extra` may hold numbers, texts and tensors, such as the
        state of a scheduler.
        """
        self._require_current()
        if self._pending is not None and self._averaged_at == self.steps:
            self.flush()
        if self._equal_at != self.steps:
            raise InputError(
                f"workers differ after {self.steps} steps; write checkpoints right after a "
                "synchronization"
            )
        if self.optimizer.rounds == 0:  # no round has compared the states yet
            _agreement.require_same_start(self._rounds.workers, self.optimizer, self._rounds.named)
        file = Path(path).absolute()
        counts = {"rounds": self.rounds, "bytes": self.bytes}
        _checkpoint.save(
            Path(path),
            self._rounds,
            last=self._on_disk.get(file),
            content={**counts, "names": self._names, "extra": extra},
        )
        self._on_disk[file] = self.steps

    def resume(
        self, path: str | Path, *, missing_ok: bool = False, missing: str = "raise"
    ) -> dict[str, Any] | None:
        """Continue from a checkpoint and return its `extra`; all processes must call it.

        Rank 0 reads the file, so no shared disk is needed. If one process cannot continue, all
        raise and none is changed. With `missing_ok`, return None if there is no file: the run
        starts from scratch. With `missing="reset"`, a rank whose own file is missing (because its
        machine was replaced, for example) resets that state, and all ranks warn.
        """
        self._require_current()
        if missing not in MISSING:
            raise unknown_name("missing", str(missing), MISSING)
        try:
            content = _checkpoint.load(Path(path), self._rounds, names=self._names, missing=missing)
        except MissingCheckpointError:
            if missing_ok:
                return None
            raise
        self.rounds, self.bytes = content["rounds"], content["bytes"]
        self._pending = None
        self._examples.since_average = 0
        self._averaged_at = self._equal_at = self.steps
        self._on_disk[Path(path).absolute()] = self.steps
        return dict(content["extra"])

    def rebuild(self, group: Any) -> None:
        """Continue without lost workers, in a group of the remaining ones; all of them call it.

        They repeat the failed round, so that its local steps still count, and end it with equal
        states. If only some of them had received the last average, the rest copy the state after it
        from one that had.
        """
        if group is None:
            raise InputError("pass the group of all remaining processes")
        if self._has_nodes:
            raise InputError("nodes cannot be rebuilt; restart from the last checkpoint")
        self._pending = None
        groups, trained = self.optimizer.param_groups, list(self._rounds.named)
        counted = [group["counted"][self.rank] for group in groups]
        workers = self._rounds.workers = Workers(group, None, device=trained[0].device)
        workers.use_own_groups(self.timeout)
        source, behind = _agreement.take_furthest(workers, self.optimizer, trained)
        reports = workers.exchange({"counted": counted})
        for i, mine in enumerate(groups):
            mine["counted"] = [report["counted"][i] for report in reports]
        _agreement.recenter(workers, self.optimizer, set(trained))
        if behind:
            self._weight = 0.0
        _agreement.broadcast(workers, self._rounds.buffers.averaged(), source=source)
        self._start(idle=behind)
        self.flush()

    def _require_current(self) -> None:
        if self.optimizer.is_replaced:
            raise InputError(
                "a later call of synchronize has replaced this synchronizer; use the new one"
            )

    def _make_equal(self, untrained: list[Tensor]) -> None:
        """Give all processes the same state: rank 0's where nothing has moved, else the mean."""
        optimizer, workers = self.optimizer, self._rounds.workers
        fresh = _agreement.find_fresh(workers, optimizer)
        if optimizer.steps == 0:
            _agreement.broadcast(workers, [*fresh, *self._rounds.buffers.averaged(), *untrained])
            optimizer.restart()
            self._equal_at = 0
            return
        _agreement.broadcast(workers, fresh)
        if optimizer.takes_mean:
            if not _agreement.are_equal(workers, self._rounds.moving()):
                self._start(idle=False)
                self.flush()
            self._equal_at = optimizer.steps

    def _end_round(self) -> None:
        """Start the end of a round, unless the states of all workers are equal."""
        steps = self.steps
        taken = steps > self._averaged_at or any(g["taken"] for g in self.optimizer.param_groups)
        has_buffers = bool(self._rounds.buffers.averaged())
        equal = self._equal_at == steps and not has_buffers
        if not (taken or self._finished) and (equal or not self.optimizer.takes_mean):
            if not has_buffers:  # the last round has made all states equal
                self._equal_at = steps
            return
        idle = self._finished and not taken
        if idle:
            self._weight = 0.0
        else:
            self._weight = self._of_node(self._examples.take(moved=steps > self._averaged_at))
        self._start(idle=idle)

    def _start(self, *, idle: bool) -> None:
        """Leave the round with the current weight, and start the mean."""
        optimizer, workers = self.optimizer, self._rounds.workers
        if _agreement.local_steps_of(optimizer) != self._rounds.schedule.local_steps:
            raise InputError("local_steps has changed; create a new Synchronizer in all processes")
        trained = set(map(id, self._rounds.named))
        if not trained.issuperset(map(id, optimizer.trained_parameters())):
            raise InputError(
                "parameters were added or unfrozen; create a new Synchronizer in all processes"
            )
        workers.activity = f"synchronization {self.rounds + 1}"
        inner = optimizer.inner
        if inner is not None and inner.state == "average" and inner.names is None:
            names = inner.find_names()
            reports = workers.exchange({"names": names})
            require_same("the state of their optimizers", [theirs["names"] for theirs in reports])
            inner.names = names
        if self._has_nodes:
            total = sum(float(p.detach().double().sum()) for p in self._rounds.named)
            workers.require_same_in_node(total)
        number, finished = self.rounds + 1, self._finished
        pending = self._rounds.end_round(number, self._weight, idle=idle, finished=finished)
        self.bytes += next(pending)
        self._pending, self._averaged_at = pending, self.steps

    def _of_node(self, weight: float) -> float:
        """Return this worker's weight; the sum over its node if weighted by examples."""
        by_examples = self._examples.weighting == "examples"
        total = self._rounds.workers.sum_in_node(weight) if by_examples else weight
        return float(torch.tensor(total, dtype=torch.float32))  # headers may be float32

    def _count_from_the_start(self) -> None:
        """Set the weights of workers that have not completed a round yet."""
        workers, groups = self._rounds.workers, self.optimizer.param_groups
        mine = 0.0 if self._examples.are_counted else self._examples.fixed or 1.0
        reports = workers.exchange({"weight": self._of_node(mine)})
        first = [reports[leader]["weight"] for leader in workers.leaders]
        new = [g for g in groups if self.steps == 0 or len(g["counted"]) != len(first)]
        for group in new:
            group["counted"] = list(first)
        if new and self.steps:
            _agreement.recenter(workers, self.optimizer, set(self._rounds.named))


def synchronize(
    optimizer: torch.optim.Optimizer, model: nn.Module | None = None, **options: Any
) -> Synchronizer:
    """Make an optimizer average over all processes every `local_steps` steps, by itself.

    Takes the options of `Synchronizer`, and returns one. A second call replaces the first
    synchronizer; with overlap, call its `flush` first.
    """
    synchronizer = Synchronizer(optimizer, model, **options)
    synchronizer.optimizer.after_step = synchronizer.step
    return synchronizer


class Examples:
    """Counts the examples of this process, for its weight."""

    def __init__(self, weighting: str, fixed: int | None) -> None:
        self.weighting = require_weighting(weighting)
        if fixed is not None and weighting != "examples":
            raise InputError("examples needs weighting='examples'")
        self.fixed = None if fixed is None else float(require_count("examples", fixed))
        self.are_counted = weighting == "examples" and fixed is None
        self.since_average = 0
        self._since_step = False

    def count(self, examples: int) -> None:
        """Add the examples of a step that is about to be taken."""
        self.since_average += require_count("examples", examples, least=0)
        self._since_step = True

    def require_counted(self) -> None:
        """Reject a step that was taken before its examples were counted."""
        if self.are_counted and not self._since_step:
            raise InputError(
                "pass examples=len(dataset), or call averages.count(len(batch)) before every step"
            )
        self._since_step = False

    def take(self, *, moved: bool) -> float:
        """Return the weight of this process; 1 if it has not moved since the last time."""
        since, self.since_average = self.since_average, 0
        return self.fixed or (float(since) if self.are_counted and moved else 1.0)


def _require_compatible(
    state: str | None, *, overlap: bool, wire: str, error_feedback: bool
) -> None:
    """Raise InputError for options that do not go together."""
    if error_feedback and wire != INT8:
        raise InputError("error_feedback needs wire='int8', which rounds at random")
    if overlap and state == "average":
        raise InputError(
            "state='average' and overlap=True do not go together: a mean of squares plus later "
            "progress may be negative; use state='local'"
        )
    if wire == INT8 and state == "average":
        raise InputError(
            "state='average' and wire='int8' do not go together: moments cannot be rounded to a "
            "byte, and unrounded they would go to every other worker, which sends more than "
            "float32; use wire='bfloat16' or state='local'"
        )


def _require_trainable(params: list[Tensor]) -> list[Tensor]:
    if not params:
        raise InputError("the optimizer has no parameters that require gradients")
    if any(hasattr(p, mark) for p in params for mark in SHARDED):
        raise InputError(
            "the parameters are sharded (by FSDP or tensor parallelism), so every process has only "
            "a part of them; inside a node use DistributedDataParallel, and node="
        )
    if any(p.is_complex() for p in params):
        raise InputError(
            "complex parameters cannot be synchronized; train real ones, and use "
            "torch.view_as_complex(p) in the forward pass"
        )
    return params
