"""The instability theorem: runs of AGD that start side by side can part exponentially fast.

Theorem instability:full: for any kappa = L/mu >= 25 and any number of blocks there is a smooth,
strongly convex F on which two runs of accelerated gradient descent, started eps apart, are parted
by another factor of 2 (1 - 1/sqrt(kappa))^3 > 1.02 in every block of three steps. This is why
FedAc gives up some acceleration. Here that F is built by the induction of the proof.

All is in units of mu = 1, so L = kappa: scaling F scales both, and AGD takes the same steps.

The neighbourhoods of the proof shrink with every block. For 60 blocks at kappa = 10^4 they are
10^-628 wide, where doubles end at 10^-308 and see no more than 10^-16 beside 1. So trajectories
are computed with mpmath. How small eps must be is known before the first step is taken, and the
working precision follows from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from mpmath import MPContext

from fedac.algorithms import State
from fedac.algorithms.couplings import FedAcHyperparameters
from fedac.errors import InputError
from fedac.theory.agd import Trajectory, agd, follow, nesterov, propagate
from fedac.theory.piecewise import Number, PiecewiseQuadratic
from fedac.theory.separation import Separation, by_block, curvatures

SMALLEST_KAPPA, LARGEST_KAPPA = 25.0, 1e12
# The bits grow with the square of the blocks: 100 take seconds, 200 would take minutes.
LARGEST_BLOCKS = 100
# Rounding stays this far below eps, so that differences of trajectories have 19 digits.
GUARD_BITS = 64
# As many of them may be spent on an eps below eps_0.
SPARE_BITS = 24


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An objective on which AGD is unstable, and where to start; made by `construct`.

    Attributes
    ----------
    kappa, blocks
        As asked for; AGD takes three steps in a block.
    objective : PiecewiseQuadratic
        F, with mu = 1 and L = kappa.
    hp : FedAcHyperparameters
        Those of AGD.
    start : (w_ag, w)
        Where the trajectory of lemma instability:1 starts.
    delta : mpf
        F'' is constant within `delta` of every w_md, in that trajectory and in all others that
        start within `eps_0` of it.
    eps_0 : mpf
        How far from `start` another trajectory may start, in w_ag and in w.
    bits : int
        The precision of all these numbers.

    Examples
    --------
    >>> instance = construct(25.0, 3)
    >>> len(instance.objective.bumps), bool(instance.eps_0 < instance.delta)
    (3, True)
    """

    kappa: float
    blocks: int
    objective: PiecewiseQuadratic
    hp: FedAcHyperparameters
    start: State
    delta: Number
    eps_0: Number
    bits: int

    def trajectories(self, eps: Number | None = None) -> tuple[Trajectory, Trajectory]:
        """Run AGD from `start`, and from `eps` below it in both w_ag and w.

        Parameters
        ----------
        eps : number, optional
            From eps_0 / 2^24 to eps_0; half of eps_0 unless given.

        Examples
        --------
        >>> w, u = construct(25.0, 1).trajectories()
        >>> bool(abs(w.w[-1] - u.w[-1]) > 3 * abs(w.w[0] - u.w[0]))
        True
        """
        eps = self._checked(eps)
        w_ag, w = self.start
        steps = 3 * self.blocks
        return (
            agd(self.objective, self.start, self.hp, steps=steps),
            agd(self.objective, (w_ag - eps, w - eps), self.hp, steps=steps),
        )

    def separation(self, eps: Number | None = None) -> list[Separation]:
        """Measure how far the two `trajectories` are apart after 0, 1, .., blocks blocks.

        Examples
        --------
        >>> [round(apart.w, 3) for apart in construct(100.0, 2).separation()]
        [1.0, -8.019, 11.692]
        """
        eps = self._checked(eps)
        runs = zip(*self.trajectories(eps), strict=True)
        parted = (tuple((w - u) / eps for w, u in zip(*run, strict=True)) for run in runs)
        return by_block(Trajectory(*parted))

    def _checked(self, eps: Number | None) -> Number:
        if eps is None:
            return self.eps_0 / 2
        # Any smaller eps would do for the theorem, but use up the digits that guard it.
        if not self.eps_0 / 2**SPARE_BITS <= eps <= self.eps_0:
            raise InputError(f"eps must be from eps_0 / 2^{SPARE_BITS} to eps_0, got {eps}")
        return eps


def construct(kappa: float, blocks: int) -> Instance:
    """Build the objective of lemma instability:1 by the induction of its proof.

    Parameters
    ----------
    kappa : float
        L/mu, from 25 to 10^12.
    blocks : int
        From 1 to 100; the K of the theorem.

    Examples
    --------
    >>> instance = construct(25.0, 1)
    >>> F, (w, u) = instance.objective, instance.trajectories()
    >>> [int(F.curvature(w_md)) for w_md in w.w_md]
    [1, 25, 1]
    """
    kappa, blocks = require_kappa(kappa), require_blocks(blocks)
    radii = _radii(kappa, blocks)
    # Half of the last neighbourhood is for the other trajectories to be in, and half is
    # the neighbourhood of each of theirs.
    delta = radii[-1] - 1
    eps_0 = delta - _exponent_above(_largest_difference(kappa, blocks))
    context = MPContext()  # of our own: mpmath's precision for everybody is left alone
    context.prec = GUARD_BITS - eps_0
    one = context.mpf(1)
    objective = PiecewiseQuadratic(one, one * kappa)
    hp = nesterov(context.sqrt(objective.L))
    # With w = 0 the w_md on H_0 = mu are a geometric sequence, all different.
    start = (one, 0 * one)
    lengths = [context.ldexp(1, radius) for radius in radii]
    objective = _induction(objective, start, hp, lengths)
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


