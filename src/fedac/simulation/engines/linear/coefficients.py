# SPDX-License-Identifier: Apache-2.0
"""The coefficients of algorithms: kernels know nothing else about them.

The package's docstring derives c, A and b, with ``w_md = c.S`` and ``S' = A S + b g``, and the
tables of a round. The l2 term of the gradient goes into A: ``A <- A + l2 b c'``.

With control variates a client sums its gradients, which would be one more vector to update in every
step. But where all points of ``S' = A S + b g`` move in the same way, there is a v with ``v A = v``
and ``v b = 1``, and the sum of g over a round is ``v (S_K - S_0)``. `without_sums` makes use of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.algorithms import Algorithm
from fedac.algorithms.linear import boundary_form, linear_form
from fedac.errors import InputError
from fedac.simulation.engines.linear.kernels.interface import Closing, Tables
from fedac.simulation.problem import Lane
from fedac.validate import Array

# Largest condition number of A^t before Y is folded: it multiplies rounding errors.
SAFE_CONDITION = {np.dtype(np.float32): 16.0, np.dtype(np.float64): 1e4}
# Beyond these sizes powers of A come near the ends of single precision.
SAFE_SIZE = 1e12
# Steps of the longest round whose tables, some megabytes, are kept for the next simulation.
LONGEST_KEPT = 4096
# The largest error of a mean gradient due to rounding of a state of size 1: with a very small step
# size, S_K - S_0 loses its digits.
SAFE_ROUNDING = 1e-5


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
        sequence depends on: undoing a step does not multiply their errors.
        """
        A = self.with_l2(l2).A
        unit = np.eye(len(A))
        constant = (unit == A).all(axis=1) & (self.b == 0)
        only_summed = (unit == A).all(axis=0) & (self.c == 0)
        outside = constant | only_summed
        return np.where(outside[:, None] | outside, unit, A)


def affine_form(lane: Lane) -> Affine:
    """Derive the affine form of a lane; raises InputError for an algorithm that has none."""
    form = linear_form(lane.algorithm, lane.hp)
    c, update = np.array(form.query), np.array(form.update)
    # The step takes w_md as given; here it is a combination of the state.
    *on_state, on_w_md, on_g = update.T
    return Affine(c=c, A=np.array(on_state).T + np.outer(on_w_md, c), b=on_g)


def round_tables(
    forms: list[Affine], l2: float, lengths: tuple[int, ...], dtype: npt.DTypeLike
) -> tuple[Tables, Closing]:
    """Tabulate one round for lanes with the same number of sequences.

    `lengths` are the numbers of steps that clients take, in ascending order: the tables are as long
    as the longest, and arrays of `Closing` have a first axis for the length. The forms do not
    include l2, which is folded in here.
    """
    A = np.stack([form.with_l2(l2).A for form in forms])  # (V, S, S)
    core = np.stack([form.core(l2) for form in forms])
    b, c = np.stack([form.b for form in forms]), np.stack([form.c for form in forms])
    make = _kept_tables if lengths[-1] <= LONGEST_KEPT else _make_tables
    numbers = (A.tobytes(), core.tobytes(), b.tobytes(), c.tobytes())
    return make(numbers, A.shape[:2], l2, lengths, np.dtype(dtype))


