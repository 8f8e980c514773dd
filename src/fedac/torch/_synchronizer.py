"""Averaging across processes, every K steps."""

from __future__ import annotations

import warnings
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedac.algorithms.server import ServerRule
from fedac.errors import InputError, unknown_name
from fedac.federation.averaging import require_weighting
from fedac.federation.checkpoint import MissingCheckpointError
from fedac.federation.compression import (
    BFLOAT16,
    FLOAT32,
    INT8,
    Sender,
    require_wire,
    require_wire_seed,
)
from fedac.torch import _checkpoint as files
from fedac.torch._agreement import (
    agree_on_state,
    find_fresh,
    is_alike,
    local_steps_of,
    recenter,
    require_agreement,
    require_same_start,
    take_first,
    take_furthest,
)
from fedac.torch._any_optimizer import ForeignOptimizer, as_local
from fedac.torch._averaging import Average, Gathered, Halved, Header, Mean, Reduced, hash_of
from fedac.torch._buffers import Buffers, forgotten, names_of, parameters_besides, settle
from fedac.torch._communication import Workers, adopt, settings_of
from fedac.torch._compression import Feedback
from fedac.torch._costs import is_gathered, traffic
from fedac.torch._flat import checksum, parts
from fedac.torch._round import Round, Turns
from fedac.torch._state import sequence_dtype
from fedac.validate import require_count, require_positive

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
    state : "local" or "average" or "reset", optional
        Whether the state of an optimizer that is not ours (momentum, say) stays in its process
        when a round ends, as it does unless given, is averaged too, or begins anew.
    group : ProcessGroup, optional
        The default group unless given.
    node : ProcessGroup, optional
        The processes of this node, if they train as one with DistributedDataParallel. Then `group`
        has one process of every node.
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
        of the average, with a warning, and continues from it.
    overlap : bool
        Whether to continue training while an average is computed. It is applied `delay_steps`
        later, plus the local progress since.
    delay_steps : int, optional
        See `overlap`; 1 unless given.
    timeout : float, optional
        Seconds until a synchronization has failed; the group's own unless given.
    wire : "float32" or "bfloat16" or "int8"
        Whether messages travel as they are, or rounded to half or a quarter of float32's bytes
        (`fedac.wire`); "bfloat16" is summed by an all-reduce, except with control variates.
    wire_seed : int
        The seed of the draws by which "int8" rounds.
    error_feedback : bool
        Whether a worker adds to its next message what "int8" rounding took from the last one.

    Attributes
    ----------
    optimizer : LocalOptimizer
        The optimizer; if it is not ours, what is known of it here.
    rank : int
        The rank of this worker.
    world_size : int
        The number of workers.
    steps : int
        Steps of the optimizer so far.
    rounds : int
        Synchronizations so far.
    bytes : int
        How much this process has handed over to be sent.
    seconds : float
        How long it has waited.
    history : list of Synchronization
        What each synchronization was like since this synchronizer was made.
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
        ours = as_local(optimizer, local_steps=local_steps, server=server, state=state)
        if on_nonfinite not in ON_NONFINITE:
            raise unknown_name("on_nonfinite", str(on_nonfinite), ON_NONFINITE)
        self.optimizer = ours
        self._examples = Examples(weighting, examples)
        self.on_nonfinite = on_nonfinite
        self.timeout = None if timeout is None else require_positive("timeout", timeout)
        self.wire, self.wire_seed = require_wire(wire), require_wire_seed(wire_seed)
        for name, value in (("overlap", overlap), ("error_feedback", error_feedback)):
            if not isinstance(value, bool):
                raise InputError(f"{name} must be True or False, got {value!r}")
        self._feedback = Feedback(error_feedback, wire=wire)
        if overlap and state == "average":
            raise InputError(
                "state='average' and overlap=True do not go together: a mean of squares plus later "
                "progress may be negative; use state='local'"
            )
        if wire == INT8 and state == "average":
            raise InputError(
                "state='average' and wire='int8' do not go together: a byte is too little for "
                "moments, and as they are they would go to every other worker, so that more is "
                "sent than in float32; use wire='bfloat16' or state='local'"
            )
        self.rounds = 0
        self.bytes = 0
        self.seconds = 0.0
        self.history: list[Synchronization] = []
        self._schedule = SyncSchedule(
            local_steps_of(ours), at=at, overlap=overlap, delay_steps=delay_steps
        )
        # Parameters that were never trained are the same everywhere.
        self._trained = _require_trainable(ours.trained_parameters())
        self._buffers = Buffers(model)
        self._names = names_of(model, ours.parameters())
        self._untrained = parameters_besides(model, ours.parameters())
        self._pending: tuple[Round, Average] | None = None
        self._turns = Turns()
        self._weight = 1.0  # how much this worker counted in the last average
        self._joining = self._finished = self._everyone_finished = False
        self._averaged_at = ours.steps  # when the last average was started
        self._on_disk: dict[Path, int] = {}  # the steps of checkpoints, by file
        self._rounds_differently = False  # whether equal states of ranks differ in some bits
        self._equal_at: int | None = None  # the step after which all states were equal
        if self.wire != FLOAT32:  # all ranks must know what differences are taken to
            ours.keep_broadcasts()

        self._workers = Workers(group, node, device=self._trained[0].device)
        self._has_nodes = node is not None
        self._options = {
            "names of parameters": self._names,
            "schedule": self._schedule.at or "regular",
            "weighting": weighting,
            "fixed numbers of examples": examples is not None,
            "on_nonfinite": self.on_nonfinite,
            "delay_steps": self._schedule.delay,
            "timeout": self.timeout,
            "wire": self.wire,
            "wire_seed": self.wire_seed,
            "error_feedback": error_feedback,
        }
        self._agree()
        self._workers.use_own_groups(self.timeout)
        looks = model is None and self.rank == 0 and self.world_size > 1
        if looks and (names := forgotten(self._trained)):
            warnings.warn(
                f"the model has buffers ({', '.join(names)}) that stay local and are not in "
                "checkpoints; to average them too, call synchronize(optimizer, model)",
                stacklevel=3,
            )
        if node is None and self._workers.averages_gradients(model):
            warnings.warn(
                "the model is wrapped in DistributedDataParallel, which averages gradients in "
                "every step; give the model itself, or see node=",
                stacklevel=3,
            )
        self._make_alike()
        self._count_from_the_start()
        if isinstance(ours, ForeignOptimizer):
            ours.attach()

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        return self._workers.rank

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return self._workers.size

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
        before = self.rounds
        steps = self.optimizer.steps
        self._examples.require_counted()
        if self._pending is not None and steps >= self._pending[1].steps + self._schedule.delay:
            self.flush()
        # A GradScaler may have skipped the step: then this one was averaged already.
        if self._schedule.is_due(steps) and steps > self._averaged_at:
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
        self._require_current()
        self.flush()
        self._start_average()
        self.flush()

    @contextmanager
    def join(self) -> Iterator[None]:
        """Let processes have different numbers of batches; all of them must use it.

        One that leaves first takes part in the rounds of the others, without being counted in those
        in which it took no step. All leave together, with equal states and the steps of the
        longest.

        Examples
        --------
        >>> with averages.join():  # doctest: +SKIP
        ...     for batch in batches:
        ...         ...
        """
        self._require_current()
        if self._joining:
            raise InputError("averages.join() is already in use; leave it first")
        self._joining = True
        try:
            yield
            self.flush()
            self._finished = True
            while not self._everyone_finished:
                self._start_average()
                self.flush()
        finally:
            self._joining = self._finished = self._everyone_finished = False

    def flush(self) -> None:
        """Wait for the average that is being computed, if there is one, and apply it."""
        if self._pending is None:
            return
        (this_round, average), self._pending = self._pending, None
        waited = average.wait()
        self.seconds += waited
        mean = average.mean(self.on_nonfinite)
        if mean is not None and not mean.agreed:
            self._require_same_start()
        self._everyone_finished = self._finished and average.everyone_finished()
        if mean is None:  # no worker has moved since the last one
            return
        if self._finished:
            adopt(self.optimizer.param_groups, average.settings)
            this_round.couple_anew()
        moved = self.optimizer.steps != average.steps
        spread = average.spread(mean)
        progress = average.progress(self._moving()) if moved else None
        # By the steps, not by `rounds`: a second synchronizer starts to count at 0.
        r = self._schedule.rounds(mean.steps)
        if self.optimizer.takes_mean and progress is None:
            self._take(this_round, mean)
            self.optimizer.lower_lr(r)
        else:
            self._serve(this_round, mean, progress, r)
        this_round.close()
        if self._finished:
            self.optimizer.steps = self._averaged_at = mean.steps
        self.optimizer.refresh()
        if self.optimizer.inside is not None:
            self.optimizer.inside.end_round(used=mean.used)
        if mean.used:
            self._feedback.keep(average.residuals)
        self._equal_at = None if moved else self.optimizer.steps
        self.rounds += 1
        self._record(average, mean, waited, spread)

    def checkpoint(self, path: str | Path, **extra: Any) -> None:
        """Write all that `resume` needs, atomically; only right after a synchronization.

        All processes call it, rank 0 writes, and all wait for it. If ranks have something of their
        own (memory of the algorithm, the state of a user's optimizer), every rank first writes it
        beside the file, to `path.rank1.step128`, say. `extra` may hold numbers, texts and tensors,
        such as the state of a scheduler.
        """
        self._require_current()
        steps = self.optimizer.steps
        if self._pending is not None and self._pending[1].steps == steps:
            self.flush()
        if self._equal_at != steps:
            raise InputError(
                f"workers differ after {steps} steps; write checkpoints right after a "
                "synchronization"
            )
        if self.optimizer.rounds == 0:  # no round has compared the states yet
            self._compare()
        files.save(
            Path(path),
            self.optimizer,
            self._buffers,
            self._workers,
            last=self._on_disk.get(Path(path).absolute()),
            names=self._names,
            residuals=self._feedback.tensors(),
            rounds=self.rounds,
            bytes=self.bytes,
            extra=extra,
        )
        self._on_disk[Path(path).absolute()] = steps

    def resume(
        self, path: str | Path, *, missing_ok: bool = False, missing: str = "raise"
    ) -> dict[str, Any] | None:
        """Continue from a checkpoint and return its `extra`; all processes must call it.

        Rank 0 reads the file, so the others need no disk in common with it. If one process cannot
        continue, all refuse and none is changed. With `missing_ok`, return None if there is no
        file: the run starts from scratch. With `missing="reset"`, a rank whose own file is missing
        (its machine was replaced, say) continues with that state reset, and all ranks warn.
        """
        self._require_current()
        if missing not in MISSING:
            raise unknown_name("missing", str(missing), MISSING)
        try:
            content, memory = files.load(
                Path(path),
                self.optimizer,
                self._buffers,
                self._workers,
                names=self._names,
                residuals=self._feedback.is_used,
                missing=missing,
                r=self._schedule.rounds,
            )
        except MissingCheckpointError:
            if missing_ok:
                return None
            raise
        self._feedback.load(memory.residuals)
        self.rounds, self.bytes = content["rounds"], content.get("bytes", 0)
        self._pending = None
        self._examples.forget()
        self._averaged_at = self._equal_at = self.optimizer.steps
        self._on_disk[Path(path).absolute()] = self.optimizer.steps
        return dict(content["extra"])

    def rebuild(self, group: Any) -> None:
        """Continue without lost workers, in a group of those that are left; all of them call it.

        The round that failed is repeated among them, so what each of them has done in it counts,
        and all leave with equal states. If some had already received an average that others had
        not, all take the state of the first of those.
        """
        if group is None:
            raise InputError("give the group of all processes that are left")
        if self._has_nodes:
            raise InputError("nodes cannot be rebuilt; restart from the last checkpoint")
        self._pending = None
        groups = self.optimizer.param_groups
        counted = [group["counted"][self.rank] for group in groups]
        self._workers = Workers(group, None, device=self._workers.device)
        self._workers.use_own_groups(self.timeout)
        source, behind = take_furthest(self._workers, self.optimizer, self._trained)
        reports = self._workers.exchange({"counted": counted})
        for i, mine in enumerate(groups):
            mine["counted"] = [report["counted"][i] for report in reports]
        recenter(self._workers, self.optimizer, set(self._trained))
        if behind:
            self._weight = 0.0
        take_first(self._workers, self._buffers.averaged(), source=source)
        self._average_again(idle=behind)

    def _require_current(self) -> None:
        if self.optimizer.is_replaced:
            raise InputError(
                "a later call of synchronize has replaced this one; use what it returned"
            )

    def _agree(self) -> None:
        require_agreement(
            self._workers,
            self.optimizer,
            trained=self._trained,
            buffers=self._buffers.averaged(),
            options=self._options,
        )

    def _require_same_start(self) -> None:
        """Refuse ranks that hold different states as of the last round, which none would mend."""
        if not (self.optimizer.takes_mean or self._rounds_differently):
            self._rounds_differently = self._compare()

    def _compare(self) -> bool:
        params = self.optimizer.parameters()
        names = self._names or [f"parameter {i}" for i in range(len(params))]
        named = dict(zip(params, names, strict=True))
        mine = [named[p] for p in self._trained]
        return require_same_start(self._workers, self.optimizer, self._trained, mine)

    def _make_alike(self) -> None:
        """Give all processes the same state: rank 0's of what has not moved, else the mean."""
        optimizer = self.optimizer
        fresh = find_fresh(self._workers, optimizer)
        beside = [*self._buffers.averaged(), *self._untrained] if optimizer.steps == 0 else []
        take_first(self._workers, [*fresh, *beside])
        if optimizer.steps == 0:
            optimizer.restart()
            self._equal_at = 0
        elif optimizer.takes_mean:
            if not is_alike(self._workers, self._moving()):
                self._average_again()
            self._equal_at = optimizer.steps

    def _take(self, this_round: Round, mean: Mean) -> None:
        """Let the mean take the place of the message, and of what was sent beside it."""
        if mean.divisor == 1 and not self.optimizer.in_place:
            self._turns.settle(mean.values(), this_round.message, self._beside())
        else:
            mean.copy_to([*this_round.message, *self._beside()])

    @torch.no_grad()
    def _serve(self, this_round: Round, mean: Mean, progress: list[Tensor] | None, r: int) -> None:
        """End a round with more than the mean; r is the next one's, for an lr that falls."""
        beside = self._beside()
        received = parts(mean.values(), [*this_round.message, *beside])
        messages = received[: len(this_round.message)]
        if self.optimizer.takes_mean:
            local = [s for p in self._trained for s in self.optimizer.sequences(p)]
            for tensor, value, more in zip(local, messages, progress or (), strict=False):
                tensor.copy_(value + more)
            self.optimizer.lower_lr(r)
        else:
            this_round.serve(messages, weights=mean.weights, used=mean.used)
            self.optimizer.lower_lr(r)
            this_round.enter_next(progress)
        last = None if progress is None else progress[len(progress) - len(beside) :]
        settle(beside, received[len(messages) :], last)

    def _start_average(self) -> None:
        steps = self.optimizer.steps
        taken = steps > self._averaged_at or any(g["taken"] for g in self.optimizer.param_groups)
        averaged = self._buffers.averaged()
        equal = self._equal_at == steps and not averaged
        if not (taken or self._finished) and (equal or not self.optimizer.takes_mean):
            if not averaged:  # the last round has made all states equal
                self._equal_at = steps
            return
        idle = self._finished and not taken
        self._weight = 0.0 if idle else self._next_weight()
        self._start(idle=idle)

    def _average_again(self, *, idle: bool = False) -> None:
        """Average what the states are now, with the weights of the last time."""
        self._start(idle=idle)
        self.flush()

    def _start(self, *, idle: bool) -> None:
        if local_steps_of(self.optimizer) != self._schedule.local_steps:
            raise InputError("local_steps has changed; make a new Synchronizer in all processes")
        trained = set(map(id, self._trained))
        if not trained.issuperset(map(id, self.optimizer.trained_parameters())):
            raise InputError(
                "parameters were added or unfrozen; make a new Synchronizer in all processes"
            )
        self._workers.activity = f"synchronization {self.rounds + 1}"
        inside = self.optimizer.inside
        if inside is not None and inside.state == "average" and inside.names is None:
            agree_on_state(self._workers, inside)
        if self._has_nodes:
            total = sum(float(p.detach().double().sum()) for p in self._trained)
            self._workers.require_same_in_node(total)
        this_round = Round(
            self.optimizer, self._trained, rank=self.rank, weight=self._weight, idle=idle
        )
        average = self._average_of(this_round)
        self._pending, self._averaged_at = (this_round, average), self.optimizer.steps
        self.bytes += average.bytes

    def _average_of(self, this_round: Round) -> Average:
        settings, steps = settings_of(self.optimizer.param_groups), self.optimizer.steps
        began = 0
        if not (self.optimizer.takes_mean or self._rounds_differently):
            sent = [t for p in self._trained for t in self.optimizer.kept(p, "sent")]
            began = checksum(sent, self._workers.device)
        header = Header(self._weight, hash_of(settings, began), steps, finished=self._finished)
        more: dict[str, Any] = {
            "message": this_round.message,
            "beside": self._beside(),
            "reuse": self._turns.free,
            "settings": settings,
            "moving": self._moving() if self._schedule.delay else (),
        }
        average: Average
        if is_gathered(self.wire, self.optimizer.algorithm):
            pack = partial(this_round.pack, sender=self._sender(), residuals=self._residuals())
            average = Gathered(self._workers, header, pack=pack, **more)
        elif self.wire == BFLOAT16:
            more |= {"private": this_round.private, "began": this_round.began}
            average = Halved(self._workers, header, **more)
        else:
            average = Reduced(self._workers, header, private=this_round.private, **more)
        self._turns.free = average.buffer
        return average

    def _sender(self) -> Sender:
        return Sender(self.wire, self.wire_seed, m=self.rank, r=self.optimizer.rounds)

    def _residuals(self) -> list[Tensor] | None:
        vectors = len(self.optimizer.algorithm.sequences)
        numbers = sum(p.numel() for p in self._trained)
        return self._feedback.residuals(
            vectors=vectors, numbers=numbers, dtype=sequence_dtype(self._trained[0])
        )

    def _next_weight(self) -> float:
        """Return how much this worker counts: all processes of its node, if examples do."""
        weight = self._examples.take(moved=self.optimizer.steps > self._averaged_at)
        return self._of_node(weight)

    def _of_node(self, weight: float) -> float:
        by_examples = self._examples.weighting == "examples"
        total = self._workers.sum_in_node(weight) if by_examples else weight
        return float(torch.tensor(total, dtype=torch.float32))  # headers may be float32

    def _count_from_the_start(self) -> None:
        """Let workers that took part in no round yet count as they would have."""
        weight = self._of_node(self._examples.first)
        reports = self._workers.exchange({"weight": weight})
        first = [reports[leader]["weight"] for leader in self._workers.leaders]
        steps, groups = self.optimizer.steps, self.optimizer.param_groups
        new = [g for g in groups if steps == 0 or len(g["counted"]) != len(first)]
        for group in new:
            group["counted"] = list(first)
        if new and steps:
            recenter(self._workers, self.optimizer, set(self._trained))

    def _record(self, average: Average, mean: Mean, seconds: float, spread: float) -> None:
        M = self.world_size
        self.history.append(
            Synchronization(
                round=self.rounds,
                step=mean.steps,
                seconds=seconds,
                bytes=average.bytes,
                traffic=traffic(
                    average.bytes,
                    world_size=M,
                    wire=self.wire,
                    algorithm=self.optimizer.algorithm,
                )
                // M,
                skipped=mean.skipped,
                spread=spread,
            )
        )
        warn_of_skipped(self.history, rank=self.rank)

    def _moving(self) -> list[Tensor]:
        """Return all that local steps and forward passes move."""
        return [*(s for p in self._trained for s in self.optimizer.sequences(p)), *self._beside()]

    def _beside(self) -> list[Tensor]:
        """Return what is averaged besides the message: buffers, and state of a user's optimizer."""
        inside = self.optimizer.inside
        state = inside.averaged(set(self._trained)) if inside else ()
        return [*self._buffers.averaged(), *state]


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


