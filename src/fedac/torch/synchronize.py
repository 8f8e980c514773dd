"""Averaging across processes: one all-reduce of one flat buffer every K steps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

import torch
from fedac.errors import InputError
from fedac.torch import checkpoint as files
from fedac.torch.optimizer import LocalOptimizer
from torch import Tensor

# By rank, in front of the sequences: its weight and whether its state is finite.
HEADER = 2


class NonFiniteStateError(RuntimeError):
    """A worker's state holds NaN or infinity; nobody's state was changed."""


class WorkerLostError(RuntimeError):
    """A synchronization failed: a worker has died or cannot be reached."""


class Synchronizer:
    """Averages the sequences of an optimizer over a process group.

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
    on_nonfinite : "raise" or "skip-worker"
        Whether a state that is not finite stops everybody, or is left out of the average, which
        its worker then takes over.
    buffers : Module, optional
        A model whose floating-point buffers (BatchNorm's, say) are averaged too.
    overlap : bool
        Whether to go on training while the average is on its way. It is applied `delay` steps
        later, with the local progress made since added to it.
    delay : int
        See `overlap`.
    timeout : float, optional
        Seconds after which a synchronization has failed; the group's own unless given.

    Attributes
    ----------
    rounds : int
        Synchronizations so far.
    bytes, seconds : int, float
        What this process has sent, and how long it has waited.
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
        delay: int = 1,
        timeout: float | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise InputError(
                "no process group: call torch.distributed.init_process_group first, and start "
                "the program by torchrun"
            )
        for name, value, known in (
            ("weighting", weighting, ("uniform", "examples")),
            ("on_nonfinite", on_nonfinite, ("raise", "skip-worker")),
        ):
            if value not in known:
                raise InputError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")
        self.optimizer = optimizer
        self.group = group
        self.weighting = weighting
        self.on_nonfinite = on_nonfinite
        self.timeout = timeout
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.rounds = 0
        self.bytes = 0
        self.seconds = 0.0
        self._examples = 0
        self._buffers = _floating(buffers)
        self._local_steps = _local_steps(optimizer)
        self._at = None if at is None else _schedule(at, self._local_steps)
        self._delay = delay if overlap else 0
        if overlap and not 1 <= delay < self._local_steps:
            raise InputError(f"delay must be from 1 to local_steps - 1, got {delay}")
        self._pending: _Pending | None = None
        self._agree()

    def count(self, examples: int) -> None:
        """Tell how many examples a step has used, where workers are weighted by them."""
        if examples < 0:
            raise InputError(f"examples must be at least 0, got {examples}")
        self._examples += examples

    def step(self) -> bool:
        """Synchronize if it is time to; call it after every optimizer step.

        Returns whether an average was applied.
        """
        steps = self.optimizer.steps
        applied = False
        if self._pending is not None and steps >= self._pending.due:
            self.flush()
            applied = True
        if self._is_due(steps):
            self.synchronize()
            applied = applied or not self._delay
        return applied

    def synchronize(self) -> None:
        """Average now, or start to if averages are overlapped with training."""
        if self._pending is not None:
            self.flush()
        buffer = self._pack()
        snapshot = buffer.clone() if self._delay else None
        work = self._start(buffer)
        self._pending = _Pending(buffer, snapshot, work, self.optimizer.steps + self._delay)
        if not self._delay:
            self.flush()

    def flush(self) -> None:
        """Apply an average that is still on its way; before evaluating or saving, for one."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        before = time.perf_counter()
        self._wait(pending.work)
        self.seconds += time.perf_counter() - before
        self._apply(pending)
        self.rounds += 1
        self._examples = 0

    def checkpoint(self, path: str | Path, **extra: Any) -> None:
        """Write all that `resume` needs, atomically; right after a synchronization only.

        The first process writes for all: after a synchronization they agree. `extra` may hold
        numbers, texts and tensors, such as the position of a sampler.
        """
        self.flush()
        if not self._is_due(self.optimizer.steps) and self.optimizer.steps:
            raise InputError(
                f"workers differ after {self.optimizer.steps} steps; write checkpoints right "
                "after a synchronization"
            )
        if self.rank == 0:
            files.save(Path(path), self.optimizer, self._buffers, rounds=self.rounds, extra=extra)

    def resume(self, path: str | Path) -> dict[str, Any]:
        """Go on from a checkpoint, in every process, and return its `extra`."""
        self.rounds, extra = files.load(Path(path), self.optimizer, self._buffers)
        return extra

    def _is_due(self, steps: int) -> bool:
        return steps % self._local_steps == 0 if self._at is None else steps in self._at

    def _agree(self) -> None:
        """Refuse processes with different numbers now: later they would wait for each other."""
        sizes = sum(p.numel() for p in self.optimizer._all())
        name = int.from_bytes(self.optimizer.algorithm.name.encode()[-6:], "big")
        at = 0 if self._at is None else hash(tuple(sorted(self._at))) % 2**31
        mine = torch.tensor(
            [self._local_steps, sizes, name, at, self.weighting == "examples", self._delay,
             self.optimizer.steps], dtype=torch.int64, device=self._device(),
        )  # fmt: skip
        everybody = [torch.empty_like(mine) for _ in range(self.world_size)]
        self._guard(lambda: dist.all_gather(everybody, mine, group=self.group))
        what = ("local_steps", "parameters", "algorithm", "schedule", "weighting", "delay", "steps")
        for index, name_ in enumerate(what):
            values = [int(theirs[index]) for theirs in everybody]
            if len(set(values)) > 1:
                shown = "" if name_ in ("algorithm", "schedule") else f": {values} by rank"
                raise InputError(f"processes differ in {name_}{shown}; start all with the same")

    def _device(self) -> torch.device:
        params = self.optimizer._all()
        if not params:
            raise InputError("the optimizer has no parameters")
        return params[0].device

    def _tensors(self) -> list[Tensor]:
        sequences = [s for p in self.optimizer._all() for s in self.optimizer.sequences(p)]
        return [*sequences, *self._buffers]

    def _pack(self) -> Tensor:
        """Return this process's share of the sum: its header, then weight times all sequences."""
        tensors = self._tensors()
        dtype = torch.float32
        for tensor in tensors:
            dtype = torch.promote_types(dtype, tensor.dtype)
        buffer = torch.zeros(
            HEADER * self.world_size + sum(t.numel() for t in tensors),
            dtype=dtype, device=self._device(),
        )  # fmt: skip
        place = HEADER * self.world_size
        for tensor in tensors:
            buffer[place : place + tensor.numel()] = tensor.detach().reshape(-1)
            place += tensor.numel()
        body = buffer[HEADER * self.world_size :]
        weight = float(self._examples) if self.weighting == "examples" else 1.0
        finite = bool(torch.isfinite(body).all())
        if finite:
            body *= weight
        else:
            body.zero_()  # NaN would spoil the sum of all
        buffer[HEADER * self.rank] = weight if finite else 0.0
        buffer[HEADER * self.rank + 1] = 0.0 if finite else 1.0
        return buffer

    def _start(self, buffer: Tensor) -> Any:
        self.bytes += buffer.numel() * buffer.element_size()
        return self._guard(
            lambda: dist.all_reduce(buffer, dist.ReduceOp.SUM, group=self.group, async_op=True)
        )

    def _wait(self, work: Any) -> None:
        if self.timeout is None:
            self._guard(work.wait)
        else:
            self._guard(lambda: work.wait(timedelta(seconds=self.timeout)))

    def _guard(self, call: Any) -> Any:
        """Call something collective and say plainly what its failure means."""
        before = time.perf_counter()
        try:
            return call()
        except RuntimeError as error:
            waited = time.perf_counter() - before
            raise WorkerLostError(
                f"rank {self.rank} of {self.world_size}: synchronization {self.rounds + 1} failed "
                f"after {waited:.1f} s; a worker has died or cannot be reached. Start again from "
                f"the last checkpoint. ({str(error).splitlines()[0]})"
            ) from error

    @torch.no_grad()
    def _apply(self, pending: _Pending) -> None:
        size = HEADER * self.world_size
        header = pending.buffer[:size].reshape(self.world_size, HEADER)
        bad = header[:, 1].nonzero().flatten().tolist()
        if bad and (self.on_nonfinite == "raise" or len(bad) == self.world_size):
            raise NonFiniteStateError(
                f"the state of rank {', '.join(map(str, bad))} holds NaN or infinity after "
                f"{self.optimizer.steps} steps; no state was averaged. Use a smaller lr, or "
                "on_nonfinite='skip-worker'"
            )
        total = float(header[:, 0].sum())
        if total <= 0:
            raise InputError("no worker counted any examples; call count(examples) every step")
        mean = pending.buffer[size:] / total
        mine_is_bad = self.rank in bad
        before = None
        if pending.snapshot is not None and not mine_is_bad:
            weight = float(header[self.rank, 0])
            before = pending.snapshot[size:] / (weight or 1.0)
        place = 0
        for tensor in self._tensors():
            part = slice(place, place + tensor.numel())
            value = mean[part].reshape(tensor.shape).to(tensor.dtype)
            if before is None:
                tensor.copy_(value)
            else:
                # What this worker has done since the average set out is added to it.
                tensor.add_(value - before[part].reshape(tensor.shape).to(tensor.dtype))
            place += tensor.numel()
        self.optimizer.refresh()


class _Pending:
    """An average on its way."""

    def __init__(self, buffer: Tensor, snapshot: Tensor | None, work: Any, due: int) -> None:
        self.buffer = buffer
        self.snapshot = snapshot
        self.work = work
        self.due = due


def synchronize(optimizer: LocalOptimizer, **options: Any) -> Synchronizer:
    """Have an optimizer average over all processes by itself, every `local_steps` steps.

    Options are those of `Synchronizer`, which is returned.
    """
    synchronizer = Synchronizer(optimizer, **options)

    def after_step(*_: Any) -> None:
        synchronizer.step()

    optimizer.register_step_post_hook(after_step)
    return synchronizer


def _floating(model: torch.nn.Module | None) -> list[Tensor]:
    if model is None:
        return []
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def _local_steps(optimizer: LocalOptimizer) -> int:
    steps = {int(group["local_steps"]) for group in optimizer.param_groups}
    if len(steps) != 1:
        raise InputError(f"all parameter groups must have the same local_steps, got {steps}")
    return steps.pop()


def _schedule(at: Iterable[int], local_steps: int) -> frozenset[int]:
    steps = sorted(set(at))
    if not steps or steps[0] < 1:
        raise InputError("at must hold steps from 1 on")
    gaps = [b - a for a, b in zip([0, *steps], steps, strict=False)]
    if max(gaps) > local_steps:
        raise InputError(
            f"two synchronizations are {max(gaps)} steps apart, more than local_steps={local_steps}"
        )
    return frozenset(steps)
