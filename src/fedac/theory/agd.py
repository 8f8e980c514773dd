"""Accelerated gradient descent, and how the difference of two runs evolves.

AGD (algo:agd) is vanilla FedAc with eta = 1/L, so it uses FedAc's own update. So does the
difference of two runs, because FedAc is linear in its state and the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedac.algorithms import FEDAC_VANILLA, State
from fedac.algorithms.hyperparameters import FedAcHyperparameters
from fedac.theory.piecewise import Number, PiecewiseQuadratic


class Trajectory(NamedTuple):
    """All iterates: `w_ag` and `w` at t = 0..T, and `w_md` at t = 0..T-1."""

    w_ag: tuple[Number, ...]
    w_md: tuple[Number, ...]
    w: tuple[Number, ...]


def nesterov(root: Number, mu: Number = 1) -> FedAcHyperparameters:
    """Return the hyperparameters that make FedAc the AGD of algo:agd; `root` is sqrt(kappa).

    They equal `couplings.vanilla` at eta = 1/L, in the number type of `root`.

    Examples
    --------
    >>> nesterov(2.0)
    FedAcHyperparameters(eta=0.25, gamma=0.5, alpha=2.0, beta=3.0)
    """
    return FedAcHyperparameters(
        eta=1 / (mu * root * root), gamma=1 / (mu * root), alpha=root, beta=root + 1
    )


def follow(
    gradient: Callable[[int, Number], Number], start: State, hp: FedAcHyperparameters, *, steps: int
) -> Trajectory:
    """Run FedAc from start = (w_ag, w), with gradient(t, w_md) at step t.

    Examples
    --------
    >>> follow(lambda t, w_md: 4 * w_md, (1.5, 0.0), nesterov(2.0), steps=1)
    Trajectory(w_ag=(1.5, 0.0), w_md=(1.0,), w=(0.0, -1.5))
    """
    states, queries = [start], []
    for t in range(steps):
        w_md = FEDAC_VANILLA.query(states[-1], hp)
        queries.append(w_md)
        states.append(FEDAC_VANILLA.update(states[-1], w_md, gradient(t, w_md), hp))
    w_ag, w = zip(*states, strict=True)
    return Trajectory(w_ag, tuple(queries), w)


def run_agd(
    objective: PiecewiseQuadratic, start: State, hp: FedAcHyperparameters, *, steps: int
) -> Trajectory:
    """Run accelerated gradient descent (algo:agd) from start = (w_ag, w).

    Examples
    --------
    With w_md = (1/3) 3 + (2/3) 0 = 1 and F'(1) = 4, w_ag' = 1 - 4/4 and w' = 3/2 + 1/2 - 4/2:

    >>> F = PiecewiseQuadratic(mu=1.0, L=4.0, bumps=((0.0, 9.0),))
    >>> run_agd(F, (0.0, 3.0), nesterov(2.0), steps=1)
    Trajectory(w_ag=(0.0, 0.0), w_md=(1.0,), w=(3.0, 0.0))
    """
    return follow(lambda t, w_md: objective.gradient(w_md), start, hp, steps=steps)


def propagate(
    hp: FedAcHyperparameters, curvatures: Sequence[float], start: State = (1.0, 1.0)
) -> Trajectory:
    """Follow the difference of two trajectories, given the curvature between them at each step.

    It evolves like a trajectory whose gradient is F''(zeta_t) times its own w_md
    (lemma instability:2).

    Examples
    --------
    At curvature L, w becomes 1 - sqrt(kappa) times the previous w_ag:

    >>> propagate(nesterov(4.0), [16.0], start=(1.0, 0.0)).w
    (0.0, -3.0)
    """
    return follow(lambda t, w_md: curvatures[t] * w_md, start, hp, steps=len(curvatures))
