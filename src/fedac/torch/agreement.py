"""What processes must have in common, in words short enough to compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from torch import Tensor

from fedac.errors import InputError
from fedac.torch.optimizer import LocalOptimizer


def require_same(name: str, values: Sequence[object]) -> None:
    """Refuse processes that differ in something, given by rank.

    >>> require_same("local_steps", [8, 8, 16])
    Traceback (most recent call last):
    fedac.errors.InputError: processes differ in local_steps: 8 at rank 0, 1; 16 at rank 2
    """
    ranks: dict[object, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    if len(ranks) > 1:
        shown = "; ".join(f"{value} at rank {', '.join(who)}" for value, who in ranks.items())
        raise InputError(f"processes differ in {name}: {shown}")


def describe_steps(steps: Iterable[int]) -> str:
    """Describe a schedule."""
    return _brief(str(sorted(steps)), exactly=sorted(steps))


def describe_tensors(tensors: Sequence[Tensor]) -> str:
    """Describe tensors by number and types, and by a code that their shapes determine."""
    code = _code([[str(tensor.dtype), *tensor.shape] for tensor in tensors])
    types = ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))
    count = sum(tensor.numel() for tensor in tensors)
    return f"{count} numbers in {len(tensors)} tensors ({types}; {code})"


def describe_numbers(optimizer: LocalOptimizer) -> str:
    """Describe the numbers of an optimizer's groups, as its user knows them."""
    groups = []
    for group, hp in zip(optimizer.param_groups, optimizer.coupling(), strict=True):
        own = {"lr": float(group["lr"]), "mu": float(group["mu"])}
        rest = {} if hp is None else {name: hp[name] for name in ("gamma", "alpha", "beta")}
        groups.append(" ".join(f"{name}={value:.6g}" for name, value in (own | rest).items()))
    return _brief(" | ".join(groups), exactly=optimizer.coupling())


def mark(optimizer: LocalOptimizer) -> int:
    """Return a number that tells optimizers with other numbers; float32 holds it exactly."""
    return int(_code(optimizer.coupling())[:5], 16)


def _brief(text: str, *, exactly: object) -> str:
    """Return a text that two people would compare, with a code for all that it leaves out."""
    return f"{text if len(text) <= 100 else f'{text[:100]}...'} ({_code(exactly)})"


def _code(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]
