# SPDX-License-Identifier: Apache-2.0
"""The instability theorem: two nearby runs of AGD can separate exponentially fast.

Theorem instability:full: for any kappa = L/mu >= 25 and any number of blocks there is a smooth,
strongly convex F on which two runs of accelerated gradient descent, started eps apart, separate
by another factor of 2 (1 - 1/sqrt(kappa))^3 > 1.02 in every block of three steps. This is why
FedAc gives up some acceleration. Units are mu = 1, so that L = kappa, and eps.

One of the three steps of a block has curvature L. The argument `at_L` selects which: 1 in the
proof, which bounds w_ag - u_ag below by 1.02^K eps / 2 and w - u by 1.02^K eps; 0 for the constants
that the theorem states, which are the other way round.

The neighbourhoods of the proof shrink with every block. For 60 blocks at kappa = 10^4 they are
10^-628 wide, but doubles end at 10^-308, so trajectories are computed with mpmath, at a precision
that the required eps determines.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from numbers import Real
from typing import Any, NamedTuple

from mpmath import MPContext

from fedac.algorithms import FEDAC_VANILLA, State, hyperparameters
from fedac.algorithms.hyperparameters import FedAcHyperparameters
from fedac.errors import InputError
from fedac.validate import require_count

# A float, a fraction or an mpmath number: anything with + - * / and an order.
Number = Any

LARGEST_KAPPA = 1e12
# The bits grow with the square of the blocks: 100 blocks take seconds, 200 would take minutes.
LARGEST_BLOCKS = 100
# Bits below eps, so that differences of trajectories have 19 digits.
GUARD_BITS = 64
# The proof of instability:full shows at least this growth per block.
PROVEN_GROWTH = 1.02


class PiecewiseQuadratic:
    """F(w) = int_0^w int_0^y H(x) dx dy, where H is L on the `bumps` and mu elsewhere.

    Bumps are disjoint closed intervals in increasing order. F is F_k of claim
    instability:induction: mu-strongly convex and L-smooth, with its minimum F(0) = 0.
    """

    def __init__(self, mu: Number, L: Number, bumps: Sequence[tuple[Number, Number]] = ()) -> None:
        self.mu, self.L, self.bumps = mu, L, tuple(bumps)
        # Sums over the bumps, so that a gradient costs one binary search.
        self._lefts = [left for left, _ in bumps]
        self._lengths_before = list(accumulate((right - left for left, right in bumps), initial=0))
        self._length_at_0 = self._length(0)

    def with_bump(self, centre: Number, radius: Number) -> PiecewiseQuadratic:
        """Return the objective with curvature L on [centre - radius, centre + radius] as well."""
        bump = (centre - radius, centre + radius)
        return PiecewiseQuadratic(self.mu, self.L, sorted((*self.bumps, bump)))

    def curvature(self, w: Number) -> Number:
        """Return F''(w) = H(w), which is mu or L."""
        bump = bisect_right(self._lefts, w) - 1
        return self.L if bump >= 0 and w <= self.bumps[bump][1] else self.mu

    def gradient(self, w: Number) -> Number:
        """Return F'(w) = mu w + (L - mu) times the signed length of bumps from 0 to w."""
        return self.mu * w + (self.L - self.mu) * (self._length(w) - self._length_at_0)

    def _length(self, w: Number) -> Number:
        """Return the total length of the bumps below w."""
        bump = bisect_right(self._lefts, w) - 1
        if bump < 0:
            return 0
        left, right = self.bumps[bump]
        return self._lengths_before[bump] + min(w, right) - left


class Trajectory(NamedTuple):
    """All iterates: `w_ag` and `w` at t = 0..T, and `w_md` at t = 0..T-1."""

    w_ag: tuple[Number, ...]
    w_md: tuple[Number, ...]
    w: tuple[Number, ...]


def nesterov(root: Number, mu: Number = 1) -> FedAcHyperparameters:
    """Return `hyperparameters.vanilla` at eta = 1/L, in the number type of `root`, sqrt(kappa)."""
    return FedAcHyperparameters(
        eta=1 / (mu * root * root), gamma=1 / (mu * root), alpha=root, beta=root + 1
    )


def follow(
    gradient: Callable[[int, Number], Number], start: State, hp: FedAcHyperparameters, *, steps: int
) -> Trajectory:
    """Run FedAc from start = (w_ag, w), with gradient(t, w_md) at step t."""
    states, queries = [start], []
    for t in range(steps):
        queries.append(FEDAC_VANILLA.query(states[-1], hp))
        g = gradient(t, queries[-1])
        states.append(FEDAC_VANILLA.update(states[-1], queries[-1], g, hp))
    w_ag, w = zip(*states, strict=True)
    return Trajectory(w_ag, tuple(queries), w)


def run_agd(
    objective: PiecewiseQuadratic, start: State, hp: FedAcHyperparameters, *, steps: int
) -> Trajectory:
    """Run accelerated gradient descent (algo:agd), which is vanilla FedAc with eta = 1/L."""
    return follow(lambda t, w_md: objective.gradient(w_md), start, hp, steps=steps)


