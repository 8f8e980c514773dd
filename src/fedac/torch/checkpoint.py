"""What a checkpoint of a distributed run holds; `fedac.checkpoints` has the envelope.

All sequences of every parameter, the settings by group, steps, rounds, buffers, and what the user
adds.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fedac.checkpoints import Envelope, MissingCheckpointError
from fedac.errors import InputError
from fedac.torch.optimizer import LocalOptimizer
from fedac.torch.state import plain_settings, upgrade
from fedac.torch.workers import Workers, require_same

ENVELOPE = Envelope(package="fedac.torch", version=3, oldest=2)
# What `torch.load` reads without running code, apart from lists, tuples and dicts of these.
PLAIN = (int, float, bool, str, bytes, type(None), Tensor, torch.Size, torch.dtype, torch.device)


def save(
    path: Path,
    optimizer: LocalOptimizer,
    buffers: list[Tensor],
    *,
    rounds: int,
    extra: dict[str, Any],
) -> None:
    """Write a checkpoint atomically."""
    for name, value in extra.items():
        _require_plain(name, value)
    content = {
        **ENVELOPE.header(),
        "rules": optimizer.rules(),
        "steps": optimizer.steps,
        "rounds": rounds,
        "groups": [
            plain_settings(group) | {"last": group["last"]} for group in optimizer.param_groups
        ],
        "sequences": [
            [sequence.detach().cpu() for sequence in optimizer.snapshot(p)]
            for p in optimizer.parameters()
        ],
        "buffers": [buffer.detach().cpu() for buffer in buffers],
        "extra": extra,
    }

    def write(file: BinaryIO) -> None:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # PyTorch hides the cause
            raise OSError("is the disk full?") from error

    ENVELOPE.write(path, write)


def read_together(
    path: Path,
    workers: Workers,
    optimizer: LocalOptimizer,
    buffers: list[Tensor],
    *,
    missing_ok: bool,
) -> dict[str, Any] | None:
    """Read a checkpoint in all processes, for `restore`; if one cannot use it, all refuse.

    With `missing_ok`, return None if no process has a file.
    """

    def load(file: BinaryIO) -> dict[str, Any]:
        content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        ENVELOPE.require_header(content)
        content = upgrade(content, "groups")
        _require_fit(content, optimizer, buffers)
        return content

    mine: dict[str, Any] = {"error": "", "missing": False, "steps": -1}
    try:
        content = ENVELOPE.read(path, load)
        mine["steps"] = content["steps"]
    except InputError as error:
        mine |= {"error": str(error), "missing": isinstance(error, MissingCheckpointError)}
    reports = workers.exchange(mine)
    if missing_ok and all(theirs["missing"] for theirs in reports):
        return None
    if mine["error"]:
        raise InputError(mine["error"])
    for rank, theirs in enumerate(reports):
        if theirs["error"]:
            raise InputError(f"rank {rank} cannot resume: {theirs['error']}")
    require_same("the steps of their checkpoints", [theirs["steps"] for theirs in reports])
    return content


def restore(content: dict[str, Any], optimizer: LocalOptimizer, buffers: list[Tensor]) -> None:
    """Put what `read` returned into an optimizer."""
    for p, sequences in zip(optimizer.parameters(), content["sequences"], strict=True):
        optimizer.set_sequences(p, sequences)
    with torch.no_grad():
        for buffer, value in zip(buffers, content["buffers"], strict=True):
            buffer.copy_(value)
    for group, saved in zip(optimizer.param_groups, content["groups"], strict=True):
        group.update(plain_settings(saved) | {"last": saved["last"]})
    optimizer.steps = content["steps"]
    optimizer.refresh()


def _require_fit(content: dict[str, Any], optimizer: LocalOptimizer, buffers: list[Tensor]) -> None:
    groups = optimizer.param_groups
    if len(content["groups"]) != len(groups):
        raise InputError(f"it has {len(content['groups'])} parameter groups, not {len(groups)}")
    optimizer.require_same_rules(content["rules"])
    theirs, mine = content["groups"][0]["local_steps"], groups[0]["local_steps"]
    if theirs != mine:  # all groups have the same
        raise InputError(f"it was written with local_steps={theirs}, not {mine}")
    S = len(optimizer.algorithm.sequences)
    wanted = [p.shape for p in optimizer.parameters() for _ in range(S)]
    found = [sequence.shape for sequences in content["sequences"] for sequence in sequences]
    wanted += [buffer.shape for buffer in buffers]
    found += [buffer.shape for buffer in content["buffers"]]
    for theirs, mine in zip_longest(found, wanted):
        if theirs != mine:
            raise InputError(f"it holds another model: {theirs} in place of {mine}")


def _require_plain(name: str, value: Any) -> None:
    """Refuse now what could not be read again without running code."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            _require_plain(name, item)
    elif type(value) not in (*PLAIN, torch.nn.Parameter):
        raise InputError(
            f"'{name}' holds a {type(value).__name__}; a checkpoint can hold numbers, texts, "
            "tensors, and lists and dicts of these"
        )
