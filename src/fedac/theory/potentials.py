"""The two potentials that measure progress in the paper.

Right after a synchronization all workers agree, so both are functions of the averaged state.
"""

from __future__ import annotations

from fedac.arrays import Array


def psi(*, suboptimality: float, w: Array, w_star: Array, mu: float) -> float:
    """Return Psi = F(w_ag) - F* + mu/2 ||w - w*||^2 (eq:fedaci:potential), for FedAc-I.

    Examples
    --------
    >>> import numpy as np
    >>> psi(suboptimality=1.0, w=np.array([3.0]), w_star=np.array([1.0]), mu=0.5)
    2.0
    """
    return suboptimality + mu / 2 * float((w - w_star) @ (w - w_star))


def phi(*, suboptimality: float, w: Array, w_star: Array, mu: float) -> float:
    """Return Phi = F(w_ag) - F* + mu/6 ||w - w*||^2 (eq:centralied:potential), for FedAc-II.

    Examples
    --------
    >>> import numpy as np
    >>> phi(suboptimality=1.0, w=np.array([3.0]), w_star=np.array([1.0]), mu=1.5)
    2.0
    """
    return suboptimality + mu / 6 * float((w - w_star) @ (w - w_star))
