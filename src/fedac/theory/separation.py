"""How fast two runs separate under the curvatures of the instability theorem, in closed form.

Units are mu = 1, so that L = kappa, and the distance eps at the start.

A block is three steps, one of them at curvature L. Which one is the argument `at_L`: 1 in the proof
of instability:full, which bounds w_ag - u_ag below by 1.02^K eps / 2 and w - u by 1.02^K eps; 0 for
the constants that the theorem states, which are the other way round. Both constructions separate
by a factor of 2 (1 - 1/sqrt(kappa))^3 in every block.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedac.algorithms import hyperparameters
from fedac.errors import InputError
from fedac.theory.agd import Trajectory, propagate

# The proof of instability:full shows at least this growth per block.
PROVEN_GROWTH = 1.02


class Separation(NamedTuple):
    """The signed distance of two runs, in units of their distance at the start."""

    w_ag: float
    w: float


def curvatures(kappa: float, blocks: int, at_L: int = 1) -> list[float]:
    """Return F'' at the query points of AGD (lemma instability:1): mu, L, mu in every block.

    Examples
    --------
    >>> curvatures(25.0, 2)
    [1.0, 25.0, 1.0, 1.0, 25.0, 1.0]
    >>> curvatures(25.0, 1, at_L=0)
    [25.0, 1.0, 1.0]
    """
    if at_L not in (0, 1):
        raise InputError(f"at_L must be 0 or 1, got {at_L}")
    return [kappa if step == at_L else 1.0 for step in range(3)] * blocks


def predicted_separation(kappa: float, blocks: int, at_L: int = 1) -> Separation:
    """Return the separation of AGD after one block or more.

    With g = (-2 (1 - 1/sqrt(kappa))^3)^blocks it is (1 + 1/sqrt(kappa), sqrt(kappa) + 1) g/2
    (the last display but one in the proof of instability:full), or (1, sqrt(kappa)/2) g for
    ``at_L=0``.

    Examples
    --------
    >>> predicted_separation(16.0, 1)
    Separation(w_ag=-0.52734375, w=-2.109375)
    >>> predicted_separation(16.0, 1, at_L=0)
    Separation(w_ag=-0.84375, w=-1.6875)
    """
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
    >>> proven_bound(0), proven_bound(0, at_L=0)
    (Separation(w_ag=0.5, w=1.0), Separation(w_ag=1.0, w=0.5))
    """
    growth = PROVEN_GROWTH**blocks
    return Separation(growth, growth / 2) if at_L == 0 else Separation(growth / 2, growth)


def fedac_separation(kappa: float, blocks: int, *, K: int) -> list[Separation]:
    """Return the separation of two runs of FedAc-I, under the same curvatures, after each block.

    The step size is 1/L, and K is the synchronization interval: K = 1 is AGD; a larger K means a
    smaller gamma = max(sqrt(eta/(mu K)), eta) (equation fedaci).

    Notes
    -----
    These curvatures are chosen to separate AGD. Others are worse for FedAc-I: at kappa = 100 and
    K = 2 its runs separate by 1.75 in nine steps if the ninth is at L and all others are at mu.
    Proposition fedaci:stab:bound limits the growth for any curvatures.

    Examples
    --------
    >>> [round(apart.w, 3) for apart in fedac_separation(100.0, 2, K=16)]
    [1.0, -1.461, -1.105]
    """
    hp = hyperparameters.fedac_i(eta=1 / kappa, mu=1.0, K=K)
    return by_block(propagate(hp, curvatures(kappa, blocks)))


def by_block(difference: Trajectory) -> list[Separation]:
    """Return a difference at the start and after every block of three steps."""
    pairs = zip(difference.w_ag[::3], difference.w[::3], strict=True)
    return [Separation(float(w_ag), float(w)) for w_ag, w in pairs]
