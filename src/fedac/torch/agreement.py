"""What processes must have in common, as texts to compare and to show in errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedac.errors import InputError
from fedac.torch.communication import Workers, require_same
from fedac.torch.inside import Inside
from fedac.torch.settings import require_close, settings_of
from fedac.torch.state import SequenceOptimizer


def require_agreement(
    workers: Workers,
    optimizer: SequenceOptimizer,
    *,
    trained: Sequence[Tensor],
    buffers: Sequence[Tensor],
    options: dict[str, Any],
) -> None:
    """Refuse processes that differ now: later they would wait for each other."""
    mine = {
        "optimizer": describe_inside(optimizer),
        "algorithm": optimizer.algorithm.name,
        "local_steps": local_steps_of(optimizer),
        "settings": settings_of(optimizer.param_groups),
        "what a step computes": optimizer.fingerprint,
        "parameters": describe_tensors(optimizer.parameters()),
        "trained parameters": describe_tensors(trained),
        "buffers": describe_tensors(buffers),
        **options,
        "steps": optimizer.steps,
        "rounds": optimizer.rounds,
        "what the last round ended with (sums of all sizes)": describe_server(optimizer, trained),
    }
    reports = workers.exchange(mine)
    differences = []
    for name in mine:
        check = require_close if name == "settings" else require_same
        try:
            check(name, [theirs[name] for theirs in reports])
        except InputError as error:
            differences.append(str(error))
    if differences:
        raise InputError(". And ".join(differences))


def agree_on_state(workers: Workers, inside: Inside) -> None:
    """Find what of the optimizers' state is averaged; refuse processes where it differs."""
    names = inside.find_names()
    reports = workers.exchange({"names": names})
    require_same("the state of their optimizers", [theirs["names"] for theirs in reports])
    inside.names = names


def describe_inside(optimizer: SequenceOptimizer) -> str:
    """Say who takes the local steps."""
    inside = optimizer.inside
    return "an optimizer of fedac.torch" if inside is None else inside.title


def local_steps_of(optimizer: SequenceOptimizer) -> int:
    """Return the local steps of all groups, or refuse groups that differ."""
    steps: set[int] = {group["local_steps"] for group in optimizer.param_groups}
    if len(steps) != 1:
        raise InputError(f"all parameter groups must have the same local_steps, got {steps}")
    return steps.pop()


def describe_tensors(tensors: Sequence[Tensor]) -> str:
    """Return types and shapes.

    >>> import torch
    >>> describe_tensors([torch.ones(2, 3), torch.ones(2)])
    'float32 [2, 3], float32 [2]'
    """
    return ", ".join(f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in tensors)


def describe_server(optimizer: SequenceOptimizer, params: Sequence[Tensor]) -> str:
    """Return sizes of what the server holds, where every process plays the server.

    Six digits show a different start. Rounding, which differs between machines, does not show.
    """
    # Before the first step all processes take rank 0's start; a mean makes them equal anyway.
    if optimizer.steps == 0 or optimizer.takes_mean:
        return "made equal"
    state = [optimizer.snapshot(p) for p in params if optimizer.state.get(p)]
    return " ".join(
        f"{sum(float(t.double().abs().sum()) for t in ts):.6g}" for ts in zip(*state, strict=True)
    )
