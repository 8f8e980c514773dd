"""The affine form of an algorithm, derived by calling it, and the tables of one round.

Every algorithm here is linear in its state and the gradient. Calling `query` and `update` on
unit values (`fedac.algorithms.linear`) gives c, A and b with ``w_md = c.S`` and ``S' = A S + b g``.
A linear model's gradient is ``g = s x + l2 w_md``, so its l2 term goes into A:
``A <- A + l2 b c'``.

Inside a round write ``S_t = A^t Y_t``. Then ``Y_{t+1} = Y_t + A^-(t+1) b s_t x_t'`` touches only
the coordinates of one row, and the margin is ``(c' A^t)(Y_t x_t)``: a local step costs O(nnz).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.algorithms.linear import linear_form
from fedac.arrays import Array
from fedac.simulation._fast.records import Closing, Tables
from fedac.simulation.problem import Lane

# How badly A^t may be conditioned before Y is folded back: what rounding is multiplied by.
SAFE_CONDITION = {np.dtype(np.float32): 16.0, np.dtype(np.float64): 1e4}
# Steps of a round whose tables, some megabytes at most, are kept for the next simulation.
LONGEST_KEPT = 4096
# Beyond these sizes powers of A come near the ends of single precision.
SAFE_SIZE = 1e12


@dataclass(frozen=True, slots=True)
class Affine:
    """``w_md = c.S`` and ``S' = A S + b g`` for the S sequences of an algorithm."""

    c: Array
    A: Array
    b: Array

    def with_l2(self, l2: float) -> Affine:
        """Fold the gradient of l2/2 ||w_md||^2 into A."""
        return Affine(self.c, self.A + l2 * np.outer(self.b, self.c), self.b)

    def padded(self, S: int) -> Affine:
        """Add sequences that stay at zero, up to S of them."""
        A, more = np.eye(S), S - len(self.c)
        A[: len(self.c), : len(self.c)] = self.A
        return Affine(np.pad(self.c, (0, more)), A, np.pad(self.b, (0, more)))

    def core(self, l2: float) -> Array:
        """Return A without the sequences that rounding cannot spoil.

        These are constants of a round, such as a control variate, and plain sums that no other
        sequence depends on: undoing a step multiplies none of their errors.
        """
        A = self.with_l2(l2).A
        unit = np.eye(len(A))
        constant = (unit == A).all(axis=1) & (self.b == 0)
        only_summed = (unit == A).all(axis=0) & (self.c == 0)
        outside = constant | only_summed
        return np.where(outside[:, None] | outside, unit, A)


def affine_form(lane: Lane) -> Affine:
    """Derive the affine form of a lane, or refuse an algorithm that has none.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> form = affine_form(Lane(FEDAVG, FEDAVG.couple(eta=0.5, mu=1.0, K=1)))
    >>> form.c, form.A, form.b
    (array([1.]), array([[1.]]), array([-0.5]))
    """
    form = linear_form(lane.algorithm, lane.hp)
    c, update = np.array(form.query), np.array(form.update)
    # The step takes w_md as given; here it is a combination of the state.
    *on_state, on_w_md, on_g = update.T
    return Affine(c=c, A=np.array(on_state).T + np.outer(on_w_md, c), b=on_g)


def round_tables(
    forms: list[Affine], l2: float, gap: int, dtype: npt.DTypeLike
) -> tuple[Tables, Closing]:
    """Tabulate one round of `gap` steps for lanes of equally many sequences.

    The forms are those of the algorithms alone; l2 is folded in here.

    Examples
    --------
    One step of FedAvg with eta = 1/2 and l2 = 1, where A = 1/2 and A^-1 b = -1:

    >>> from fedac.algorithms import FEDAVG
    >>> lane = Lane(FEDAVG, FEDAVG.couple(eta=0.5, mu=1.0, K=1))
    >>> tables, closing = round_tables([affine_form(lane)], 1.0, 1, np.float64)
    >>> tables.q.ravel(), tables.r.ravel(), closing.to_state.ravel()
    (array([1.]), array([-1.]), array([0.5]))
    """
    if gap <= LONGEST_KEPT:
        return _kept_tables(_Forms(tuple(forms)), l2, gap, np.dtype(dtype))
    return _make_tables(forms, l2, gap, dtype)


