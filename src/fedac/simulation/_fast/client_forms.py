"""All that clients do in a round, as coefficients: how they enter, step and leave.

Control variates have a client sum its gradients, and the sum would be one more vector to update in
every step. But ``S' = A S + b g`` moves as a whole where all its points move alike, so there is a v
with ``v A = v`` and ``v b = 1``, and then the sum of g over a round is ``v (S_K - S_0)``. The
engine takes it from there (`without_sums`) and steps without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedac.algorithms.boundaries import boundary_form
from fedac.arrays import Array
from fedac.simulation._fast.affine import Affine, affine_form
from fedac.simulation.problem import Lane

# How much rounding of a state of size 1 may show in a mean gradient: a step size that is very
# small would lose its digits in S_K - S_0.
SAFE_ROUNDING = 1e-5


@dataclass(frozen=True, slots=True)
class ClientForm:
    """The coefficients of a lane's clients in a round of some length: T vectors travel, P are kept.

    Attributes
    ----------
    steps : Affine
        One step of the S sequences that a client works on.
    begin : array, shape (P, T)
        From what was broadcast to a client's first memory.
    enter : array, shape (S, T + P)
        From what was broadcast and the memory to what it works on.
    leave : array, shape (T + P, S + T + P)
        From what it worked on, what was broadcast and its memory to its message and memory.
    """

    steps: Affine
    begin: Array
    enter: Array
    leave: Array

    def padded(self, S: int) -> ClientForm:
        """Add sequences that stay at zero, up to S of them."""
        mine = len(self.enter)
        leave = np.insert(self.leave, [mine] * (S - mine), 0.0, axis=1)
        enter = np.pad(self.enter, ((0, S - mine), (0, 0)))
        return ClientForm(self.steps.padded(S), self.begin, enter, leave)


def client_form(lane: Lane, gap: int) -> ClientForm:
    """Find the coefficients of a lane's clients in a round of `gap` steps."""
    algorithm = lane.algorithm
    T, P = len(algorithm.sequences), len(algorithm.memory)
    S = len(algorithm.local_sequences)
    form = boundary_form(algorithm, lane.hp, gap)
    return ClientForm(
        steps=affine_form(lane),
        begin=np.reshape(form.first_memory, (P, T)),
        enter=np.reshape(form.enter, (S, T + P)),
        leave=np.reshape(form.message + form.memory, (T + P, S + T + P)),
    )


def without_sums(form: ClientForm, gap: int, dtype: npt.DTypeLike) -> ClientForm | None:
    """Return the form without sequences that are sums of gradients; None if they are needed.

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
    return ClientForm(
        steps=Affine(c[~summed], A[np.ix_(~summed, ~summed)], b[~summed]),
        begin=form.begin,
        enter=form.enter[~summed],
        leave=np.hstack(
            [
                on_local[:, ~summed] + on_sums @ at_end,
                on_others + on_sums @ at_start @ form.enter,
            ]
        ),
    )


def _invariant(A: Array, b: Array, places: npt.NDArray[np.bool_]) -> Array:
    """Return v with v A = v and v b = 1, in its places; NaN if there is none."""
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
