# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a distributed run; `fedac.federation.checkpoint` has the envelope.

A checkpoint holds the server's view of every parameter, the settings by group, steps, rounds,
buffers, and what the user adds. It is the same in all processes, and rank 0 writes it.

The state of each rank (memory of the algorithm, state of the user's optimizer, rounding errors) is
in files next to it: `run.pt.rank1.step128`. All ranks write before rank 0 replaces the
checkpoint, and delete their files of older checkpoints only afterwards. So the files that belong to
the checkpoint exist whenever a process is killed. The checkpoint has a hash of each file, so that
no other file is accepted.
"""

from __future__ import annotations

import glob
import hashlib
import io
import warnings
from functools import partial
from itertools import zip_longest
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.errors import InputError
from fedac.federation.checkpoint import Envelope, MissingCheckpointError
from fedac.paths import write_atomically
from fedac.torch._agreement import describe_inner, recenter
from fedac.torch._communication import Workers
from fedac.torch._round import Rounds, plain_name
from fedac.torch._state import (
    plain_settings,
    require_same_rules,
    rules_of,
    without_storage_of_others,
)

ENVELOPE = Envelope(package="fedac.torch", version=6)
RANK_ENVELOPE = Envelope(package="fedac.torch (the state of one rank)", version=2)
# Exceptions that are relayed to the other ranks, by name.
ERRORS = {"missing": MissingCheckpointError, "input": InputError, "file": OSError}
# Types that `torch.load` reads without running code; also in lists, tuples and dicts.
PLAIN = (int, float, bool, str, bytes, type(None), Tensor, torch.Size, torch.dtype, torch.device)


class RankState(NamedTuple):
    """State that only one rank has."""

    memory: list[list[Tensor]]  # by parameter; empty for one that never moved
    inner: Any = None  # the state dict of the user's optimizer
    residuals: list[Tensor] | None = None  # rounding errors, with error feedback


def save(path: Path, rounds: Rounds, *, last: int | None, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically; if one process fails, all do.

    `last` is the step of the checkpoint that is in the file now, if rank 0 knows it. `content` is
    what the synchronizer adds, including the user's "extra".
    """
    optimizer, workers = rounds.optimizer, rounds.workers
    workers.activity = f"the checkpoint after {optimizer.steps} steps"
    failure: Exception | None = None
    mine: dict[str, Any] = {"last": last}
    inner = None if optimizer.inner is None else optimizer.inner.optimizer
    try:
        for name, value in content["extra"].items():
            _require_plain(f"'{name}'", value)
        if inner is not None:
            _require_plain(f"the state of {type(inner).__name__}", inner.state_dict())
        if _ranks_differ(rounds) and workers.leads:
            mine["hash"] = _write_rank_state(path, rounds)
    except (InputError, OSError) as error:
        failure = error
    if _ranks_differ(rounds):
        reports = _report(workers, failure, "write a checkpoint", mine)
        on_disk = reports[0]["last"]
        if on_disk is not None and workers.leads:  # until rank 0 has written the new one
            _delete_others(path, rank=workers.rank, keep={on_disk, optimizer.steps})
        content["ranks"] = [reports[leader]["hash"] for leader in workers.leaders]
    elif inner is not None:
        content["inner"] = inner.state_dict()
    if workers.rank == 0 and workers.leads and failure is None:
        buffers = rounds.buffers.by_name()
        content |= {
            **ENVELOPE.header(),
            "optimizer": describe_inner(optimizer),
            "rules": rules_of(optimizer),
            "steps": optimizer.steps,
            "rounds_served": optimizer.rounds,
            "groups": [
                plain_settings(group) | {name: group[name] for name in ("last", "counted")}
                for group in optimizer.param_groups
            ],
            "sequences": [
                [without_storage_of_others(s.detach().cpu()) for s in optimizer.snapshot(p)]
                for p in optimizer.parameters()
            ],
            "buffers": [buffer.detach().cpu() for buffer in buffers.values()],
            "buffer_names": list(map(plain_name, buffers)),
        }
        # With several independent groups, the rank 0 of each one writes.
        writer = "" if (number := dist.get_rank()) == 0 else str(number)
        try:
            ENVELOPE.write(path, lambda file: torch.save(content, file), writer=writer)
        except (InputError, OSError) as error:  # a folder at this path, or a full disk
            failure = error
    _report(workers, failure, "write a checkpoint", {})


def load(path: Path, rounds: Rounds, *, names: list[str] | None, missing: str) -> dict[str, Any]:
    """Load a checkpoint into the optimizers and buffers of all processes; return its content.

    Rank 0 reads it and broadcasts it; every rank reads its file with private state. For `missing`
    see `Synchronizer.resume`. If one process cannot use it, all raise and none is changed. If there
    is no file, they raise `MissingCheckpointError`.
    """
    optimizer, workers = rounds.optimizer, rounds.workers
    workers.activity = "resuming"

    def parse(data: bytes) -> dict[str, Any]:
        content: dict[str, Any] = _load_safely(data)
        ENVELOPE.require_header(content)
        _require_fit(content, rounds, names)
        return content

    def read(file: BinaryIO) -> bytes:
        data = file.read()
        parse(data)
        return data

    data, failure = b"", None
    if workers.rank == 0 and workers.leads:
        try:
            data = ENVELOPE.read(path, read)
        except InputError as error:
            failure = error
    _report(workers, failure, "resume", {})
    content = parse(workers.broadcast_bytes(data))
    state: RankState | None = RankState([[] for _ in optimizer.parameters()], content.get("inner"))
    try:
        if _ranks_differ(rounds) and "ranks" in content:
            _fetch_rank_states(path, workers, steps=content["steps"])
            state = _read_rank_state(path, workers, content, missing=missing)
        elif _ranks_differ(rounds, residuals=False):
            raise InputError(f"cannot use '{path}': it lacks the state of each rank")
        if optimizer.inner is not None and state is not None:
            try:
                optimizer.inner.require_fit(state.inner)
            except InputError as error:
                raise InputError(f"cannot use '{path}': {error}") from None
    except InputError as error:
        failure = error
    reports = _report(workers, failure, "resume", {"has": state is not None})
    has = [reports[leader]["has"] for leader in workers.leaders]
    if state is not None and all(has):
        _apply(content, state, rounds)
    else:
        _apply(content, _without_some(rounds, state, has), rounds)
    if not (all(has) and all(group["counted"] for group in content["groups"])):
        params = [p for p in optimizer.parameters() if optimizer.state.get(p)]
        if optimizer.algorithm.changes and not optimizer.takes_mean:
            recenter(workers, optimizer, set(params))
            for p in params:  # the round begins with the new c
                optimizer.enter(p)
    if state is None and optimizer.inner is not None and optimizer.inner.state == "local":
        optimizer.inner.reset()
    optimizer.refresh()
    return content


def _load_safely(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _apply(content: dict[str, Any], state: RankState, rounds: Rounds) -> None:
    """Put a checkpoint into the optimizer and the buffers of this process."""
    optimizer, workers = rounds.optimizer, rounds.workers
    if optimizer.inner is not None and state.inner is not None:
        optimizer.inner.load(state.inner)
    with torch.no_grad():
        buffers = rounds.buffers.by_name().values()
        for buffer, value in zip(buffers, content["buffers"], strict=True):
            buffer.copy_(value)
    mine, theirs = (g[0]["local_steps"] for g in (optimizer.param_groups, content["groups"]))
    if mine != theirs and workers.rank == 0 and workers.leads:
        warnings.warn(
            f"the checkpoint was written with local_steps={theirs}; continuing with {mine}",
            stacklevel=4,
        )
    for group, saved in zip(optimizer.param_groups, content["groups"], strict=True):
        K = {"local_steps": mine}
        group.update(plain_settings(saved) | K | {"last": saved["last"] | K, "taken": 0})
        if len(saved["counted"]) == len(group["counted"]):  # else there are no memories
            group["counted"] = saved["counted"]
    optimizer.steps, optimizer.rounds = content["steps"], content["rounds_served"]
    optimizer.lower_lr(rounds.schedule.rounds(optimizer.steps))
    saved_by_parameter = zip(content["sequences"], state.memory, strict=True)
    for p, (sequences, memory) in zip(optimizer.parameters(), saved_by_parameter, strict=True):
        optimizer.set_sequences(p, sequences, memory)
    rounds.forget_residuals()
    if rounds.error_feedback and state.residuals:
        rounds.residuals = state.residuals


def _without_some(rounds: Rounds, state: RankState | None, has: list[bool]) -> RankState:
    """Warn, and return the state of this rank where some ranks lost theirs."""
    optimizer, workers = rounds.optimizer, rounds.workers
    lost = ", ".join(str(m) for m, present in enumerate(has) if not present)
    warnings.warn(
        f"the checkpoint file of rank {lost} is missing: its local state is reset; all other ranks "
        "continue from their files",
        stacklevel=4,
    )
    inner = None
    if optimizer.inner is not None and any(has):  # for lr, and what all have in common
        file = io.BytesIO()
        torch.save(state and state.inner, file)
        data = workers.broadcast_bytes(file.getvalue(), source=has.index(True))
        inner = _load_safely(data)
    no_memory: list[list[Tensor]] = [[] for _ in optimizer.parameters()]
    if state is None:
        return RankState(no_memory, inner)
    # A method that needs all workers in every round keeps the sum of all memories at zero.
    return state._replace(memory=no_memory) if optimizer.algorithm.everybody else state


def _report(
    workers: Workers, failure: Exception | None, activity: str, report: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the reports of all processes; if one has failed, all of them raise."""
    if failure is not None:
        kind = next(name for name in ERRORS if isinstance(failure, ERRORS[name]))
        report |= {"error": str(failure), "kind": kind}
    reports = workers.exchange(report)
    if failure is not None:
        raise failure
    for rank, theirs in enumerate(reports):
        if "error" in theirs:
            error = ERRORS[theirs["kind"]]
            if error is MissingCheckpointError:
                raise error(theirs["error"])
            raise error(f"rank {rank} cannot {activity}: {theirs['error']}")
    return reports


def _require_fit(content: dict[str, Any], rounds: Rounds, names: list[str] | None) -> None:
    """Reject a checkpoint of another optimizer or model."""
    optimizer, buffers = rounds.optimizer, rounds.buffers.by_name()
    groups = optimizer.param_groups
    if len(content["groups"]) != len(groups):
        raise InputError(f"it has {len(content['groups'])} parameter groups, not {len(groups)}")
    if content["optimizer"] != describe_inner(optimizer):
        writer = content["optimizer"]
        raise InputError(f"it was written with {writer}, not {describe_inner(optimizer)}")
    require_same_rules(optimizer, content["rules"])
    S = len(optimizer.algorithm.state_names)
    tensors = (*([p] * S for p in optimizer.parameters()), buffers.values())
    wanted = [t.shape for ts in tensors for t in ts]
    found = [t.shape for ts in (*content["sequences"], content["buffers"]) for t in ts]
    for theirs, mine in zip_longest(found, wanted):
        if theirs != mine:
            raise InputError(f"it holds another model: {theirs} in place of {mine}")
    pairs = zip(content["names"] or (), names or (), strict=False)
    more = zip(content["buffer_names"], map(plain_name, buffers), strict=False)
    for their_name, my_name in (*pairs, *more):
        if their_name != my_name:
            raise InputError(f"it has '{their_name}' where this model has '{my_name}'")


def _ranks_differ(rounds: Rounds, *, residuals: bool = True) -> bool:
    """Check whether a rank has state that no other rank has."""
    inner = rounds.optimizer.inner
    local_state = inner is not None and inner.state == "local"
    feedback = residuals and rounds.error_feedback
    return bool(rounds.optimizer.algorithm.memory) or local_state or feedback


def _require_plain(name: str, value: Any) -> None:
    """Raise an error for values that could not be loaded without running code."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            _require_plain(name, item)
    elif type(value) not in (*PLAIN, torch.nn.Parameter):
        raise InputError(
            f"{name} holds a {type(value).__name__}; a checkpoint can hold numbers, texts, "
            "tensors, and lists and dicts of these"
        )


def _rank_file(path: Path, *, rank: int, steps: int) -> Path:
    return path.with_name(f"{path.name}.rank{rank}.step{steps}")


def _write_rank_state(path: Path, rounds: Rounds) -> str:
    """Write the state of this rank, and return the hash that identifies it."""
    optimizer = rounds.optimizer
    inner = None if optimizer.inner is None else optimizer.inner.optimizer.state_dict()
    memory = [
        [tensor.detach().cpu() for tensor in optimizer.kept(p, "memory")]
        if optimizer.state.get(p)
        else []
        for p in optimizer.parameters()
    ]
    mine = RankState(memory, inner, rounds.residuals if rounds.error_feedback else None)
    content = {**RANK_ENVELOPE.header(), **mine._asdict()}
    file = _rank_file(path, rank=rounds.workers.rank, steps=optimizer.steps)
    RANK_ENVELOPE.write(file, lambda target: torch.save(content, target))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _read_rank_state(
    path: Path, workers: Workers, content: dict[str, Any], *, missing: str
) -> RankState | None:
    """Return the state of this rank; None if its file is missing and `missing` is "reset"."""
    hashes = content["ranks"]
    if len(hashes) != workers.size:
        raise InputError(
            f"cannot use '{path}': it belongs to {len(hashes)} processes, each with its own "
            f"state, and now there are {workers.size}; start {len(hashes)} processes"
        )
    file = _rank_file(path, rank=workers.rank, steps=content["steps"])

    def read(source: BinaryIO) -> RankState:
        data = source.read()
        found = _load_safely(data)
        RANK_ENVELOPE.require_header(found)
        if hashlib.sha256(data).hexdigest() != hashes[workers.rank]:
            raise InputError(f"it was not written together with '{path}'; use the files of one run")
        return RankState(found["memory"], found["inner"], found["residuals"])

    try:
        return RANK_ENVELOPE.read(file, read)
    except MissingCheckpointError:
        if missing == "reset":
            return None
        raise InputError(
            f"cannot use '{path}': '{file}' is missing, which holds the state of rank "
            f"{workers.rank}; keep the files of all ranks next to the checkpoint, or resume with "
            "missing='reset'"
        ) from None


def _fetch_rank_states(path: Path, workers: Workers, *, steps: int) -> None:
    """Copy files to the ranks that need them, from any rank that has them.

    Without a shared disk, a rank that restarts on another machine does not find its own.
    """
    files = [_rank_file(path, rank=m, steps=steps) for m in range(workers.size)]
    reports = workers.exchange({"has": [m for m, file in enumerate(files) if file.exists()]})
    has = [reports[leader]["has"] for leader in workers.leaders]
    for m, file in enumerate(files):
        sources = [other for other, theirs in enumerate(has) if m in theirs]
        if m in has[m] or not sources:
            continue
        mine = workers.leads and workers.rank == sources[0]
        data = workers.broadcast_bytes(file.read_bytes() if mine else b"", source=sources[0])
        if workers.leads and workers.rank == m:
            write_atomically(file, partial(copyfileobj, io.BytesIO(data)), private=True)


def _delete_others(path: Path, *, rank: int, keep: set[int]) -> None:
    """Delete a rank's files of all steps but some, and what a killed process left half-written."""
    name = f"{glob.escape(path.name)}.rank{rank}.step*"
    kept = {_rank_file(path, rank=rank, steps=steps).name for steps in keep}
    for file in (*path.parent.glob(name), *path.parent.glob(f".{name}.part")):
        if file.name not in kept:
            file.unlink(missing_ok=True)