def propagate(
    hp: FedAcHyperparameters, curvatures: Sequence[float], start: State = (1.0, 1.0)
) -> Trajectory:
    """Follow the difference of two runs, given the curvature between them at each step.

    FedAc is linear, so it is a run with gradient F''(zeta_t) w_md (lemma instability:2).
    """
    return follow(lambda t, w_md: curvatures[t] * w_md, start, hp, steps=len(curvatures))


class Separation(NamedTuple):
    """The signed distance of two runs, in units of their distance at the start."""

    w_ag: float
    w: float


def curvatures(kappa: float, blocks: int, at_L: int = 1) -> list[float]:
    """Return F'' at the query points of AGD (lemma instability:1): mu, L, mu in every block."""
    if at_L not in (0, 1):
        raise InputError(f"at_L must be 0 or 1, got {at_L}")
    return [kappa if step == at_L else 1.0 for step in range(3)] * blocks


def predicted_separation(kappa: float, blocks: int, at_L: int = 1) -> Separation:
    """Return the separation of AGD after one block or more (proof of instability:full)."""
    root = math.sqrt(kappa)
    growth = (-2 * (1 - 1 / root) ** 3) ** blocks
    if at_L == 0:
        return Separation(growth, growth * root / 2)
    return Separation(growth * (1 + 1 / root) / 2, growth * (root + 1) / 2)


def proven_bound(blocks: int, at_L: int = 1) -> Separation:
    """Return the proven lower bounds: 1.02^blocks / 2 for w_ag and 1.02^blocks for w.

    For ``at_L=0`` they are swapped, as theorem instability:full states them.

    Examples
    --------
    >>> proven_bound(0)
    Separation(w_ag=0.5, w=1.0)
    """
    growth = PROVEN_GROWTH**blocks
    return Separation(growth, growth / 2) if at_L == 0 else Separation(growth / 2, growth)


def fedac_separation(kappa: float, blocks: int, *, K: int) -> list[Separation]:
    """Return the separation of two runs of FedAc-I, under the same curvatures, after each block.

    The step size is 1/L, and K is the synchronization interval: K = 1 is AGD; a larger K means a
    smaller gamma. These curvatures are chosen to separate AGD. Others are worse for FedAc-I: at
    kappa = 100 and K = 2 its runs separate by 1.75 in nine steps if only the ninth is at L.
    Proposition fedaci:stab:bound limits the growth for any curvatures.

    Examples
    --------
    >>> [round(apart.w, 3) for apart in fedac_separation(100.0, 2, K=16)]
    [1.0, -1.461, -1.105]
    """
    hp = hyperparameters.fedac_i(eta=1 / kappa, mu=1.0, K=K)
    return by_block(propagate(hp, curvatures(kappa, blocks)))