class _Forms:
    """Forms that are equal if their numbers are, to find tables by."""

    def __init__(self, forms: tuple[Affine, ...]) -> None:
        self.forms = forms
        self._numbers = tuple(
            (form.c.tobytes(), form.A.tobytes(), form.b.tobytes()) for form in forms
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Forms) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)


@lru_cache(maxsize=32)  # groups of a sweep that differ in M or seed have the same tables
def _kept_tables(
    given: _Forms, l2: float, gap: int, dtype: np.dtype[Any]
) -> tuple[Tables, Closing]:
    return _make_tables(given.forms, l2, gap, dtype)


def _make_tables(
    forms: Sequence[Affine], l2: float, gap: int, dtype: npt.DTypeLike
) -> tuple[Tables, Closing]:
    A = np.stack([form.with_l2(l2).A for form in forms])  # (V, S, S)
    b = np.stack([form.b for form in forms])
    c = np.stack([form.c for form in forms])
    longest, powers = _safe_powers(A, np.stack([form.core(l2) for form in forms]), gap, dtype)
    inverses = np.linalg.inv(powers[: longest + 1])

    # A fold needs no inverse for its own step, so a folded stretch is one step longer.
    stretch = gap + 1 if longest == gap else longest + 1
    since = np.arange(gap) % stretch
    fold_after = since == stretch - 1
    folds = int(fold_after.sum())
    rest = gap - folds * stretch
    q = np.einsum("vs,kvst->ktv", c, powers[since])
    r = np.einsum("kvst,vt->ksv", inverses[np.minimum(since + 1, longest)], b)
    r[fold_after] = b.T
    fold_matrix = powers[min(stretch, longest + 1)]
    kappa = np.zeros((gap + 1, *b.shape))  # S_t = A^t Y_t + kappa_t u', kappa' = A kappa - l2 b
    for t in range(gap):
        kappa[t + 1] = np.einsum("vst,vt->vs", A, kappa[t]) - l2 * b
    tables = Tables(
        q=q,
        r=r,
        e=np.einsum("vs,kvs->kv", c, kappa[:gap]),
        fold_after=fold_after,
        folds=np.broadcast_to(fold_matrix.transpose(2, 1, 0), (folds, *A.shape[1:], A.shape[0])),
    )
    to_base = np.linalg.matrix_power(fold_matrix, folds).transpose(1, 2, 0)
    return tables, Closing(to_base, powers[rest].transpose(1, 2, 0), kappa[gap].T)


def _safe_powers(A: Array, core: Array, gap: int, dtype: npt.DTypeLike) -> tuple[int, Array]:
    """Return the largest t <= gap for which all core^t so far can be undone safely in every lane.

    With it come the powers of A from 0 to t + 1, shape (t + 2, V, S, S).
    """
    limit = SAFE_CONDITION[np.dtype(dtype)]
    cores = np.eye(A.shape[1])
    powers = np.empty((gap + 2, *A.shape))
    powers[0] = np.eye(A.shape[1])
    known = 0
    while known < gap:
        # In stretches: one decomposition of many matrices, and an early end where one is bad.
        # What has overflowed is taken for singular.
        stretch = range(known + 1, min(known + 64, gap) + 1)
        for t in stretch:
            powers[t] = A @ powers[t - 1]
        block = np.empty((len(stretch), *A.shape))
        for t in range(len(block)):
            block[t] = cores = core @ cores
        sizes = np.linalg.svd(np.nan_to_num(block, posinf=0.0, neginf=0.0), compute_uv=False)
        largest, smallest = sizes[..., 0], sizes[..., -1]
        safe = (
            (largest <= limit * smallest) & (largest < SAFE_SIZE) & (smallest > 1 / SAFE_SIZE)
        ).all(axis=1)
        if not safe.all():
            longest = known + int(np.argmin(safe))
            return longest, powers[: longest + 2]
        known = stretch[-1]
    powers[gap + 1] = A @ powers[gap]
    return gap, powers