def _make_tables(
    numbers: tuple[bytes, ...],
    shape: tuple[int, int],
    l2: float,
    lengths: tuple[int, ...],
    dtype: np.dtype[Any],
) -> tuple[Tables, Closing]:
    """Tabulate a round of V lanes with S sequences, from A, core, b and c as hashable bytes."""
    (V, S), gap = shape, lengths[-1]
    A, core = (np.frombuffer(matrices).reshape(V, S, S) for matrices in numbers[:2])
    b, c = (np.frombuffer(vectors).reshape(V, S) for vectors in numbers[2:])
    longest, powers = _safe_powers(A, core, gap, dtype)
    inverses = np.linalg.inv(powers[: longest + 1])

    # A fold needs no inverse for its own step, so a folded stretch is one step longer.
    stretch = gap + 1 if longest == gap else longest + 1
    since = np.arange(gap) % stretch
    fold_after = since == stretch - 1
    folds = int(fold_after.sum())
    q = np.einsum("vs,kvst->ktv", c, powers[since])
    r = np.einsum("kvst,vt->ksv", inverses[np.minimum(since + 1, longest)], b)
    r[fold_after] = b.T
    fold_matrix = powers[min(stretch, longest + 1)]
    kappa = np.zeros((gap + 1, V, S))  # S_t = A^t Y_t + kappa_t u', kappa' = A kappa - l2 b
    for t in range(gap):
        kappa[t + 1] = np.einsum("vst,vt->vs", A, kappa[t]) - l2 * b
    tables = Tables(
        q=q,
        r=r,
        e=np.einsum("vs,kvs->kv", c, kappa[:gap]),
        fold_after=fold_after,
        folds=np.broadcast_to(fold_matrix.transpose(2, 1, 0), (folds, S, S, V)),
    )
    ends = np.array(lengths)
    to_base = [np.linalg.matrix_power(fold_matrix, fold_after[:end].sum()) for end in lengths]
    return tables, Closing(
        np.stack(to_base).transpose(0, 2, 3, 1),
        powers[ends % stretch].transpose(0, 2, 3, 1),
        kappa[ends].transpose(0, 2, 1),
    )


# Groups of a sweep that differ in M or seed have the same tables.
_kept_tables = lru_cache(maxsize=32)(_make_tables)


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
        # Overflow counts as singular.
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


@dataclass(frozen=True, slots=True)
class ClientForm:
    """The coefficients of a lane's clients in a round of some length: T vectors travel, P are kept.

    `steps` is one step of the S sequences that a client works on. `begin`, of shape (P, T), gives
    its first memory from the broadcast. `enter`, of shape (S, T + P), gives what it works on from
    the broadcast and the memory. `leave`, of shape (T + P, S + T + P), gives its message and next
    memory from what it worked on, the broadcast and the memory; vectors that are not sent are
    zeros. `gradient`, of shape (T,), is how much of the full gradient a message has.
    """

    steps: Affine
    begin: Array
    enter: Array
    leave: Array
    gradient: Array

    def padded(self, S: int) -> ClientForm:
        """Add sequences that stay at zero, up to S of them."""
        mine = len(self.enter)
        leave = np.insert(self.leave, [mine] * (S - mine), 0.0, axis=1)
        enter = np.pad(self.enter, ((0, S - mine), (0, 0)))
        return replace(self, steps=self.steps.padded(S), enter=enter, leave=leave)


def client_form(lane: Lane, gap: int) -> ClientForm:
    """Derive the coefficients of a lane's clients in a round of `gap` steps."""
    algorithm = lane.algorithm
    T, P = len(algorithm.sequences), len(algorithm.memory)
    S = len(algorithm.local_sequences)
    form = boundary_form(algorithm, lane.hp, gap)
    sent = np.isin(algorithm.sequences, algorithm.sent)
    left = np.zeros((T + P, S + T + P + ("gradient" in algorithm.asks)))
    left[np.append(sent, np.ones(P, bool))] = form.message + form.memory
    leave, gradient = left[:, : S + T + P], left[:, S + T + P :]
    if gradient[T:].any():
        raise InputError(
            f"clients of '{algorithm.name}' keep full gradients; only the reference and network "
            "engines can run it"
        )
    return ClientForm(
        steps=affine_form(lane),
        begin=np.reshape(form.first_memory, (P, T)),
        enter=np.reshape(form.enter, (S, T + P)),
        leave=leave,
        gradient=gradient[:T].sum(axis=1),
    )


