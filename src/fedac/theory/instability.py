"""The instability theorem: two runs of AGD that start side by side can separate exponentially fast.

Theorem instability:full: for any kappa = L/mu >= 25 and any number of blocks there is a smooth,
strongly convex F on which two runs of accelerated gradient descent, started eps apart, separate
by another factor of 2 (1 - 1/sqrt(kappa))^3 > 1.02 in every block of three steps. This is why
FedAc gives up some acceleration. This module builds that F by the induction of the proof.

Units are mu = 1, so that L = kappa: scaling F scales both, and AGD takes the same steps.

The neighbourhoods of the proof shrink with every block. For 60 blocks at kappa = 10^4 they are
10^-628 wide, but doubles end at 10^-308 and resolve only 10^-16 next to 1, so trajectories are
computed with mpmath. The required eps is known before the first step, and determines the
working precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from mpmath import MPContext

from fedac.algorithms import State
from fedac.algorithms.hyperparameters import FedAcHyperparameters
from fedac.errors import InputError
from fedac.theory.agd import Trajectory, follow, nesterov, propagate, run_agd
from fedac.theory.piecewise import Number, PiecewiseQuadratic
from fedac.theory.separation import Separation, by_block, curvatures

LARGEST_KAPPA = 1e12
# The bits grow with the square of the blocks: 100 blocks take seconds, 200 would take minutes.
LARGEST_BLOCKS = 100
# Bits below eps, so that differences of trajectories have 19 digits.
GUARD_BITS = 64


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An objective on which AGD is unstable, and where to start; made by `construct`.

    Attributes
    ----------
    kappa, blocks
        As given to `construct`; a block is three steps of AGD.
    objective : PiecewiseQuadratic
        F, with mu = 1 and L = kappa.
    hp : FedAcHyperparameters
        The hyperparameters that make FedAc AGD.
    start : pair (w_ag, w)
        The start of the trajectory of lemma instability:1.
    delta : mpf
        F'' is constant within `delta` of every w_md, in that trajectory and in all others that
        start within `eps_0` of it.
    eps_0 : mpf
        The largest distance from `start`, in w_ag and in w, at which another may start.
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
        """How far apart the two runs of `trajectories` start."""
        return self.eps_0 / 2

    def trajectories(self) -> tuple[Trajectory, Trajectory]:
        """Run AGD from `start`, and from `eps` below it in both w_ag and w."""
        w_ag, w = self.start
        starts = (self.start, (w_ag - self.eps, w - self.eps))
        first, second = (
            run_agd(self.objective, start, self.hp, steps=3 * self.blocks) for start in starts
        )
        return first, second

    def separation(self) -> list[Separation]:
        """Measure the distance of the two `trajectories` after 0, 1, ..., `blocks` blocks.

        Examples
        --------
        >>> [round(apart.w, 3) for apart in construct(100.0, 2).separation()]
        [1.0, -8.019, 11.692]
        """
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
        The step of each block at curvature L: 1 as in the proof, or 0, with which the theorem
        holds with the constants that it states.

    Examples
    --------
    >>> instance = construct(25.0, 1)
    >>> F, (w, u) = instance.objective, instance.trajectories()
    >>> [int(F.curvature(w_md)) for w_md in w.w_md]
    [1, 25, 1]
    >>> construct(16.0, 1)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: kappa must be a number from 25 to 1e+12, got 16.0: \
the theorem needs L/mu >= 25
    """
    if not isinstance(kappa, Real) or not 25 <= kappa <= LARGEST_KAPPA:
        raise InputError(
            f"kappa must be a number from 25 to {LARGEST_KAPPA:g}, got {kappa}: "
            "the theorem needs L/mu >= 25"
        )
    # bool is an int in Python, but blocks=True is a mistake.
    whole = isinstance(blocks, Integral) and not isinstance(blocks, bool)
    if not whole or not 1 <= blocks <= LARGEST_BLOCKS:
        raise InputError(
            f"blocks must be a whole number from 1 to {LARGEST_BLOCKS}, got {blocks}: "
            "the digits needed grow with its square"
        )
    kappa = float(kappa)
    pattern = curvatures(kappa, blocks, at_L)
    radii = _radii(pattern, at_L)
    # Half of the last neighbourhood contains the w_md of the other trajectories; the other half
    # is the neighbourhood of each of those.
    delta = radii[-1] - 1
    eps_0 = delta - _exponent_above(_largest_difference(pattern))
    context = MPContext()  # a private one: mpmath's global precision stays as it is
    context.prec = GUARD_BITS - eps_0
    one = context.mpf(1)
    objective = PiecewiseQuadratic(one, one * kappa)
    hp = nesterov(context.sqrt(objective.L))
    # With w = 0 the w_md on H_0 = mu are a geometric sequence, so all differ.
    start = (one, 0 * one)
    lengths = [context.ldexp(1, radius) for radius in radii]
    objective = _induction(objective, start, hp, lengths, at_L)
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


def _induction(
    objective: PiecewiseQuadratic,
    start: State,
    hp: FedAcHyperparameters,
    radii: list[Number],
    at_L: int,
) -> PiecewiseQuadratic:
    """Go from F_0 to F_K by adding one bump of curvature L for every block."""
    centre = run_agd(objective, start, hp, steps=at_L + 1).w_md[at_L]
    for k, radius in enumerate(radii):
        # A bump changes F' beyond it, and so moves the w_md around which it was put to its
        # place under F~_{k+1}. Moved there, the bump is still below all earlier w_md.
        step = 3 * k + at_L
        tilde = run_agd(objective.with_bump(centre, radius), start, hp, steps=step + 1)
        objective = objective.with_bump(tilde.w_md[step], radius)
        # So up to here the trajectory on F_{k+1} is the one on F~_{k+1} (point (b) of the proof):
        # three more steps lead to the bump of the next block.
        here = (tilde.w_ag[step], tilde.w[step])
        centre = run_agd(objective, here, hp, steps=4).w_md[3]
    return objective


def _radii(pattern: list[float], at_L: int) -> list[int]:
    """Return the binary exponents of eps_0, ..., eps_{K-1}, the radii of the bumps.

    The proof says "sufficiently small, by continuity"; this finds how small. As long as no w_md
    moves by more than delta_k / 2, all movements are linear in eps_k (see `_movement`).
    Each delta_{k+1} is eps_k.
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
    """Return how far the bump at a step moves any w_md, in units of its radius."""
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


def _largest_difference(pattern: list[float]) -> float:
    """Return how far apart w_md can get when both w_ag and w start at most 1 apart."""
    hp = nesterov(math.sqrt(max(pattern)))
    units = [propagate(hp, pattern, start).w_md for start in ((1.0, 0.0), (0.0, 1.0))]
    return float(max(abs(a) + abs(b) for a, b in zip(*units, strict=True)))


def _exponent_above(value: float) -> int:
    """Return e with value < 2^e, with a margin for rounding in `value`."""
    return math.frexp(1.001 * value)[1]
