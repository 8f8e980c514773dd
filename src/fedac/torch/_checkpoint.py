"""What a checkpoint of a distributed run holds; `fedac.federation.checkpoint` has the envelope.

All that the server holds of every parameter, the settings by group, steps, rounds, buffers, and
what the user adds. It is the same in all processes, and rank 0 writes it. What each rank remembers,
the state of its own optimizer included, is in files of their own (`fedac.torch._checkpoint`).
"""

from __future__ import annotations

import glob
import hashlib
import io
import warnings
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.errors import InputError
from fedac.federation.checkpoint import Envelope, MissingCheckpointError
from fedac.paths import write_atomically
from fedac.torch._agreement import describe_inside, recenter
from fedac.torch._buffers import Buffers
from fedac.torch._communication import Workers, plain_settings, upgrade
from fedac.torch._optimizer import LocalOptimizer
from fedac.torch._state import Inside, SequenceOptimizer, on_its_own

ENVELOPE = Envelope(package="fedac.torch", version=5, oldest=2)
# What one process may fail with, by the name under which the others hear of it.
ERRORS = {"missing": MissingCheckpointError, "input": InputError, "file": OSError}
# What `torch.load` reads without running code, apart from lists, tuples and dicts of these.
PLAIN = (int, float, bool, str, bytes, type(None), Tensor, torch.Size, torch.dtype, torch.device)


def save(
    path: Path,
    optimizer: LocalOptimizer,
    buffers: Buffers,
    workers: Workers,
    *,
    last: int | None,
    names: list[str] | None,
    residuals: list[Tensor] | None,
    **more: Any,
) -> None:
    """Write a checkpoint atomically; `more` is "rounds" and "extra", what the user adds.

    `last` is the step of the checkpoint that is in the file now, if rank 0 knows it. `names` are
    those of the parameters. If one process fails, all do.
    """
    workers.activity = f"the checkpoint after {optimizer.steps} steps"
    failure: Exception | None = None
    if _ranks_remember(optimizer, residuals=residuals is not None):
        mine: dict[str, Any] = {"last": last}
        try:
            _require_plain_values(more["extra"])
            if workers.leads:
                inside = _plain_state(optimizer)
                mine["hash"] = write_memory(
                    path, optimizer, workers.rank, inside=inside, residuals=residuals
                )
        except (InputError, OSError) as error:
            failure = error
        reports = _tell_all(workers, failure, "write a checkpoint", mine)
        on_disk = reports[0]["last"]
        if on_disk is not None and workers.leads:  # until rank 0 has written the new one
            delete_others(path, rank=workers.rank, keep={on_disk, optimizer.steps})
        more["memories"] = [reports[leader]["hash"] for leader in workers.leaders]
    elif optimizer.inside is not None:
        more["inside"] = optimizer.inside.optimizer.state_dict()
    if workers.rank == 0 and workers.leads:
        try:
            _require_plain_values(more["extra"])
            _plain_state(optimizer)
            content = _content(optimizer, buffers) | {"names": names} | more
            # Where several groups train alike, each has a rank 0 that writes.
            writer = "" if (number := dist.get_rank()) == 0 else str(number)
            ENVELOPE.write(path, lambda file: torch.save(content, file), writer=writer)
        except (InputError, OSError) as error:
            failure = error
    _tell_all(workers, failure, "write a checkpoint", {})


def _content(optimizer: LocalOptimizer, buffers: Buffers) -> dict[str, Any]:
    return {
        **ENVELOPE.header(),
        "optimizer": describe_inside(optimizer),
        "rules": optimizer.rules(),
        "steps": optimizer.steps,
        "rounds_served": optimizer.rounds,
        "groups": [
            plain_settings(group) | {name: group[name] for name in ("last", "counted")}
            for group in optimizer.param_groups
        ],
        "sequences": [
            [on_its_own(sequence.detach().cpu()) for sequence in optimizer.snapshot(p)]
            for p in optimizer.parameters()
        ],
        "buffers": [buffer.detach().cpu() for buffer in buffers.all()],
        "buffer_names": buffers.names,
    }


