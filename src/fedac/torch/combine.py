"""Linear combinations of tensors, in place and in few passes over memory.

The step of an algorithm is translated once per set of coefficients into a program of operations on
numbered slots. A slot is a list of tensors: of one that is large, or of many small ones.
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

    copy: out = x. scale: out = c x. add: out = x + c y. lerp: out = x + c (y - x).
    """

    kind: str
    out: int
    x: int
    y: int = 0
    c: float = 1.0


Program = tuple[Operation, ...]


def combination(out: int, terms: Sequence[tuple[float, int]]) -> Program:
    """Set slot `out`, which may be one of the terms, to a sum of multiples of slots.

    Examples
    --------
    >>> combination(0, [(0.75, 0), (0.25, 1), (-0.5, 2)])
    (Operation(kind='lerp', out=0, x=0, y=1, c=0.25), \
Operation(kind='add', out=0, x=0, y=2, c=-0.5))
    """
    scale, x = sum(factor for factor, slot in terms if slot == out), out
    others = [(factor, slot) for factor, slot in terms if slot != out and factor != 0]
    if scale == 0 and others:
        (scale, x), *others = others
    program = []
    if others and scale != 1 and abs(scale + others[0][0] - 1) <= 1e-15:
        (c, y), *others = others
        program.append(Operation("lerp", out, x, y, c))
    elif scale != 1:
        program.append(Operation("scale", out, x, c=scale))
    elif others:
        (c, y), *others = others
        program.append(Operation("add", out, x, y, c))
    elif x != out:
        program.append(Operation("copy", out, x))
    return (*program, *(Operation("add", out, out, y, c) for c, y in others))


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


# How an operation is done on one tensor, and on lists of tensors whose `out` holds x already.
ON_TENSOR: dict[str, Callable[..., object]] = {
    "copy": lambda out, x, y, c: out.copy_(x),
    "scale": lambda out, x, y, c: torch.mul(x, c, out=out),
    "add": lambda out, x, y, c: torch.add(x, y, alpha=c, out=out),
    "lerp": lambda out, x, y, c: torch.lerp(x, y, c, out=out),
}
ON_LISTS: dict[str, Callable[..., object]] = {
    "copy": lambda out, y, c: None,
    "scale": lambda out, y, c: torch._foreach_mul_(out, c),
    "add": lambda out, y, c: torch._foreach_add_(out, y, alpha=c),
    "lerp": lambda out, y, c: torch._foreach_lerp_(out, y, c),
}


def run(program: Program, slots: Sequence[list[Tensor]]) -> None:
    """Run a program on lists of tensors, one list per slot.

    Examples
    --------
    >>> x, y = torch.tensor([1.0]), torch.tensor([3.0])
    >>> run(combination(0, [(2.0, 0), (-1.0, 1)]), [[x], [y]])
    >>> x
    tensor([-1.])
    """
    for kind, out, x, y, c in program:
        if len(slots[out]) == 1:
            ON_TENSOR[kind](slots[out][0], slots[x][0], slots[y][0], c)
        else:
            if x != out:
                torch._foreach_copy_(slots[out], slots[x])
            ON_LISTS[kind](slots[out], slots[y], c)


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
