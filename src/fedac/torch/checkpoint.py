"""What a checkpoint of a distributed run holds; `fedac.checkpoints` has the envelope.

All that the server holds of every parameter, the settings by group, steps, rounds, buffers, and
what the user adds. It is the same in all processes, and rank 0 writes it. What each rank remembers,
the state of its own optimizer included, is in files of their own (`fedac.torch.memories`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fedac.checkpoints import Envelope, MissingCheckpointError
from fedac.errors import InputError
from fedac.torch.agreement import describe_inside
from fedac.torch.communication import Workers, require_same
from fedac.torch.memories import delete_others, read_memory, write_memory
from fedac.torch.optimizer import LocalOptimizer
from fedac.torch.settings import plain_settings, upgrade

ENVELOPE = Envelope(package="fedac.torch", version=4, oldest=2)
# What `torch.load` reads without running code, apart from lists, tuples and dicts of these.
PLAIN = (int, float, bool, str, bytes, type(None), Tensor, torch.Size, torch.dtype, torch.device)


def save(
    path: Path,
    optimizer: LocalOptimizer,
    buffers: list[Tensor],
    workers: Workers,
    *,
    last: int | None,
    **more: Any,
) -> None:
    """Write a checkpoint atomically; `more` is "rounds" and "extra", what the user adds.

    `last` is the step of the checkpoint that is in the file now, if rank 0 knows it.
    """
    if _ranks_remember(optimizer):
        more["memories"] = _save_memories(path, optimizer, workers, last=last, extra=more["extra"])
    if workers.rank != 0:
        return
    _require_plain_values(more["extra"])
    if optimizer.inside is not None and not _ranks_remember(optimizer):
        more["inside"] = _plain_state(optimizer)
    content = {
        **ENVELOPE.header(),
        "optimizer": describe_inside(optimizer),
        "rules": optimizer.rules(),
        "steps": optimizer.steps,
        "rounds_served": optimizer.rounds,
        "groups": [
            plain_settings(group) | {"last": group["last"]} for group in optimizer.param_groups
        ],
        "sequences": [
            [sequence.detach().cpu() for sequence in optimizer.snapshot(p)]
            for p in optimizer.parameters()
        ],
        "buffers": [buffer.detach().cpu() for buffer in buffers],
        **more,
    }
    ENVELOPE.write(path, lambda file: torch.save(content, file))


def _save_memories(
    path: Path,
    optimizer: LocalOptimizer,
    workers: Workers,
    *,
    last: int | None,
    extra: dict[str, Any],
) -> list[str]:
    """Let every rank write what it remembers, and return the hashes; if one cannot, all refuse."""
    workers.activity = f"the checkpoint after {optimizer.steps} steps"
    mine: dict[str, Any] = {"last": last}
    failure: Exception | None = None
    try:
        _require_plain_values(extra)
        mine["hash"] = write_memory(path, optimizer, workers.rank, inside=_plain_state(optimizer))
    except (InputError, OSError) as error:
        failure = error
        mine["error"] = str(error)
    reports = workers.exchange(mine)
    if failure is not None:
        raise failure
    for rank, theirs in enumerate(reports):
        if "error" in theirs:
            raise OSError(f"rank {rank} cannot write a checkpoint: {theirs['error']}")
    on_disk = reports[0]["last"]
    if on_disk is not None:  # it stays there until rank 0 has written the new one
        delete_others(path, rank=workers.rank, keep={on_disk, optimizer.steps})
    return [theirs["hash"] for theirs in reports]


def load(
    path: Path,
    optimizer: LocalOptimizer,
    buffers: list[Tensor],
    workers: Workers,
    r: Callable[[int], int],
) -> dict[str, Any]:
    """Put a checkpoint into the optimizers and buffers of all processes, and return it.

    `r` is the number of the round that begins after so many steps, for an lr that falls.
    If one process cannot use it, all refuse; if none has a file, with `MissingCheckpointError`.
    """

    def read(file: BinaryIO) -> dict[str, Any]:
        content = torch.load(file, map_location="cpu", weights_only=True)
        ENVELOPE.require_header(content)
        content = upgrade(content, "groups")
        _require_fit(content, optimizer, buffers)
        return content

    memories: list[list[Tensor]] = [[] for _ in optimizer.parameters()]
    try:
        content = ENVELOPE.read(path, read)
        inside: Any = content.get("inside")
        if _ranks_remember(optimizer):
            found = read_memory(path, rank=workers.rank, ranks=workers.size, content=content)
            memories, inside = found.memory, found.inside
        if optimizer.inside is not None:
            optimizer.inside.require_fit(inside)
        mine = {"steps": content["steps"]}
    except InputError as error:
        mine = {"error": str(error), "missing": isinstance(error, MissingCheckpointError)}
    reports = workers.exchange(mine)
    if "error" in mine:
        everywhere = all(theirs.get("missing") for theirs in reports)
        raise (MissingCheckpointError if everywhere else InputError)(mine["error"])
    for rank, theirs in enumerate(reports):
        if "error" in theirs:
            raise InputError(f"rank {rank} cannot resume: {theirs['error']}")
    require_same("the steps of their checkpoints", [theirs["steps"] for theirs in reports])

    if optimizer.inside is not None:
        optimizer.inside.load(inside)
    with torch.no_grad():
        for buffer, value in zip(buffers, content["buffers"], strict=True):
            buffer.copy_(value)
    for group, saved in zip(optimizer.param_groups, content["groups"], strict=True):
        group.update(plain_settings(saved) | {"last": saved["last"], "taken": 0})
    optimizer.steps, optimizer.rounds = content["steps"], content["rounds_served"]
    optimizer.lower_lr(r(optimizer.steps))
    saved_by_parameter = zip(content["sequences"], memories, strict=True)
    for p, (sequences, memory) in zip(optimizer.parameters(), saved_by_parameter, strict=True):
        optimizer.set_sequences(p, sequences, memory)
    optimizer.refresh()
    return content


def _require_fit(content: dict[str, Any], optimizer: LocalOptimizer, buffers: list[Tensor]) -> None:
    groups = optimizer.param_groups
    if len(content["groups"]) != len(groups):
        raise InputError(f"it has {len(content['groups'])} parameter groups, not {len(groups)}")
    ours = "an optimizer of fedac.torch"  # what all had before others could be synchronized
    writer = content.get("optimizer", ours)
    if writer != describe_inside(optimizer):
        raise InputError(f"it was written with {writer}, not {describe_inside(optimizer)}")
    optimizer.require_same_rules(content["rules"])
    theirs, mine = content["groups"][0]["local_steps"], groups[0]["local_steps"]
    if theirs != mine:  # all groups have the same
        raise InputError(f"it was written with local_steps={theirs}, not {mine}")
    S = len(optimizer.algorithm.state_names)
    wanted = [t.shape for ts in (*([p] * S for p in optimizer.parameters()), buffers) for t in ts]
    found = [t.shape for ts in (*content["sequences"], content["buffers"]) for t in ts]
    for theirs, mine in zip_longest(found, wanted):
        if theirs != mine:
            raise InputError(f"it holds another model: {theirs} in place of {mine}")


def _ranks_remember(optimizer: LocalOptimizer) -> bool:
    """Check whether a rank keeps what no other rank has."""
    local_state = optimizer.inside is not None and optimizer.inside.state == "local"
    return bool(optimizer.algorithm.memory) or local_state


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