def _require_trainable(params: list[Tensor]) -> list[Tensor]:
    if not params:
        raise InputError("the optimizer has no parameters that require gradients")
    if any(hasattr(p, mark) for p in params for mark in SHARDED):
        raise InputError(
            "the parameters are sharded (by FSDP or tensor parallelism), of which every process "
            "has a part only; inside a node use DistributedDataParallel, and node="
        )
    if any(p.is_complex() for p in params):
        raise InputError(
            "complex parameters cannot be synchronized; train real ones, and use "
            "torch.view_as_complex(p) in the forward pass"
        )
    return params


# --- How much a worker counts in an average.


class Examples:
    """Counts the examples of this process; for `weighting` and `fixed` see `Synchronizer`.

    Examples
    --------
    >>> examples = Examples("examples", None)
    >>> examples.count(32)
    >>> examples.require_counted()
    >>> examples.take(moved=True), examples.take(moved=False)
    (32.0, 1.0)
    """

    def __init__(self, weighting: str, fixed: int | None) -> None:
        self.weighting = require_weighting(weighting)
        if fixed is not None and weighting != "examples":
            raise InputError("examples is for weighting='examples' only")
        self.fixed = None if fixed is None else require_count("examples", fixed)
        self._since_average = 0
        self._since_step = False

    @property
    def are_counted(self) -> bool:
        """Whether the number is that of all steps since the last average."""
        return self.weighting == "examples" and self.fixed is None

    @property
    def first(self) -> float:
        """How much this process counts before it has taken part in a round."""
        return 0.0 if self.are_counted else float(self.fixed or 1)

    def count(self, examples: int) -> None:
        """Add the examples of a step that is about to be taken."""
        self._since_average += require_count("examples", examples, least=0)
        self._since_step = True

    def require_counted(self) -> None:
        """Refuse a step that was taken before its examples were counted."""
        if self.are_counted and not self._since_step:
            raise InputError("call averages.count(len(batch)) before every step of the optimizer")
        self._since_step = False

    def take(self, *, moved: bool) -> float:
        """Return how much this process counts; 1 if it has not moved since the last time."""
        if self.fixed is not None:
            return float(self.fixed)
        weight = float(self._since_average) if self.are_counted and moved else 1.0
        self.forget()
        return weight

    def forget(self) -> None:
        """Count from 0 again."""
        self._since_average = 0


