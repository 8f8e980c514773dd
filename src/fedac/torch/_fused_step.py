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
# Sets of parameters whose batches are remembered: groups, and parts of a model that take turns.
MOST_SPLITS = 64


class Operation(NamedTuple):
    """One pass over memory; `out`, `x` and `y` are slots, `c` is a number.

    copy: out = x. scale: out = c x. add: out = x + c y. lerp: out = x + c (y - x).
    """

    kind: str
    out: int
    x: int
    y: int = 0
    c: float = 1.0

    @property
    def reads(self) -> set[int]:
        """The slots that it reads."""
        return {self.x, self.y} if self.kind in ("add", "lerp") else {self.x}


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
def step_program(coefficients: Linear, *, in_place: bool, many: bool) -> Program:
    """Update all sequences, then move w_md to where the next gradient is taken.

    Slots are the sequences, w_md, g, and scratch space. With `in_place`, the only sequence is
    w_md itself. The program is for lists of one tensor, or of `many`.
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
    if in_place:
        return tuple(program)
    whole = (*program, *query_program(coefficients.query))
    return save_copy(whole, w_md=S) if many else whole


@lru_cache(maxsize=256)
def query_program(query: tuple[float, ...]) -> Program:
    """Put w_md into the slot after those of the sequences."""
    return combination(len(query), [(factor, s) for s, factor in enumerate(query)])


def save_copy(program: Program, *, w_md: int) -> Program:
    """Make a sequence in w_md's place if it begins there and the next w_md begins with it.

    Operations on many tensors are in place, so making the sequence in its own place takes a copy,
    and another one back. Here one is enough.

    Examples
    --------
    >>> there = Operation("add", out=0, x=2, y=3, c=-0.5)
    >>> back = Operation("lerp", out=2, x=0, y=1, c=0.25)
    >>> [(o.kind, o.out, o.x) for o in save_copy((there, back), w_md=2)]
    [('add', 2, 2), ('copy', 0, 2), ('lerp', 2, 2)]
    """
    end = next((i for i, o in enumerate(program) if o.out == w_md), len(program))
    if end == len(program) or (s := program[end].x) == w_md:
        return program
    made = [o for o in program[:end] if o.out == s]
    others = [o for o in program[:end] if o.out != s]
    begins_there = bool(made) and made[0].x == w_md and all(o.x == s for o in made[1:])
    needed = {o.y for o in made if o.kind in ("add", "lerp")}
    if not begins_there or needed & {s, w_md, *(o.out for o in others)}:
        return program
    if any(s in o.reads for o in others):
        return program
    moved = [o._replace(out=w_md, x=w_md) for o in made]
    copied, back = Operation("copy", s, w_md), program[end]._replace(x=w_md)
    return (*others, *moved, copied, back, *program[end + 1 :])


# How an operation is done on one tensor, and on lists of tensors whose `out` holds x already.
ON_TENSOR: dict[str, Callable[..., object]] = {
    "copy": lambda out, x, y, c: out.copy_(x),
    "scale": lambda out, x, y, c: torch.mul(x, c, out=out),
    "add": lambda out, x, y, c: torch.add(x, y, alpha=c, out=out),
    "lerp": lambda out, x, y, c: torch.lerp(x, y, c, out=out),
}
ON_LISTS: dict[str, Callable[..., object]] = {
    "copy": lambda out, y, c: None,
    "scale": lambda out, y, c: torch._foreach_mul_(out, _factor(c, out[0])),
    "add": lambda out, y, c: torch._foreach_add_(out, y, alpha=c),
    "lerp": lambda out, y, c: torch._foreach_lerp_(out, y, c),
}


def _factor(c: float, like: Tensor) -> Tensor | float:
    """Return a number as a multi-tensor product wants it.

    On a CPU it would make a tensor of it for every factor, which takes longer than the product.
    """
    return torch.tensor(c, dtype=like.dtype) if like.is_cpu else c


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


class Batches:
    """Splits parameters into lists for `run`: on a CPU, no more than its cache holds.

    The next call for the same parameters gets the same lists, until they are forgotten.

    Examples
    --------
    >>> small, large = torch.zeros(10), torch.zeros(100_000)
    >>> [len(batch) for batch in Batches().split([small, small, large, large])]
    [2, 1, 1]
    """

    def __init__(self, *, foreach: bool = True) -> None:
        self._foreach = foreach
        self._known: dict[tuple[int, ...], list[list[Tensor]]] = {}

    def split(self, params: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return lists of parameters of one type each."""
        key = tuple(map(id, params))
        if key not in self._known:
            if len(self._known) >= MOST_SPLITS:
                self._known.clear()
            self._known[key] = _split(params) if self._foreach else [[p] for p in params]
        return self._known[key]

    def forget(self) -> None:
        """Split anew: a parameter may be of another type now."""
        self._known.clear()


def _split(params: Sequence[Tensor]) -> list[list[Tensor]]:
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
