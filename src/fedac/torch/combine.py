"""Linear combinations of tensors, in place and in few passes over memory.

A step is planned once per set of coefficients, as operations on numbered slots, and carried out
tensor by tensor, or on lists of tensors at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedac.algorithms.linear import Linear


class Operation(NamedTuple):
    """What to do with slot `out`; `x` and `y` are slots too, `c` is a number.

    zero: out = 0. copy: out = x. scale: out = c out. add: out = out + c x. lerp: out moves by c
    to x. sum: out = x + c y. between: out is x moved by c to y.
    """

    kind: str
    out: int
    x: int = -1
    y: int = -1
    c: float = 0.0


Plan = tuple[Operation, ...]
Term = tuple[float, int]


def combination(out: int, terms: Sequence[Term]) -> Plan:
    """Plan to set slot `out` to a sum of multiples of slots; it may be one of them.

    Examples
    --------
    >>> combination(0, [(0.75, 0), (0.25, 1), (-0.5, 2)])
    (Operation(kind='lerp', out=0, x=1, y=-1, c=0.25), \
Operation(kind='add', out=0, x=2, y=-1, c=-0.5))
    """
    scale = sum(factor for factor, slot in terms if slot == out)
    others = [(factor, slot) for factor, slot in terms if slot != out and factor != 0]
    plan = []
    if scale == 0:
        if not others:
            return (Operation("zero", out),)
        (scale, x), *others = others
        # Two terms at once save a pass over memory.
        if others and scale == 1:
            (c, y), *others = others
            plan.append(Operation("sum", out, x, y, c))
        elif others and _sum_to_one(scale, others[0][0]):
            (c, y), *others = others
            plan.append(Operation("between", out, x, y, c))
            scale = 1.0
        else:
            plan.append(Operation("copy", out, x))
    if others and scale != 1 and _sum_to_one(scale, others[0][0]):
        (c, x), *others = others
        plan.append(Operation("lerp", out, x, c=c))
    elif scale != 1:
        plan.append(Operation("scale", out, c=scale))
    plan += [Operation("add", out, x, c=c) for c, x in others]
    return tuple(plan)


@lru_cache(maxsize=256)
def step_plan(coefficients: Linear, *, in_place: bool) -> Plan:
    """Plan a step. Slots are the sequences, w_md, g, and a copy of each sequence, if needed.

    Where a single sequence is kept `in_place`, w_md is the same tensor.
    """
    S = len(coefficients.query)
    plan: list[Operation] = []
    current = list(range(S))  # where the values before the step are found
    for s, row in enumerate(coefficients.update):
        # A sequence that a later one still needs must be kept.
        if any(later[s] != 0 for later in coefficients.update[s + 1 :]):
            plan.append(Operation("copy", S + 2 + s, s))
            current[s] = S + 2 + s
        slots = [*current[:s], s, *current[s + 1 :], 0 if in_place else S, S + 1]
        plan += combination(s, list(zip(row, slots, strict=True)))
    return (*plan, *(() if in_place else query_plan(coefficients.query)))


@lru_cache(maxsize=256)
def query_plan(query: tuple[float, ...]) -> Plan:
    """Plan to put w_md into the slot after those of the sequences."""
    return combination(len(query), [(factor, s) for s, factor in enumerate(query)])


def kept(plan: Plan, slots: int) -> set[int]:
    """Return which slots, from `slots` on, a plan keeps copies in."""
    return {operation.out for operation in plan if operation.out >= slots}


def carry_out(plan: Plan, slots: Sequence[Tensor]) -> None:
    """Carry a plan out on one tensor per slot.

    Examples
    --------
    >>> x, y = torch.tensor([1.0]), torch.tensor([3.0])
    >>> carry_out(combination(0, [(2.0, 0), (-1.0, 1)]), [x, y])
    >>> x
    tensor([-1.])
    """
    for kind, out, x, y, c in plan:
        target = slots[out]
        if kind == "sum":
            torch.add(slots[x], slots[y], alpha=c, out=target)
        elif kind == "add":
            target.add_(slots[x], alpha=c)
        elif kind == "lerp":
            target.lerp_(slots[x], c)
        elif kind == "between":
            torch.lerp(slots[x], slots[y], c, out=target)
        elif kind == "copy":
            target.copy_(slots[x])
        elif kind == "scale":
            target.mul_(c)
        else:
            target.zero_()


def carry_out_together(plan: Plan, slots: Sequence[list[Tensor]]) -> None:
    """Carry a plan out on a list of tensors per slot, each operation on all of them at once."""
    for kind, out, x, y, c in plan:
        target = slots[out]
        if kind in ("sum", "between"):
            torch._foreach_copy_(target, slots[x])
            kind, x = ("add", y) if kind == "sum" else ("lerp", y)
        if kind == "add":
            torch._foreach_add_(target, slots[x], alpha=c)
        elif kind == "lerp":
            torch._foreach_lerp_(target, slots[x], c)
        elif kind == "copy":
            torch._foreach_copy_(target, slots[x])
        elif kind == "scale":
            torch._foreach_mul_(target, c)
        else:
            torch._foreach_zero_(target)


def _sum_to_one(a: float, b: float) -> bool:
    """Say whether a sum is a point between its two terms, which takes one pass instead of two."""
    return abs(a + b - 1) <= 1e-15
