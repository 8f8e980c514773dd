"""Callbacks for `simulate` that record what the theory tracks.

>>> from fedac import NoisyQuadratic, simulate
>>> F = NoisyQuadratic([1.0, 0.5], sigma=0.1)
>>> potentials = PotentialRecorder(F)
>>> result = simulate(F, "fedac-i", M=4, K=2, T=8, eta=0.5, engine="reference",
...                   callbacks=[potentials])
>>> len(potentials.psi[0]) == len(result.runs[0].steps)
True
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from fedac.objectives import Objective, optimum
from fedac.simulation import Record
from fedac.theory.potentials import phi, psi


class NoiseRecorder:
    """Records sigma^2 at the output of every run.

    Attributes
    ----------
    noise : dict of lists
        By index of the run in its result: sigma^2 at every record.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.noise: dict[int, list[float]] = defaultdict(list)

    def __call__(self, record: Record) -> None:
        """Record sigma^2 at the output."""
        self.noise[record.run].append(self.objective.noise(record.w))


class PotentialRecorder:
    """Records the potentials Psi and Phi of algorithms that keep ``w_ag`` and ``w``.

    Parameters
    ----------
    objective : Objective
        The objective of the simulation.
    mu : float, optional
        Strong-convexity estimate; by default the objective's own.

    Attributes
    ----------
    psi, phi : dict of lists
        By index of the run in its result: the potential at every record.
    """

    def __init__(self, objective: Objective, *, mu: float | None = None) -> None:
        self.optimum = optimum(objective)
        self.mu = objective.strong_convexity if mu is None else mu
        self.psi: dict[int, list[float]] = defaultdict(list)
        self.phi: dict[int, list[float]] = defaultdict(list)

    def __call__(self, record: Record) -> None:
        """Record both potentials, if the algorithm keeps both sequences."""
        if "w_ag" not in record.sequences:
            return
        above, w = record.loss - self.optimum.value, record.state[record.sequences.index("w")]
        at: dict[str, Any] = {"w": w, "w_star": self.optimum.w, "mu": self.mu}
        self.psi[record.run].append(psi(suboptimality=above, **at))
        self.phi[record.run].append(phi(suboptimality=above, **at))