# --- What every synchronization was like, for logs and plots.


class Synchronization(NamedTuple):
    """One row of `Synchronizer.history`, as seen by this process.

    Parameters
    ----------
    round : int
        Its number, from 1.
    step : int
        After how many steps it was started.
    seconds : float
        How long this process waited for it.
    bytes : int
        What this process handed over.
    traffic : int
        What this process sent for it, as gloo does it (`fedac.torch.traffic`).
    skipped : tuple of int
        The ranks whose state was not finite, so that they were left out.
    spread : float, optional
        How far what this worker sent was from the mean of all, as a Euclidean distance; of large
        models estimated from 65,536 of their numbers.
    """

    round: int
    step: int
    seconds: float
    bytes: int
    traffic: int
    skipped: tuple[int, ...]
    spread: float


def warn_of_skipped(history: Sequence[Synchronization], *, rank: int) -> None:
    """Say at rank 0, and where it happened, that the last average was without some workers."""
    last = history[-1]
    if last.skipped and rank in (0, *last.skipped):
        times = sum(len(row.skipped) for row in history)
        warnings.warn(
            f"synchronization {last.round}, after {last.step} steps, left out rank "
            f"{', '.join(map(str, last.skipped))}, whose state holds NaN or infinity; workers were "
            f"left out {times} times so far",
            RuntimeWarning,
            stacklevel=3,
        )