def by_block(difference: Trajectory) -> list[Separation]:
    """Return the difference at the start and after every block of three steps."""
    pairs = zip(difference.w_ag[::3], difference.w[::3], strict=True)
    return [Separation(float(w_ag), float(w)) for w_ag, w in pairs]


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An objective on which AGD is unstable, and a starting point; made by `construct`.

    Attributes
    ----------
    objective : PiecewiseQuadratic
        F, with mu = 1 and L = kappa.
    hp : FedAcHyperparameters
        The hyperparameters that make FedAc AGD.
    start : pair (w_ag, w)
        The start of the trajectory of lemma instability:1.
    delta : mpf
        F'' is constant within `delta` of every w_md, in that trajectory and in all others that
        start within `eps_0` of it, in w_ag and in w.
    bits : int
        The precision of all these numbers.
    """

    kappa: float
    blocks: int
    objective: PiecewiseQuadratic
    hp: FedAcHyperparameters
    start: State
    delta: Number
    eps_0: Number
    bits: int

    @property
    def eps(self) -> Number:
        """The initial distance of the two runs of `trajectories`."""
        return self.eps_0 / 2

    def trajectories(self) -> tuple[Trajectory, Trajectory]:
        """Run AGD from `start`, and from `eps` below it in both w_ag and w."""
        w_ag, w = self.start
        below = (w_ag - self.eps, w - self.eps)
        steps = 3 * self.blocks
        return (
            run_agd(self.objective, self.start, self.hp, steps=steps),
            run_agd(self.objective, below, self.hp, steps=steps),
        )

    def separation(self) -> list[Separation]:
        """Measure the distance of the two `trajectories` after 0, 1, ..., `blocks` blocks."""
        runs = zip(*self.trajectories(), strict=True)
        apart = (tuple((w - u) / self.eps for w, u in zip(*run, strict=True)) for run in runs)
        return by_block(Trajectory(*apart))


def construct(kappa: float, blocks: int, *, at_L: int = 1) -> Instance:
    """Build the objective of lemma instability:1 by the induction of its proof.

    Parameters
    ----------
    kappa : float
        L/mu, from 25 to 10^12.
    blocks : int
        From 1 to 100; the K of the theorem.
    at_L : 0 or 1
        The step of each block at curvature L: 1 as in the proof, or 0, for which the theorem holds
        with its stated constants.

    Examples
    --------
    >>> [round(apart.w, 3) for apart in construct(100.0, 2).separation()]
    [1.0, -8.019, 11.692]
    """
    if not isinstance(kappa, Real) or not 25 <= kappa <= LARGEST_KAPPA:
        raise InputError(
            f"kappa must be a number from 25 to {LARGEST_KAPPA:g}, got {kappa}: "
            "the theorem needs L/mu >= 25"
        )
    if require_count("blocks", blocks) > LARGEST_BLOCKS:
        raise InputError(
            f"blocks must be at most {LARGEST_BLOCKS}, got {blocks}: the digits needed grow with "
            "its square"
        )
    kappa = float(kappa)
    pattern = curvatures(kappa, blocks, at_L)
    radii = _radii(pattern, at_L)
    # Half of the last neighbourhood contains the w_md of the other trajectories; the other half
    # is the neighbourhood of each of those.
    delta = radii[-1] - 1
    agd = nesterov(math.sqrt(kappa))
    units = [propagate(agd, pattern, start).w_md for start in ((1.0, 0.0), (0.0, 1.0))]
    # The largest distance of two w_md if w_ag and w start at most 1 apart.
    largest = max(abs(a) + abs(b) for a, b in zip(*units, strict=True))
    eps_0 = delta - _exponent_above(largest)
    context = MPContext()  # a private one: mpmath's global precision stays as it is
    context.prec = GUARD_BITS - eps_0
    one = context.mpf(1)
    objective = PiecewiseQuadratic(one, one * kappa)
    hp = nesterov(context.sqrt(objective.L))
    # With w = 0 the w_md on H_0 = mu are a geometric sequence, so all differ.
    start = (one, 0 * one)
    # Go from F_0 to F_K by adding one bump of curvature L for every block.
    centre = run_agd(objective, start, hp, steps=at_L + 1).w_md[at_L]
    for k, exponent in enumerate(radii):
        # A bump changes F' beyond it, which moves the w_md at its centre to a new place under
        # F~_{k+1}. Moved there, the bump is still below all earlier w_md.
        step, radius = 3 * k + at_L, context.ldexp(1, exponent)
        tilde = run_agd(objective.with_bump(centre, radius), start, hp, steps=step + 1)
        objective = objective.with_bump(tilde.w_md[step], radius)
        # So up to here the trajectory on F_{k+1} is the one on F~_{k+1} (point (b) of the proof):
        # three more steps lead to the bump of the next block.
        here = (tilde.w_ag[step], tilde.w[step])
        centre = run_agd(objective, here, hp, steps=4).w_md[3]
    return Instance(
        kappa=kappa,
        blocks=blocks,
        objective=objective,
        hp=hp,
        start=start,
        delta=context.ldexp(1, delta),
        eps_0=context.ldexp(1, eps_0),
        bits=context.prec,
    )


def _radii(pattern: list[float], at_L: int) -> list[int]:
    """Return the binary exponents of eps_0, ..., eps_{K-1}, the radii of the bumps.

    The proof says "sufficiently small, by continuity"; this finds how small. As long as no w_md
    moves by more than delta_k / 2, all movements are linear in eps_k. Each delta_{k+1} is eps_k.
    """
    root = math.sqrt(max(pattern))
    # On H_0 = mu, w_md is (1 - 1/root)^t root/(root + 1): the last two are the closest, and
    # closer to each other than to 0. Two neighbourhoods of radius delta_0 must fit between them.
    least_gap = (len(pattern) - 2) * math.log2(1 - 1 / root) - math.log2(root + 1)
    exponent = math.floor(least_gap) - 1
    radii = []
    for step in range(at_L, len(pattern), 3):
        exponent -= 1 + max(1, _exponent_above(_movement(pattern, step)))
        radii.append(exponent)
    return radii


def _movement(pattern: list[float], step: int) -> float:
    """Return the largest movement of any w_md by the bump at a step, in units of its radius."""
    kappa = max(pattern)

    def gradient(t: int, w_md: float) -> float:
        # The trajectory descends towards 0: the bump of length 2 lies below all earlier w_md,
        # half of it below its own w_md, and none of it below the later ones.
        below = 2.0 if t < step else 1.0 if t == step else 0.0
        # Blocks from this one on have no bump yet.
        curvature = pattern[t] if t < step else 1.0
        return curvature * w_md + (kappa - 1) * below

    moved = follow(gradient, (0.0, 0.0), nesterov(math.sqrt(kappa)), steps=len(pattern)).w_md
    return float(max(map(abs, moved)))


def _exponent_above(value: float) -> int:
    """Return e with value < 2^e, with a margin for rounding in `value`."""
    return math.frexp(1.001 * value)[1]
