"""Linear combinations of lists of tensors, in place and in few passes over memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Tensors = Sequence[Tensor]
Term = tuple[float, Tensors]


def combine_(out: Tensors, terms: Sequence[Term], *, foreach: bool) -> None:
    """Set `out` to a sum of multiples of lists of tensors; `out` may be one of them.

    All tensors have one precision. With `foreach`, all tensors of a list go into one operation.

    Examples
    --------
    >>> x, y = [torch.tensor([1.0])], [torch.tensor([3.0])]
    >>> combine_(x, [(2.0, x), (-1.0, y)], foreach=True)
    >>> x
    [tensor([-1.])]
    """
    scale = sum(factor for factor, tensors in terms if tensors is out)
    others = [term for term in terms if term[1] is not out and term[0] != 0]
    if foreach:
        _all_at_once(list(out), scale, others)
    else:
        for index, tensor in enumerate(out):
            _one(tensor, scale, [(factor, tensors[index]) for factor, tensors in others])


def _all_at_once(out: list[Tensor], scale: float, others: list[Term]) -> None:
    if scale == 0:
        if not others:
            torch._foreach_zero_(out)
            return
        (scale, first), *others = others
        torch._foreach_copy_(out, list(first))
    if others and _sum_to_one(scale, others[0][0]):
        (weight, towards), *others = others
        torch._foreach_lerp_(out, list(towards), weight)
    elif scale != 1:
        torch._foreach_mul_(out, scale)
    for factor, tensors in others:
        torch._foreach_add_(out, list(tensors), alpha=factor)


def _one(out: Tensor, scale: float, others: list[tuple[float, Tensor]]) -> None:
    """Do the same arithmetic, reading and writing less where `out` is overwritten."""
    if scale == 0:
        if not others:
            out.zero_()
            return
        if len(others) > 1:
            (a, x), (b, y), *others = others
            if a == 1:
                torch.add(x, y, alpha=b, out=out)
            elif _sum_to_one(a, b):
                torch.lerp(x, y, b, out=out)
            else:
                torch.mul(x, a, out=out).add_(y, alpha=b)
            scale = 1.0
        else:
            (scale, x), *others = others
            out.copy_(x)
    if others and _sum_to_one(scale, others[0][0]):
        (weight, towards), *others = others
        out.lerp_(towards, weight)
    elif scale != 1:
        out.mul_(scale)
    for factor, tensor in others:
        out.add_(tensor, alpha=factor)


def _sum_to_one(a: float, b: float) -> bool:
    """Say whether a sum is a point between its two terms, which takes one pass instead of two."""
    return abs(a + b - 1) <= 1e-15