def require_kappa(kappa: float) -> float:
    """Return `kappa` if the theorem and our arithmetic hold for it, else say what is wrong.

    Examples
    --------
    >>> require_kappa(16)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: kappa must be a number from 25 to 1e+12, got 16: \
the theorem needs L/mu >= 25
    """
    number = isinstance(kappa, Real) and not isinstance(kappa, bool)
    if number and SMALLEST_KAPPA <= kappa <= LARGEST_KAPPA:
        return float(kappa)
    expected = f"kappa must be a number from {SMALLEST_KAPPA:g} to {LARGEST_KAPPA:g}"
    why = ": the theorem needs L/mu >= 25" if number and kappa < SMALLEST_KAPPA else ""
    raise InputError(f"{expected}, got {kappa}{why}")


def require_blocks(blocks: int) -> int:
    """Return `blocks` if it is a number of blocks we can compute, else say what is wrong.

    Examples
    --------
    >>> require_blocks(0)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: blocks must be a whole number from 1 to 100, got 0
    """
    number = isinstance(blocks, Integral) and not isinstance(blocks, bool)
    if number and 1 <= blocks <= LARGEST_BLOCKS:
        return int(blocks)
    expected = f"blocks must be a whole number from 1 to {LARGEST_BLOCKS}"
    more = number and blocks > LARGEST_BLOCKS
    why = ": the digits needed grow with its square" if more else ""
    raise InputError(f"{expected}, got {blocks}{why}")


def _induction(
    objective: PiecewiseQuadratic, start: State, hp: FedAcHyperparameters, radii: list[Number]
) -> PiecewiseQuadratic:
    """Go from F_0 to F_K, by a bump of curvature L in the middle of every block."""
    centre = agd(objective, start, hp, steps=2).w_md[1]
    for k, radius in enumerate(radii):
        # A bump changes F' beyond it, and so moves the w_md around which it was put: to where
        # F~_{k+1} has it. Moved there, the bump is still below all that came before.
        middle = 3 * k + 1
        tilde = agd(objective.with_bump(centre, radius), start, hp, steps=middle + 1)
        objective = objective.with_bump(tilde.w_md[middle], radius)
        # So up to here the trajectory on F_{k+1} is the one on F~_{k+1} (point (b) of the proof):
        # three steps more lead to the middle of the next block.
        here = (tilde.w_ag[middle], tilde.w[middle])
        centre = agd(objective, here, hp, steps=4).w_md[3]
    return objective


def _radii(kappa: float, blocks: int) -> list[int]:
    """Return the binary exponents of eps_0, .., eps_{K-1}, the radii of the bumps.

    Where the proof says "sufficiently small, by continuity", this finds how small: as long as
    no w_md moves by more than delta_k / 2, all movements are linear in eps_k (see `_movement`).
    Each delta_{k+1} is eps_k.
    """
    root = math.sqrt(kappa)
    # On H_0 = mu, w_md is (1 - 1/root)^t root/(root + 1): the last two are the nearest, and
    # nearer to each other than to 0. Two neighbourhoods of radius delta_0 are to fit in.
    least_gap = (3 * blocks - 2) * math.log2(1 - 1 / root) - math.log2(root + 1)
    exponent = math.floor(least_gap) - 1
    radii = []
    for k in range(blocks):
        exponent -= 1 + max(1, _exponent_above(_movement(kappa, blocks, k)))
        radii.append(exponent)
    return radii


def _movement(kappa: float, blocks: int, k: int) -> float:
    """Return how far the bump of block k moves any w_md, in units of its radius."""
    known = curvatures(kappa, k) + [1.0] * (3 * (blocks - k))
    middle = 3 * k + 1

    def gradient(t: int, w_md: float) -> float:
        # The trajectory comes down towards 0: the bump of length 2 lies below all earlier w_md,
        # its own one has half of it below, the later ones have none.
        below = 2.0 if t < middle else 1.0 if t == middle else 0.0
        return known[t] * w_md + (kappa - 1) * below

    hp = nesterov(math.sqrt(kappa))
    moved = follow(gradient, (0.0, 0.0), hp, steps=3 * blocks).w_md
    return float(max(map(abs, moved)))


def _largest_difference(kappa: float, blocks: int) -> float:
    """Return how far w_md may come apart when both w_ag and w start at most 1 apart."""
    hp = nesterov(math.sqrt(kappa))
    units = [propagate(hp, curvatures(kappa, blocks), at).w_md for at in ((1.0, 0.0), (0.0, 1.0))]
    return float(max(abs(a) + abs(b) for a, b in zip(*units, strict=True)))


def _exponent_above(value: float) -> int:
    """Return e with value < 2^e, with some room for the rounding of `value`."""
    return math.frexp(1.001 * value)[1]
