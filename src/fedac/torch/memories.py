"""Files beside a checkpoint with what every rank remembers: `run.pt.rank1.step128`.

All ranks write theirs before rank 0 replaces the checkpoint, and delete those of older checkpoints
only when the next one has been replaced. So the files that belong to the checkpoint are there
whenever a process is killed. The checkpoint has a hash of each, so that no others are taken.
"""

from __future__ import annotations

import glob
import hashlib
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fedac.checkpoints import Envelope, MissingCheckpointError
from fedac.errors import InputError
from fedac.torch.state import SequenceOptimizer

ENVELOPE = Envelope(package="fedac.torch (the memory of one rank)", version=1, oldest=1)

# By parameter; empty for one that never moved.
Memory = list[list[Tensor]]


def file_of(path: Path, *, rank: int, steps: int) -> Path:
    """Return where a rank's memory is, given the path of the checkpoint.

    >>> file_of(Path("run.pt"), rank=1, steps=128).name
    'run.pt.rank1.step128'
    """
    return path.with_name(f"{path.name}.rank{rank}.step{steps}")


def write_memory(path: Path, optimizer: SequenceOptimizer, rank: int) -> str:
    """Write what this rank remembers, and return the hash that identifies it."""
    memory: Memory = [
        [tensor.detach().cpu() for tensor in optimizer.kept(p, "memory")]
        if optimizer.state.get(p)
        else []
        for p in optimizer.parameters()
    ]
    content = {**ENVELOPE.header(), "memory": memory}
    file = file_of(path, rank=rank, steps=optimizer.steps)
    ENVELOPE.write(file, lambda target: torch.save(content, target))
    return _hash(memory)


def read_memory(path: Path, *, rank: int, ranks: int, content: dict[str, Any]) -> Memory:
    """Return what a rank remembers, given the checkpoint's content, or say what is wrong."""
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
        memory: Memory = found["memory"]
        if _hash(memory) != hashes[rank]:
            raise InputError(f"it was not written together with '{path}'; use the files of one run")
        return memory

    try:
        return ENVELOPE.read(file, read)
    except MissingCheckpointError:
        raise InputError(
            f"cannot use '{path}': '{file}' is missing, which holds what rank {rank} remembers; "
            "keep the files of all ranks beside the checkpoint"
        ) from None


def delete_others(path: Path, *, rank: int, keep: set[int]) -> None:
    """Delete a rank's files of all steps but some, and what a killed process left half-written."""
    name = f"{glob.escape(path.name)}.rank{rank}.step*"
    kept = {file_of(path, rank=rank, steps=steps).name for steps in keep}
    for file in (*path.parent.glob(name), *path.parent.glob(f".{name}.part")):
        if file.name not in kept:
            file.unlink(missing_ok=True)


def _hash(memory: Memory) -> str:
    found = hashlib.sha256()
    for tensors in memory:
        found.update(f"{len(tensors)} ".encode())
        for tensor in tensors:
            found.update(f"{tensor.dtype} {list(tensor.shape)} ".encode())
            found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()