def for_lengths(
    make: Callable[[int], ClientForm], lengths: tuple[int, ...]
) -> tuple[Array, Array] | None:
    """Return `enter` and `leave` for some numbers of steps, in ascending order, as stacked arrays.

    In the methods that we know, coefficients are A + B/K: two numbers of steps give A and B. None
    if a third one shows that they are not.
    """
    shortest, longest = make(lengths[0]), make(lengths[-1])
    if len(lengths) == 1:
        return shortest.enter[None], shortest.leave[None]
    inverse = 1 / np.array(lengths)[:, None, None]
    share = (inverse - inverse[-1]) / (inverse[0] - inverse[-1])
    enter = share * shortest.enter + (1 - share) * longest.enter
    leave = share * shortest.leave + (1 - share) * longest.leave
    middle = len(lengths) // 2
    known = make(lengths[middle])
    for found, exact in ((enter[middle], known.enter), (leave[middle], known.leave)):
        slack = 1e-9 * max(1.0, np.abs(exact).max(initial=0.0))
        if not (np.abs(found - exact) <= slack).all():
            return None
    return enter, leave


def without_sums(form: ClientForm, gap: int, dtype: npt.DTypeLike) -> ClientForm | None:
    """Return the form without sequences that sum gradients; None if they are needed.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> scaffold = get("scaffold")  # w, the correction, the sum of gradients
    >>> form = client_form(Lane(scaffold, scaffold.couple(eta=0.5, mu=1.0, K=2)), 2)
    >>> without_sums(form, 2, np.float64).leave[-1]  # c_m = (x - w)/(K eta) - correction
    array([-1.,  0.,  1., -1.,  1.])
    """
    A, b, c = form.steps.A, form.steps.b, form.steps.c
    unit = np.eye(len(b))
    alone = (unit == A).all(axis=1)
    constant = alone & (b == 0)
    summed = alone & (unit == A).all(axis=0) & (c == 0) & ~constant
    if not summed.any():
        return form
    moving = ~constant & ~summed
    if not moving.any():  # the clients of a minibatch algorithm stay where they are
        return None
    v = np.where(moving, _invariant(A[np.ix_(moving, moving)], b[moving], moving), 0.0)
    if not np.abs(v).max() * np.finfo(np.dtype(dtype)).eps / gap <= SAFE_ROUNDING:
        return None
    # A constant, such as the correction, moves v S in every step too.
    drift = np.where(constant, gap * (v @ A), 0.0)
    at_end = np.outer(b[summed], v[~summed])
    at_start = unit[summed] - np.outer(b[summed], v + drift)
    on_local, on_others = form.leave[:, : len(b)], form.leave[:, len(b) :]
    on_sums = on_local[:, summed]
    return replace(
        form,
        steps=Affine(c[~summed], A[np.ix_(~summed, ~summed)], b[~summed]),
        enter=form.enter[~summed],
        leave=np.hstack(
            [
                on_local[:, ~summed] + on_sums @ at_end,
                on_others + on_sums @ at_start @ form.enter,
            ]
        ),
    )


def _invariant(A: Array, b: Array, places: npt.NDArray[np.bool_]) -> Array:
    """Return v with v A = v and v b = 1 in the given places; NaN if there is none."""
    v = np.full(len(places), np.nan)
    size = np.abs(b).max(initial=0.0)
    if size > 0:
        system = np.vstack([A.T - np.eye(len(b)), b / size])
        wanted = np.append(np.zeros(len(b)), 1.0)
        # NumPy 1 warns unless its newer default is asked for.
        found, *_ = np.linalg.lstsq(system, wanted, rcond=None)
        if np.allclose(system @ found, wanted, rtol=0, atol=1e-10 * max(1, np.abs(found).max())):
            v[places] = found / size
    return v


def echoes_of(algorithm: Algorithm) -> tuple[int, ...]:
    """Return which vector of its message each vector of a client's memory follows; -1: none."""
    follows = {kept: algorithm.sequences.index(sequence) for sequence, kept in algorithm.echoes}
    return tuple(follows.get(kept, -1) for kept in algorithm.memory)
