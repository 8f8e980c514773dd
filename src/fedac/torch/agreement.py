"""What processes must have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict

from torch import Tensor

from fedac.errors import InputError
from fedac.torch.settings import is_paused
from fedac.torch.state import SequenceOptimizer

LONG = 100


def require_same(name: str, values: Sequence[object]) -> None:
    """Refuse processes whose values, given by rank, differ.

    >>> require_same("local_steps", [8, 8, 16])
    Traceback (most recent call last):
    fedac.errors.InputError: processes differ in local_steps: 8 at rank 0, 1; 16 at rank 2
    """
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        text = str(value)
        if len(text) > LONG:  # the hash shows that texts differ after their beginning
            text = f"{text[:LONG]}... ({_hash(text)})"
        ranks.setdefault(text, []).append(str(rank))
    if len(ranks) > 1:
        found = "; ".join(f"{text} at rank {', '.join(who)}" for text, who in ranks.items())
        raise InputError(f"processes differ in {name}: {found}")


def describe_tensors(tensors: Sequence[Tensor]) -> str:
    """Return types and shapes.

    >>> import torch
    >>> describe_tensors([torch.ones(2, 3), torch.ones(2)])
    'float32 [2, 3], float32 [2]'
    """
    return ", ".join(f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in tensors)


def describe_hyperparameters(optimizer: SequenceOptimizer) -> str:
    """Return settings and hyperparameters of all groups; a paused group has no hyperparameters."""
    groups = []
    for group in optimizer.param_groups:
        hp = {} if is_paused(group) else asdict(optimizer.hyperparameters(group))
        hp.pop("eta", None)  # it is lr
        values = {"lr": float(group["lr"]), "mu": float(group["mu"])} | hp
        groups.append(" ".join(f"{name}={value!r}" for name, value in values.items()))
    return " | ".join(groups)


def hash_hyperparameters(optimizer: SequenceOptimizer) -> int:
    """Return a number that differs where hyperparameters differ, small enough for float32."""
    return int(_hash(describe_hyperparameters(optimizer))[:5], 16)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