# --- When to synchronize.


class SyncSchedule:
    """The steps after which an average is started, and how much later it is applied.

    See `Synchronizer` for the options.

    Examples
    --------
    >>> schedule = SyncSchedule(4, at=[3, 5], overlap=False, delay_steps=None)
    >>> [step for step in range(1, 14) if schedule.is_due(step)]
    [3, 5, 9, 13]
    """

    def __init__(
        self, local_steps: int, *, at: Iterable[int] | None, overlap: bool, delay_steps: int | None
    ) -> None:
        self.local_steps = local_steps
        if not (at is None or isinstance(at, Iterable)):
            raise InputError(f"at must be a list of steps, [3, 8, 16] say, got {at!r}")
        self.at = sorted({require_count("every step in at", step) for step in at or ()})
        if at is not None and not self.at:
            raise InputError("at is empty; give at least one step")
        gap = max((b - a for a, b in pairwise([0, *self.at])), default=0)
        if gap > local_steps:
            raise InputError(
                f"two synchronizations are {gap} steps apart, more than local_steps={local_steps}"
            )
        if delay_steps is not None and not overlap:
            raise InputError("delay_steps is for overlap=True only")
        given = 1 if delay_steps is None else delay_steps
        self.delay = require_count("delay_steps", given) if overlap else 0
        if self.delay >= local_steps:
            raise InputError(
                f"delay_steps must be from 1 to local_steps - 1 = {local_steps - 1}, got "
                f"{self.delay}"
            )

    def rounds(self, steps: int) -> int:
        """Return how many averages are started in so many steps.

        Examples
        --------
        >>> schedule = SyncSchedule(4, at=[3, 5], overlap=False, delay_steps=None)
        >>> [schedule.rounds(step) for step in (2, 3, 5, 8, 9, 13)]
        [0, 1, 2, 2, 3, 4]
        """
        last = max(self.at, default=0)
        return bisect(self.at, steps) + max(steps - last, 0) // self.local_steps

    def is_due(self, steps: int) -> bool:
        """Check whether an average starts after so many steps."""
        last = max(self.at, default=0)
        return steps in self.at if steps < last else (steps - last) % self.local_steps == 0
