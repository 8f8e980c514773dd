"""Checkpoints that are whole or not there, and that run no code when they are read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.files import write_atomically
from fedac.torch.optimizer import LocalOptimizer

FORMAT = "fedac.torch checkpoint"
VERSION = 2
# Of every parameter group; what else there is the user chose when he made it.
NUMBERS = ("lr", "mu", "local_steps", "shown")


class MissingCheckpointError(InputError):
    """There is no file at this path."""


def save(
    path: Path,
    optimizer: LocalOptimizer,
    buffers: list[Tensor],
    *,
    rounds: int,
    extra: dict[str, Any],
) -> None:
    """Write a checkpoint beside its place, then move it there: no reader sees half of one."""
    _require_plain(extra)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "algorithm": optimizer.algorithm.name,
        "coupling": optimizer.coupling(),
        "steps": optimizer.steps,
        "rounds": rounds,
        "groups": optimizer.numbers(),
        "sequences": [
            [sequence.detach().cpu() for sequence in optimizer.snapshot(p)]
            for p in optimizer.parameters()
        ],
        "buffers": [buffer.detach().cpu() for buffer in buffers],
        "extra": extra,
    }
    try:
        write_atomically(path, lambda file: torch.save(content, file))
    except (OSError, RuntimeError) as error:
        # PyTorch has its own words for a full disk.
        why = (error.strerror or error) if isinstance(error, OSError) else "is the disk full?"
        raise OSError(f"the checkpoint '{path}' could not be written: {why}") from error


def read(path: Path, optimizer: LocalOptimizer, buffers: list[Tensor]) -> dict[str, Any]:
    """Return what a checkpoint holds, if it fits an optimizer; nothing is changed."""
    content = _read(path)
    try:
        _require_fit(content, optimizer, buffers)
    except InputError as error:
        raise InputError(f"'{path}': {error}") from None
    except Exception as error:  # the right keys, but not our values
        raise InputError(f"'{path}' is not a checkpoint of fedac.torch") from error
    return content


def restore(content: dict[str, Any], optimizer: LocalOptimizer, buffers: list[Tensor]) -> None:
    """Put what `read` has returned into an optimizer."""
    for p, sequences in zip(optimizer.parameters(), content["sequences"], strict=True):
        optimizer.set_sequences(p, sequences)
    with torch.no_grad():
        for buffer, value in zip(buffers, content["buffers"], strict=True):
            buffer.copy_(value)
    for group, saved in zip(optimizer.param_groups, content["groups"], strict=True):
        group.update({key: saved[key] for key in NUMBERS})
    optimizer.steps = content["steps"]
    optimizer.refresh()


def _read(path: Path) -> dict[str, Any]:
    if path.parent.exists() and not path.parent.is_dir():
        raise InputError(f"'{path}' cannot be: '{path.parent}' is no folder")
    if not path.exists():
        raise MissingCheckpointError(f"there is no checkpoint '{path}'")
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error
    with file:
        try:
            _require_checksums(file)
            # Tensors and plain values only: a file from elsewhere must not run code.
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # files that are not its own fail PyTorch in many ways
            raise InputError(f"'{path}' is not a whole checkpoint of fedac.torch") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"'{path}' is not a checkpoint of fedac.torch")
    version = content.get("version")
    if version != VERSION:
        raise InputError(f"'{path}' is of version {version!r}; this fedac reads version {VERSION}")
    return content


def _require_checksums(file: BinaryIO) -> None:
    """Refuse a file with a damaged record; PyTorch writes checksums but does not read them."""
    with zipfile.ZipFile(file) as records:
        damaged = records.testzip()
    if damaged is not None:
        raise ValueError(f"record '{damaged}' is damaged")
    file.seek(0)


def _require_fit(content: dict[str, Any], optimizer: LocalOptimizer, buffers: list[Tensor]) -> None:
    if len(content["groups"]) != len(optimizer.param_groups):
        raise InputError(
            f"it has {len(content['groups'])} parameter groups, not {len(optimizer.param_groups)}"
        )
    steps = [group["local_steps"] for group in content["groups"]]
    wanted = [group["local_steps"] for group in optimizer.param_groups]
    if steps != wanted:
        raise InputError(f"it was written with local_steps {steps}, not {wanted}")
    optimizer.require_same_rules(content["algorithm"], content["groups"], content["coupling"])
    S = len(optimizer.algorithm.sequences)
    params = optimizer.parameters()
    shapes = [(tuple(p.shape),) * S for p in params] + [(tuple(b.shape),) for b in buffers]
    found = [tuple(tuple(s.shape) for s in sequences) for sequences in content["sequences"]]
    found += [(tuple(b.shape),) for b in content["buffers"]]
    for mine, theirs in zip(shapes, found, strict=False):
        if mine != theirs:
            raise InputError(f"it holds another model: shape {theirs[0]} in place of {mine[0]}")
    if len(found) != len(shapes):
        raise InputError(f"it holds another model: {len(found)} tensors, not {len(shapes)}")
    for count in (content["steps"], content["rounds"]):
        if not isinstance(count, int) or count < 0:
            raise ValueError("steps and rounds are counts")
    if not isinstance(content["extra"], dict) or not all(
        set(NUMBERS) <= set(group) for group in content["groups"]
    ):
        raise ValueError("something is missing")


def _require_plain(extra: dict[str, Any]) -> None:
    """Refuse now what could not be read again without running code."""
    for name, value in extra.items():
        file = io.BytesIO()
        try:
            torch.save(value, file)
            file.seek(0)
            torch.load(file, weights_only=True)
        except Exception as error:
            raise InputError(
                f"'{name}' of type {type(value).__name__} cannot go into a checkpoint, which holds "
                "Python's numbers and texts, tensors, and lists and dicts of these only"
            ) from error
