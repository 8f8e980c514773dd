"""How fast two runs part under the curvatures of the instability theorem, in closed form.

All is in units of mu = 1, so L = kappa, and of the distance eps at the start.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedac.algorithms import FEDAC_I
from fedac.theory.agd import Array, Trajectory, nesterov, propagate, step_matrix

# What the proof of instability:full shows for one block.
PROVEN_GROWTH = 1.02


class Separation(NamedTuple):
    """How far two runs are apart, with sign, in units of their distance at the start.

    Examples
    --------
    >>> proven_bound(1)
    Separation(w_ag=0.51, w=1.02)
    """

    w_ag: float
    w: float


def curvatures(kappa: float, blocks: int) -> list[float]:
    """Return F'' where AGD takes its gradients: mu, L, mu in every block (lemma instability:1).

    Examples
    --------
    >>> curvatures(25.0, 2)
    [1.0, 25.0, 1.0, 1.0, 25.0, 1.0]
    """
    return [1.0, kappa, 1.0] * blocks


def growth_matrix(kappa: float) -> Array:
    """Return what AGD does to a difference (w_ag, w) in one block.

    It is -2 (1 - 1/sqrt(kappa))^3 times a projection (proof of instability:full).

    Examples
    --------
    >>> growth_matrix(16.0)
    array([[-0.421875  , -0.10546875],
           [-1.6875    , -0.421875  ]])
    """
    hp = nesterov(math.sqrt(kappa))
    at_mu, at_L = step_matrix(hp, 1.0), step_matrix(hp, kappa)
    return at_mu @ at_L @ at_mu


def predicted_separation(kappa: float, blocks: int) -> Separation:
    """Return (-2 (1 - 1/sqrt(kappa))^3)^blocks / 2 times (1 + 1/sqrt(kappa), sqrt(kappa) + 1).

    For one block or more (the last display but one in the proof of instability:full).

    Examples
    --------
    >>> predicted_separation(16.0, 1)
    Separation(w_ag=-0.52734375, w=-2.109375)
    """
    root = math.sqrt(kappa)
    growth = (-2 * (1 - 1 / root) ** 3) ** blocks
    return Separation(growth * (1 + 1 / root) / 2, growth * (root + 1) / 2)


def proven_bound(blocks: int) -> Separation:
    """Return the lower bounds of the theorem: 1.02^blocks / 2 for w_ag, 1.02^blocks for w.

    As the proof of instability:full has them; its statement swaps the two.

    Examples
    --------
    >>> proven_bound(0)
    Separation(w_ag=0.5, w=1.0)
    """
    return Separation(PROVEN_GROWTH**blocks / 2, PROVEN_GROWTH**blocks)


def fedac_separation(kappa: float, blocks: int, *, K: int) -> list[Separation]:
    """Return how runs of FedAc-I part under the same curvatures, after 0, 1, .., blocks blocks.

    With eta = 1/L, and K the synchronization interval: K = 1 is AGD, a longer one means a
    smaller gamma = max(sqrt(eta/(mu K)), eta) (equation fedaci).

    Notes
    -----
    These curvatures are made to part AGD. For FedAc-I others are worse: at kappa = 100 and K = 2
    its runs part by 1.75 in nine steps if the ninth is at L and all others are at mu.
    Proposition fedaci:stab:bound limits the growth for any curvatures.

    Examples
    --------
    >>> [round(apart.w, 3) for apart in fedac_separation(100.0, 2, K=16)]
    [1.0, -1.461, -1.105]
    """
    hp = FEDAC_I.couple(eta=1 / kappa, mu=1.0, K=K)
    return by_block(propagate(hp, curvatures(kappa, blocks)))


def by_block(difference: Trajectory) -> list[Separation]:
    """Read a difference off after every block of three steps.

    Examples
    --------
    >>> by_block(propagate(nesterov(4.0), curvatures(16.0, 1)))
    [Separation(w_ag=1.0, w=1.0), Separation(w_ag=-0.52734375, w=-2.109375)]
    """
    pairs = zip(difference.w_ag[::3], difference.w[::3], strict=True)
    return [Separation(float(w_ag), float(w)) for w_ag, w in pairs]
