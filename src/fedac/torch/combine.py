"""Linear combinations of tensors, in place and in few passes over memory.

The step of an algorithm is translated once per set of coefficients into a program of operations on
numbered slots. A program runs on one tensor per slot, or on a list of tensors per slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedac.algorithms.linear import Linear

# Numbers that a CPU works on at once: four arrays of so many float32 numbers take a megabyte.
CACHED_NUMBERS = 2**16


class Operation(NamedTuple):
    """One pass over memory; `out`, `x` and `y` are slots, `c` is a number.

    zero: out = 0. copy: out = x. scale: out *= c. add: out += c x. lerp: out += c (x - out).
    sum: out = x + c y. between: out = x + c (y - x).
    """

    kind: str
    out: int
    x: int = -1
    y: int = -1
    c: float = 0.0


Program = tuple[Operation, ...]
Term = tuple[float, int]


def combination(out: int, terms: Sequence[Term]) -> Program:
    """Set slot `out`, which may be one of the terms, to a sum of multiples of slots.

    Examples
    --------
    >>> combination(0, [(0.75, 0), (0.25, 1), (-0.5, 2)])
    (Operation(kind='lerp', out=0, x=1, y=-1, c=0.25), \
Operation(kind='add', out=0, x=2, y=-1, c=-0.5))
    """
    scale = sum(factor for factor, slot in terms if slot == out)
    others = [(factor, slot) for factor, slot in terms if slot != out and factor != 0]
    program = []
    if scale == 0:
        if not others:
            return (Operation("zero", out),)
        (scale, x), *others = others
        # Two terms at once save a pass over memory.
        if others and scale == 1:
            (c, y), *others = others
            program.append(Operation("sum", out, x, y, c))
        elif others and _sum_to_one(scale, others[0][0]):
            (c, y), *others = others
            program.append(Operation("between", out, x, y, c))
            scale = 1.0
        else:
            program.append(Operation("copy", out, x))
    if others and scale != 1 and _sum_to_one(scale, others[0][0]):
        (c, x), *others = others
        program.append(Operation("lerp", out, x, c=c))
    elif scale != 1:
        program.append(Operation("scale", out, c=scale))
    program += [Operation("add", out, x, c=c) for c, x in others]
    return tuple(program)


@lru_cache(maxsize=256)
def step_program(coefficients: Linear, *, in_place: bool) -> Program:
    """Update all sequences, then move w_md to where the next gradient is taken.

    Slots are the sequences, w_md, g, and scratch space. With `in_place`, the only sequence is
    w_md itself.
    """
    S = len(coefficients.query)
    program: list[Operation] = []
    current = list(range(S))  # the slots of the values before the step
    scratch = S + 2
    for s, row in enumerate(coefficients.update):
        # Keep the old value of a sequence that a later one still needs.
        if any(later[s] != 0 for later in coefficients.update[s + 1 :]):
            program.append(Operation("copy", scratch, s))
            current[s] = scratch
            scratch += 1
        slots = [*current[:s], s, *current[s + 1 :], 0 if in_place else S, S + 1]
        program += combination(s, list(zip(row, slots, strict=True)))
    return (*program, *(() if in_place else query_program(coefficients.query)))


@lru_cache(maxsize=256)
def query_program(query: tuple[float, ...]) -> Program:
    """Put w_md into the slot after those of the sequences."""
    return combination(len(query), [(factor, s) for s, factor in enumerate(query)])


# How an operation is done on tensors, and on lists of tensors at once.
ON_TENSORS: dict[str, Callable[..., object]] = {
    "zero": lambda out, x, y, c: out.zero_(),
    "copy": lambda out, x, y, c: out.copy_(x),
    "scale": lambda out, x, y, c: out.mul_(c),
    "add": lambda out, x, y, c: out.add_(x, alpha=c),
    "lerp": lambda out, x, y, c: out.lerp_(x, c),
    "sum": lambda out, x, y, c: torch.add(x, y, alpha=c, out=out),
    "between": lambda out, x, y, c: torch.lerp(x, y, c, out=out),
}
ON_LISTS: dict[str, Callable[..., object]] = {
    "zero": lambda out, x, y, c: torch._foreach_zero_(out),
    "copy": lambda out, x, y, c: torch._foreach_copy_(out, x),
    "scale": lambda out, x, y, c: torch._foreach_mul_(out, c),
    "add": lambda out, x, y, c: torch._foreach_add_(out, x, alpha=c),
    "lerp": lambda out, x, y, c: torch._foreach_lerp_(out, x, c),
}


def run(program: Program, slots: Sequence[Tensor] | Sequence[list[Tensor]]) -> None:
    """Run a program on a tensor per slot, or on a list of tensors per slot.

    Examples
    --------
    >>> x, y = torch.tensor([1.0]), torch.tensor([3.0])
    >>> run(combination(0, [(2.0, 0), (-1.0, 1)]), [x, y])
    >>> x
    tensor([-1.])
    """
    on_lists = isinstance(slots[0], list)
    operations = ON_LISTS if on_lists else ON_TENSORS
    for kind, out, x, y, c in program:
        if on_lists and y >= 0:  # lists need a pass more: first x, then y
            operations["copy"](slots[out], slots[x], None, 0)
            kind, x = ("add" if kind == "sum" else "lerp"), y
        operations[kind](slots[out], slots[x], slots[y], c)


def split_into_batches(params: Sequence[Tensor], *, foreach: bool) -> list[list[Tensor]]:
    """Split parameters into lists for `run`: on a CPU, no more than its cache holds."""
    if not foreach:
        return [[p] for p in params]
    batches: list[list[Tensor]] = []
    open_batches: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], int]] = {}
    for p in params:
        kind = (p.device, p.dtype)
        batch, size = open_batches.get(kind, ([], 0))
        if not batch or (p.is_cpu and size + p.numel() > CACHED_NUMBERS):
            batch, size = [], 0
            batches.append(batch)
        batch.append(p)
        open_batches[kind] = (batch, size + p.numel())
    return batches


def _sum_to_one(a: float, b: float) -> bool:
    """Check whether a x + b y is a point between x and y: then one pass is enough."""
    return abs(a + b - 1) <= 1e-15
