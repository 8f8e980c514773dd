"""Files beside a checkpoint with what every rank remembers: `run.pt.rank1.step128`.

All ranks write theirs before rank 0 replaces the checkpoint, and delete those of older checkpoints
only when the next one has been replaced. So the files that belong to the checkpoint are there
whenever a process is killed. The checkpoint has a hash of each, so that no others are taken.
"""

from __future__ import annotations

import glob
import hashlib
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from fedac.checkpoints import Envelope, MissingCheckpointError
from fedac.errors import InputError
from fedac.files import write_atomically
from fedac.torch.communication import Workers
from fedac.torch.state import SequenceOptimizer

ENVELOPE = Envelope(package="fedac.torch (the memory of one rank)", version=1, oldest=1)


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
    content = {**ENVELOPE.header(), **mine._asdict()}
    file = file_of(path, rank=rank, steps=optimizer.steps)
    ENVELOPE.write(file, lambda target: torch.save(content, target))
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
        ENVELOPE.require_header(found)
        mine = Memory(found["memory"], found.get("inside"), found.get("residuals"))
        if _hash(mine) != hashes[rank]:
            raise InputError(f"it was not written together with '{path}'; use the files of one run")
        return mine

    try:
        return ENVELOPE.read(file, read)
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