def load(
    path: Path,
    optimizer: LocalOptimizer,
    buffers: Buffers,
    workers: Workers,
    *,
    names: list[str] | None,
    residuals: bool,
    missing: str,
    r: Callable[[int], int],
) -> tuple[dict[str, Any], Memory]:
    """Put a checkpoint into the optimizers and buffers of all processes; return what it holds.

    Rank 0 reads it and sends it to the others, each of which reads its own memory. `residuals` says
    whether there should be some. `missing` says what becomes of a rank whose file is missing
    (`Synchronizer.resume`). `r` is the number of the round that begins after so many steps,
    for an lr that falls. If one process cannot use it, all refuse, and none is changed; if there is
    no file, with `MissingCheckpointError`.
    """
    workers.activity = "resuming"

    def parse(data: bytes) -> dict[str, Any]:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        ENVELOPE.require_header(content)
        content = upgrade(content, "groups")
        _require_fit(content, optimizer, buffers, names)
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
    _tell_all(workers, failure, "resume", {})
    content = parse(workers.broadcast_bytes(data))
    nothing = Memory([[] for _ in optimizer.parameters()], content.get("inside"), None)
    found: Memory | None = nothing
    try:
        if _ranks_remember(optimizer, residuals=residuals) and "memories" in content:
            fetch_memories(path, workers, steps=content["steps"])
            ranks = {"rank": workers.rank, "ranks": workers.size}
            found = read_memory(path, **ranks, content=content, missing=missing)
        elif _ranks_remember(optimizer, residuals=False):
            raise InputError(f"cannot use '{path}': it does not say what ranks remember")
        if optimizer.inside is not None and found is not None:
            _require_inside(path, optimizer.inside, found.inside)
    except InputError as error:
        failure = error
    reports = _tell_all(workers, failure, "resume", {"has": found is not None})
    has = [reports[leader]["has"] for leader in workers.leaders]
    memory = nothing if found is None else found
    if not all(has):
        memory = _without_some(optimizer, workers, memory, has)

    if optimizer.inside is not None and memory.inside is not None:
        optimizer.inside.load(memory.inside)
    with torch.no_grad():
        for buffer, value in zip(buffers.all(), content["buffers"], strict=True):
            buffer.copy_(value)
    _load_settings(optimizer, content["groups"], notify=workers.rank == 0 and workers.leads)
    optimizer.steps, optimizer.rounds = content["steps"], content["rounds_served"]
    optimizer.lower_lr(r(optimizer.steps))
    saved_by_parameter = zip(content["sequences"], memory.memory, strict=True)
    for p, (sequences, mine) in zip(optimizer.parameters(), saved_by_parameter, strict=True):
        optimizer.set_sequences(p, sequences, mine)
    if not (all(has) and all(group["counted"] for group in content["groups"])):
        _recenter(optimizer, workers)
    if found is None and optimizer.inside is not None and optimizer.inside.state == "local":
        optimizer.inside.reset()
    optimizer.refresh()
    return content, memory


def _without_some(
    optimizer: LocalOptimizer, workers: Workers, memory: Memory, has: list[bool]
) -> Memory:
    """Return what this rank remembers where some ranks begin anew, and warn of it."""
    lost = ", ".join(str(m) for m, present in enumerate(has) if not present)
    warnings.warn(
        f"the checkpoint file of rank {lost} is missing: its local state is reset; all other ranks "
        "continue from their files",
        stacklevel=4,
    )
    if optimizer.inside is not None and any(has):  # lr, and what all have in common
        source = has.index(True)
        file = io.BytesIO()
        torch.save(memory.inside, file)
        data = workers.broadcast_bytes(file.getvalue(), source=source)
        if not has[workers.rank]:
            inside = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            memory = memory._replace(inside=inside)
    if optimizer.algorithm.everybody:  # the sum of what all remember must stay zero
        memory = memory._replace(memory=[[] for _ in memory.memory])
    return memory


def _recenter(optimizer: LocalOptimizer, workers: Workers) -> None:
    """Let c be the mean of what ranks remember now, and begin the round with it."""
    params = [p for p in optimizer.parameters() if optimizer.state.get(p)]
    if optimizer.algorithm.changes and not optimizer.takes_mean:
        recenter(workers, optimizer, set(params))
        for p in params:
            optimizer.enter(p)


