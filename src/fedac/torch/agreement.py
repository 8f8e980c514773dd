"""What processes must have in common, as texts to compare and to show in errors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedac.errors import InputError
from fedac.torch.state import SequenceOptimizer


def local_steps(optimizer: SequenceOptimizer) -> int:
    """Return the local steps of all groups, or refuse groups that differ."""
    steps: set[int] = {group["local_steps"] for group in optimizer.param_groups}
    if len(steps) != 1:
        raise InputError(f"all parameter groups must have the same local_steps, got {steps}")
    return steps.pop()


def describe_settings(optimizer: SequenceOptimizer) -> str:
    """Return lr and mu of all groups; the other hyperparameters follow from them."""
    settings = [(float(group["lr"]), float(group["mu"])) for group in optimizer.param_groups]
    return " | ".join(f"lr={lr!r} mu={mu!r}" for lr, mu in settings)


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
    if optimizer.takes_mean:  # the next mean makes all processes equal
        return "not kept"
    state = [optimizer.snapshot(p) for p in params]
    return " ".join(
        f"{sum(float(t.double().abs().sum()) for t in ts):.6g}" for ts in zip(*state, strict=True)
    )
