# SPDX-License-Identifier: Apache-2.0
"""Local steps: linear combinations of many tensors, in place and in few passes over memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from fedac.algorithms import Algorithm
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.linear import Linear, linear_form

CACHED_NUMBERS = 2**16  # per CPU chunk: four such float32 arrays take a megabyte
MOST_SPLITS = 64  # to cache: for parameter groups, and for parts of a model trained in turn


@lru_cache(maxsize=256)
def decayed_form(algorithm: Algorithm, hp: Hyperparameters, weight_decay: float) -> Linear:
    """Return the coefficients of a step with decoupled weight decay, as in AdamW.

    A step makes every iterate an average of iterates plus a multiple of the gradient. Weight decay
    multiplies the average by 1 - eta * weight_decay, and not the gradient.

    An iterate is a sequence that starts at w_0 (or at a multiple of it). Momentum, sums of
    gradients and corrections start at 0 and do not decay. Neither does a sequence that no step
    moves, such as the point where the round began.
    """
    form = linear_form(algorithm, hp)
    if weight_decay == 0:
        return form
    sequences, _ = algorithm.split(algorithm.start(1.0))
    starts = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
    is_iterate = [*(start != 0 for start in starts), True, False]  # w_md is one, g is not
    keep = 1 - hp.eta * weight_decay
    rows = []
    for s, row in enumerate(form.update):
        stays = all(factor == (column == s) for column, factor in enumerate(row))
        if is_iterate[s] and not stays:
            pairs = zip(row, is_iterate, strict=True)
            row = tuple(keep * factor if iterate else factor for factor, iterate in pairs)
        rows.append(row)
    return Linear(query=form.query, update=tuple(rows))


def take_step(
    form: Linear, sequences: list[list[Tensor]], w_md: list[Tensor], g: list[Tensor]
) -> None:
    """Update all sequences, then move w_md to where the next gradient is taken.

    sequences <- update(sequences, w_md, g), w_md <- query(sequences), as in the algorithm. Each
    argument holds one tensor per parameter; w_md may be the only sequence itself.
    """
    before = [*sequences, w_md, g]
    for s, row in enumerate(form.update):
        if any(later[s] != 0 for later in form.update[s + 1 :]):  # they need the old value
            before[s] = [tensor.clone() for tensor in sequences[s]]
        values = [*before[:s], sequences[s], *before[s + 1 :]]
        combine(sequences[s], zip(row, values, strict=True))
    combine(w_md, zip(form.query, sequences, strict=True))


def combine(out: list[Tensor], terms: Iterable[tuple[float, list[Tensor]]]) -> None:
    """Set `out`, which may be one of the terms, to a sum of multiples of lists of tensors."""
    own, x, others = 0.0, out, []
    for factor, tensors in terms:
        if tensors is out:
            own += factor
        elif factor != 0:
            others.append((factor, tensors))
    if own == 0 and others:
        (own, x), *others = others
    if others and own != 1 and abs(own + others[0][0] - 1) <= 1e-15:
        (c, y), *others = others
        _lerp(out, x, y, c)
    elif own != 1:
        _scale(out, x, own)
    elif others:
        (c, y), *others = others
        _add(out, x, y, c)
    elif x is not out:
        torch._foreach_copy_(out, x)
    for c, y in others:
        _add(out, out, y, c)


# One large tensor takes a single pass: multi-tensor functions work in place, after a copy.


def _lerp(out: list[Tensor], x: list[Tensor], y: list[Tensor], c: float) -> None:
    """Set out to x + c (y - x)."""
    if len(out) == 1:
        torch.lerp(x[0], y[0], c, out=out[0])
    else:
        torch._foreach_lerp_(_copied(out, x), y, c)


def _add(out: list[Tensor], x: list[Tensor], y: list[Tensor], c: float) -> None:
    """Set out to x + c y."""
    if len(out) == 1:
        torch.add(x[0], y[0], alpha=c, out=out[0])
    else:
        torch._foreach_add_(_copied(out, x), y, alpha=c)


def _scale(out: list[Tensor], x: list[Tensor], c: float) -> None:
    """Set out to c x."""
    if len(out) == 1:
        torch.mul(x[0], c, out=out[0])
    else:
        # On a CPU, a Python number would become a tensor once per factor.
        factor = torch.tensor(c, dtype=out[0].dtype) if out[0].is_cpu else c
        torch._foreach_mul_(_copied(out, x), factor)


def _copied(out: list[Tensor], x: list[Tensor]) -> list[Tensor]:
    if x is not out:
        torch._foreach_copy_(out, x)
    return out


class Batches:
    """Splits parameters into lists of one type each; on a CPU, no more than its cache holds."""

    def __init__(self, *, foreach: bool = True) -> None:
        self._foreach = foreach
        self._known: dict[tuple[int, ...], list[list[Tensor]]] = {}

    def split(self, params: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return the lists, which are cached until `forget` is called."""
        key = tuple(map(id, params))
        if key not in self._known:
            if len(self._known) >= MOST_SPLITS:
                self._known.clear()
            self._known[key] = _split(params) if self._foreach else [[p] for p in params]
        return self._known[key]

    def forget(self) -> None:
        """Clear the cache: a parameter may have another type now."""
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
