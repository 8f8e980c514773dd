"""Checkpoints that are whole or not there, and that run no code when they are read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from fedac.errors import InputError
from fedac.torch.optimizer import LocalOptimizer
from torch import Tensor

FORMAT = "fedac.torch checkpoint"
VERSION = 1
KEYS = {"version", "algorithm", "steps", "rounds", "groups", "sequences", "buffers", "extra"}


def save(
    path: Path,
    optimizer: LocalOptimizer,
    buffers: list[Tensor],
    *,
    rounds: int,
    extra: dict[str, Any],
) -> None:
    """Write a checkpoint beside its place, then move it there: no reader sees half of one."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "algorithm": optimizer.algorithm.name,
        "steps": optimizer.steps,
        "rounds": rounds,
        "groups": [
            {key: group[key] for key in ("lr", "mu", "local_steps")}
            for group in optimizer.param_groups
        ],
        "sequences": [
            [sequence.detach().cpu() for sequence in optimizer.sequences(p)]
            for p in optimizer._all()
        ],
        "buffers": [buffer.detach().cpu() for buffer in buffers],
        "extra": extra,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def load(
    path: Path, optimizer: LocalOptimizer, buffers: list[Tensor]
) -> tuple[int, dict[str, Any]]:
    """Read a checkpoint into an optimizer; return the rounds it had made and its extra.

    Everything is checked before anything is changed.
    """
    content = _read(path)
    mine = optimizer.algorithm.name
    if content["algorithm"] != mine:
        raise InputError(f"'{path}' was written by '{content['algorithm']}', not by '{mine}'")
    params = optimizer._all()
    steps = [group["local_steps"] for group in content["groups"]]
    wanted = [group["local_steps"] for group in optimizer.param_groups]
    if steps != wanted:
        raise InputError(f"'{path}' was written with local_steps {steps}, not {wanted}")
    shapes = [tuple(p.shape) for p in params] + [tuple(b.shape) for b in buffers]
    found = [tuple(s[0].shape) for s in content["sequences"]]
    found += [tuple(b.shape) for b in content["buffers"]]
    if found != shapes:
        raise InputError(f"'{path}' holds another model: shapes {found}, not {shapes}")
    for p, sequences in zip(params, content["sequences"], strict=True):
        optimizer.set_sequences(p, sequences)
    with torch.no_grad():
        for buffer, value in zip(buffers, content["buffers"], strict=True):
            buffer.copy_(value)
    for group, saved in zip(optimizer.param_groups, content["groups"], strict=True):
        group.update(saved)
    optimizer.steps = content["steps"]
    optimizer.refresh()
    return content["rounds"], content["extra"]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"there is no checkpoint '{path}'")
    try:
        # Tensors and plain values only: a file from elsewhere must not run code.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch's reader fails in many ways on files that are not its own
        raise InputError(f"'{path}' is not a whole checkpoint of fedac.torch") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or KEYS - set(content):
        raise InputError(f"'{path}' is not a checkpoint of fedac.torch")
    if content["version"] > VERSION:
        raise InputError(f"'{path}' was written by a newer fedac (version {content['version']})")
    return content


def _sync_folder(folder: Path) -> None:
    """Have the file system remember the new name too, where it can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # pragma: no cover
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