def _require_inside(path: Path, inside: Inside, saved: Any) -> None:
    try:
        inside.require_fit(saved)
    except InputError as error:
        raise InputError(f"cannot use '{path}': {error}") from None


def _load_settings(
    optimizer: LocalOptimizer, groups: list[dict[str, Any]], *, notify: bool
) -> None:
    """Take over the settings of a checkpoint, all but local_steps."""
    mine, theirs = (g[0]["local_steps"] for g in (optimizer.param_groups, groups))
    if mine != theirs and notify:
        warnings.warn(
            f"the checkpoint was written with local_steps={theirs}; continuing with {mine}",
            stacklevel=4,
        )
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        K = {"local_steps": mine}
        group.update(plain_settings(saved) | K | {"last": saved["last"] | K, "taken": 0})
        if len(saved["counted"]) == len(group["counted"]):  # else no rank remembers anything
            group["counted"] = saved["counted"]


def _tell_all(
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


def _require_fit(
    content: dict[str, Any],
    optimizer: LocalOptimizer,
    buffers: Buffers,
    names: list[str] | None,
) -> None:
    groups = optimizer.param_groups
    if len(content["groups"]) != len(groups):
        raise InputError(f"it has {len(content['groups'])} parameter groups, not {len(groups)}")
    ours = "an optimizer of fedac.torch"  # what all had before others could be synchronized
    writer = content.get("optimizer", ours)
    if writer != describe_inside(optimizer):
        raise InputError(f"it was written with {writer}, not {describe_inside(optimizer)}")
    optimizer.require_same_rules(content["rules"])
    S = len(optimizer.algorithm.state_names)
    tensors = (*([p] * S for p in optimizer.parameters()), buffers.all())
    wanted = [t.shape for ts in tensors for t in ts]
    found = [t.shape for ts in (*content["sequences"], content["buffers"]) for t in ts]
    for theirs, mine in zip_longest(found, wanted):
        if theirs != mine:
            raise InputError(f"it holds another model: {theirs} in place of {mine}")
    pairs = zip(content.get("names") or (), names or (), strict=False)
    more = zip(content.get("buffer_names", ()), buffers.names, strict=False)
    for theirs, mine in (*pairs, *more):
        if theirs != mine:
            raise InputError(f"it has '{theirs}' where this model has '{mine}'")


def _ranks_remember(optimizer: LocalOptimizer, *, residuals: bool) -> bool:
    """Check whether a rank keeps what no other rank has."""
    local_state = optimizer.inside is not None and optimizer.inside.state == "local"
    return bool(optimizer.algorithm.memory) or local_state or residuals


def _plain_state(optimizer: LocalOptimizer) -> dict[str, Any] | None:
    """Return the state of a user's optimizer, if there is one, or say why it cannot be saved."""
    if optimizer.inside is None:
        return None
    state: dict[str, Any] = optimizer.inside.optimizer.state_dict()
    _require_plain(f"the state of {type(optimizer.inside.optimizer).__name__}", state)
    return state


def _require_plain_values(extra: dict[str, Any]) -> None:
    for name, value in extra.items():
        _require_plain(f"'{name}'", value)


def _require_plain(name: str, value: Any) -> None:
    """Refuse now what could not be read again without running code."""
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


# --- Files beside a checkpoint with what every rank remembers: `run.pt.rank1.step128`.
#
# All ranks write theirs before rank 0 replaces the checkpoint, and delete those of older
# checkpoints
# only when the next one has been replaced. So the files that belong to the checkpoint are there
# whenever a process is killed. The checkpoint has a hash of each, so that no others are taken.

MEMORY_ENVELOPE = Envelope(package="fedac.torch (the memory of one rank)", version=1, oldest=1)


class Memory(NamedTuple):
    """What a rank remembers."""

    memory: list[list[Tensor]]  # by parameter; empty for one that never moved
    inside: Any  # the state dict of the user's optimizer, or None if it is one of ours
    residuals: list[Tensor] | None  # what rounding took from messages, with error feedback


def file_of(path: Path, *, rank: int, steps: int) -> Path:
    """Return where a rank's memory is, given the path of the checkpoint.

    >>> file_of(Path("run.pt"), rank=1, steps=128).name
    'run.pt.rank1.step128'
    """
    return path.with_name(f"{path.name}.rank{rank}.step{steps}")


def write_memory(
    path: Path,
    optimizer: SequenceOptimizer,
    rank: int,
    *,
    inside: Any,
    residuals: list[Tensor] | None,
) -> str:
    """Write what this rank remembers, and return the hash that identifies it."""
    memory = [
        [tensor.detach().cpu() for tensor in optimizer.kept(p, "memory")]
        if optimizer.state.get(p)
        else []
        for p in optimizer.parameters()
    ]
    mine = Memory(memory, inside, residuals)
    content = {**MEMORY_ENVELOPE.header(), **mine._asdict()}
    file = file_of(path, rank=rank, steps=optimizer.steps)
    MEMORY_ENVELOPE.write(file, lambda target: torch.save(content, target))
    return _hash(mine)


def read_memory(
    path: Path, *, rank: int, ranks: int, content: dict[str, Any], missing: str
) -> Memory | None:
    """Return what a rank remembers, given the checkpoint's content, or say what is wrong.

    Return None if its file is missing and `missing` is "reset".
    """
    hashes = content["memories"]
    if len(hashes) != ranks:
        raise InputError(
            f"cannot use '{path}': it belongs to {len(hashes)} processes, each with a memory of "
            f"its own, and now there are {ranks}; start {len(hashes)} processes"
        )
    file = file_of(path, rank=rank, steps=content["steps"])

    def read(source: BinaryIO) -> Memory:
        found = torch.load(source, map_location="cpu", weights_only=True)
        MEMORY_ENVELOPE.require_header(found)
        mine = Memory(found["memory"], found.get("inside"), found.get("residuals"))
        if _hash(mine) != hashes[rank]:
            raise InputError(f"it was not written together with '{path}'; use the files of one run")
        return mine

    try:
        return MEMORY_ENVELOPE.read(file, read)
    except MissingCheckpointError:
        if missing == "reset":
            return None
        raise InputError(
            f"cannot use '{path}': '{file}' is missing, which holds what rank {rank} remembers; "
            "keep the files of all ranks beside the checkpoint, or resume with missing='reset'"
        ) from None


def fetch_memories(path: Path, workers: Workers, *, steps: int) -> None:
    """Copy files to the ranks that need them, from whoever has them.

    Without a shared disk, a rank that is on another machine after a restart misses its own.
    """
    files = [file_of(path, rank=m, steps=steps) for m in range(workers.size)]
    reports = workers.exchange({"has": [m for m, file in enumerate(files) if file.exists()]})
    has = [reports[leader]["has"] for leader in workers.leaders]
    for m, file in enumerate(files):
        sources = [other for other, theirs in enumerate(has) if m in theirs]
        if m in has[m] or not sources:
            continue
        mine = workers.leads and workers.rank == sources[0]
        data = workers.broadcast_bytes(file.read_bytes() if mine else b"", source=sources[0])
        if workers.leads and workers.rank == m:
            write_atomically(file, partial(_write, data), private=True)


def _write(data: bytes, file: BinaryIO) -> None:
    file.write(data)


def delete_others(path: Path, *, rank: int, keep: set[int]) -> None:
    """Delete a rank's files of all steps but some, and what a killed process left half-written."""
    name = f"{glob.escape(path.name)}.rank{rank}.step*"
    kept = {file_of(path, rank=rank, steps=steps).name for steps in keep}
    for file in (*path.parent.glob(name), *path.parent.glob(f".{name}.part")):
        if file.name not in kept:
            file.unlink(missing_ok=True)


def _hash(mine: Memory) -> str:
    found = hashlib.sha256()
    for tensors in mine.memory:
        found.update(f"{len(tensors)} ".encode())
        for tensor in tensors:
            _add(found, tensor)
    for more in (mine.inside, mine.residuals):
        if more is not None:
            _add(found, more)
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    """Add a value to a hash, whatever lists and dicts it is made of."""
    if isinstance(value, Tensor):
        found.update(f"{value.dtype} {list(value.shape)} ".encode())
        # As bytes: NumPy has no bfloat16.
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict | list | tuple):
        found.update(f"{len(value)} ".encode())
        for item in value.items() if isinstance(value, dict) else value:
            _add(found, item)
    else:
        found.update(f"{value!r} ".encode())
