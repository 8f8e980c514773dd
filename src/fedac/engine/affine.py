"""The affine form of an algorithm, derived by calling it, and the tables of one round.

Every algorithm here is linear in its state and the gradient. Calling `query` and `update` on
unit vectors gives c, A and b with ``w_md = c.S`` and ``S' = A S + b g``. A linear model's
gradient is ``g = s x + l2 w_md``, so its l2 term goes into A: ``A <- A + l2 b c'``.

Inside a round write ``S_t = A^t Y_t``. Then ``Y_{t+1} = Y_t + A^-(t+1) b s_t x_t'`` touches only
the coordinates of one row, and the margin is ``(c' A^t)(Y_t x_t)``: a local step costs O(nnz).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedac.engine.problem import Lane
from fedac.errors import InputError
from fedac.objectives.base import Array

# How badly A^t may be conditioned before Y is folded back: what rounding is multiplied by.
SAFE_CONDITION = {np.dtype(np.float32): 50.0, np.dtype(np.float64): 1e4}
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


def affine(lane: Lane) -> Affine:
    """Derive the affine form of a lane, or refuse an algorithm that has none.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> form = affine(Lane(FEDAVG, FEDAVG.couple(eta=0.5, mu=1.0, K=1)))
    >>> form.c, form.A, form.b
    (array([1.]), array([[1.]]), array([-0.5]))
    """
    algorithm, hp = lane.algorithm, lane.hp
    S = len(algorithm.sequences)

    def step(states: Array, g: Array) -> tuple[Array, Array]:
        """Return w_md and the next states of a column of states each."""
        w_md = algorithm.query(tuple(states), hp)
        after = algorithm.update(tuple(states), w_md, g, hp)
        return np.broadcast_to(w_md, g.shape), np.stack(after)

    try:
        # Units for c and A, zero with g = 1 for b, and eight random states to prove the form.
        random = np.random.default_rng(0).normal(size=(S + 1, 8))
        states = np.hstack([np.eye(S), np.zeros((S, 1)), random[:S]])
        g = np.concatenate([np.zeros(S), [1.0], random[S]])
        w_md, after = step(states, g)
        form = Affine(c=w_md[:S].copy(), A=after[:, :S].copy(), b=after[:, S].copy())
        exact = np.allclose(w_md, form.c @ states, rtol=1e-9, atol=1e-9) and np.allclose(
            after, form.A @ states + np.outer(form.b, g), rtol=1e-9, atol=1e-9
        )
    except Exception:  # a user's functions may fail on our probes in any way
        exact = False
    if not exact:
        raise InputError(
            f"algorithm '{algorithm.name}' is not affine in its state and gradient, which the "
            "fast engine needs; use engine='reference'"
        )
    return form


@dataclass(frozen=True, slots=True)
class RoundTables:
    """All that a kernel needs of the algorithms for one round of a given length.

    Arrays end in (sequence, lane) like a state.

    Attributes
    ----------
    q, r : array, shape (gap, S, V)
        ``c' A^t`` and ``A^-(t+1) b`` by step, t counted from the last fold.
    fold_after : array of bool, shape (gap,)
        Whether Y is folded at this step, before its row is added.
    folds : array, shape (number of folds, S, S, V)
        ``A^L`` by fold, a column (of S numbers a lane) after the other.
    to_base, closing : array, shape (S, S, V)
        Matrices from the broadcast state to where an idle worker's Y ends, and from there to
        the state at the end of the round.
    e, constant : array, shape (gap, V) and (S, V)
        Where the l2 term is centred at a point u, not at zero: the multiples of u that the
        query point has gathered by step, and the state by the end of the round.
    """

    q: Array
    r: Array
    fold_after: npt.NDArray[np.bool_]
    folds: Array
    to_base: Array
    closing: Array
    e: Array
    constant: Array


def round_tables(forms: list[Affine], l2: float, gap: int, dtype: npt.DTypeLike) -> RoundTables:
    """Tabulate one round of `gap` steps for lanes of equally many sequences.

    The forms are those of the algorithms alone; l2 is folded in here.

    Examples
    --------
    One step of FedAvg with eta = 1/2 and l2 = 1, where A = 1/2 and A^-1 b = -1:

    >>> from fedac.algorithms import FEDAVG
    >>> lane = Lane(FEDAVG, FEDAVG.couple(eta=0.5, mu=1.0, K=1))
    >>> tables = round_tables([affine(lane)], 1.0, 1, np.float64)
    >>> tables.q.ravel(), tables.r.ravel(), tables.closing.ravel()
    (array([1.]), array([-1.]), array([0.5]))
    """
    A = np.stack([form.with_l2(l2).A for form in forms])  # (V, S, S)
    b = np.stack([form.b for form in forms])
    c = np.stack([form.c for form in forms])
    powers = [np.broadcast_to(np.eye(A.shape[1]), A.shape)]
    longest = min(gap, _longest_safe(A, gap, np.dtype(dtype)))
    for _ in range(longest + 1):
        powers.append(A @ powers[-1])
    inverses = [np.linalg.inv(power) for power in powers[: longest + 1]]

    # A fold needs no inverse for its own step, so a folded stretch is one step longer.
    stretch = gap + 1 if longest == gap else longest + 1
    since = np.arange(gap) % stretch
    fold_after = since == stretch - 1
    folds = int(fold_after.sum())
    rest = gap - folds * stretch
    q = np.stack([np.einsum("vs,vst->tv", c, powers[t]) for t in since])
    r = np.stack(
        [
            b.T if fold else np.einsum("vst,vt->sv", inverses[t + 1], b)
            for t, fold in zip(since, fold_after, strict=True)
        ]
    )
    fold_matrix = powers[min(stretch, longest + 1)]
    to_base = np.linalg.matrix_power(fold_matrix, folds)
    kappa = [np.zeros_like(b)]  # S_t = A^t Y_t + kappa_t u', with kappa' = A kappa - l2 b
    for _ in range(gap):
        kappa.append(np.einsum("vst,vt->vs", A, kappa[-1]) - l2 * b)
    return RoundTables(
        q=q,
        r=r,
        fold_after=fold_after,
        folds=np.broadcast_to(fold_matrix.transpose(2, 1, 0), (folds, *A.shape[1:], A.shape[0])),
        to_base=to_base.transpose(1, 2, 0),
        closing=powers[rest].transpose(1, 2, 0),
        e=np.stack([np.einsum("vs,vs->v", c, k) for k in kappa[:gap]]),
        constant=kappa[gap].T,
    )


def _longest_safe(A: Array, gap: int, dtype: np.dtype[np.generic]) -> int:
    """Return the largest t <= gap for which every lane's A^t can be undone safely."""
    power = np.broadcast_to(np.eye(A.shape[1]), A.shape)
    for t in range(1, gap + 1):
        power = A @ power
        sizes = np.linalg.svd(power, compute_uv=False)
        largest, smallest = sizes[:, 0], sizes[:, -1]
        safe = (
            (largest <= SAFE_CONDITION[dtype] * smallest)
            & (largest < SAFE_SIZE)
            & (smallest > 1 / SAFE_SIZE)
        )
        if not safe.all():
            return t - 1
    return gap
