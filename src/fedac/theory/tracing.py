# SPDX-License-Identifier: Apache-2.0
"""Potentials and discrepancies along a run, at every step or at the recorded synchronizations."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedac.algorithms import Algorithm
from fedac.algorithms import get as get_algorithm
from fedac.algorithms.hyperparameters import as_fedac
from fedac.errors import InputError
from fedac.federation.federation import Federation
from fedac.federation.schedule import Schedule
from fedac.objectives import ConvexObjective, Optimum, optimum
from fedac.simulation import Record
from fedac.simulation.engines.reference import run_round
from fedac.simulation.problem import ArrayState, Lane, require_seed, start_point
from fedac.theory.constants import phi, psi
from fedac.validate import Array, require_count, require_positive


@dataclass(frozen=True, slots=True)
class Trace:
    """The quantities of the proofs, by step.

    Attributes
    ----------
    steps : array of int, shape (n,)
        0 to T.
    psi, phi : array of shape (n,)
        The decentralized and centralized potentials (eq:fedaci:potential,
        eq:centralied:potential).
    discrepancies : dict of arrays, shape (n,)
        ``"fedac-i"``: the mean product of lemma fedaci:stab:main; ``"fedac-ii"``: the squared
        distance between the gradient at the mean and the mean gradient, of lemma
        fedacii:stab:main; ``"fedavg"``: the mean fourth power of lemma fedavg:a2:stab:main.
        All are zero right after a synchronization.
    """

    steps: npt.NDArray[np.int64]
    psi: Array
    phi: Array
    discrepancies: dict[str, Array]


def trace(
    objective: ConvexObjective,
    algorithm: str | Algorithm,
    *,
    M: int,
    K: int,
    T: int,
    eta: float,
    mu: float | None = None,
    start: npt.ArrayLike | None = None,
    seed: int = 1,
) -> Trace:
    """Run one algorithm and return its potentials and discrepancies at every step.

    Between synchronizations this needs the states of all workers, so it uses the reference engine,
    which holds them all (M x d float64 numbers per sequence).

    Examples
    --------
    >>> from fedac.objectives import NoisyQuadratic
    >>> F = NoisyQuadratic([1.0, 0.1], sigma=0.1)
    >>> traced = trace(F, "fedac-i", M=4, K=4, T=8, eta=0.5)
    >>> traced.steps[traced.discrepancies["fedac-i"] == 0]
    array([0, 4, 8])
    """
    require_count("M (workers)", M)
    require_seed(seed)
    chosen = get_algorithm(algorithm)
    if chosen.minibatch:
        raise InputError(f"'{chosen.name}' takes one step per round, so its workers never differ")
    mu = objective.strong_convexity if mu is None else require_positive("mu", mu)
    lane = Lane(chosen, chosen.couple(eta=eta, mu=mu, K=K))
    best, rows = optimum(objective), {}

    def add(step: int, workers: ArrayState) -> None:
        rows[step] = _quantities(objective, best, lane, mu, workers)

    def add_synchronized(step: int) -> None:
        add(step, tuple(sequence[None, :] for sequence in state))

    state: ArrayState = chosen.start(start_point(objective, start))
    add_synchronized(0)
    federation = Federation(M=M, n=objective.n_samples, seed=seed)
    for this_round in Schedule.every(K, steps=T):
        state = run_round(objective, lane, state, federation, this_round, on_step=add)
        add_synchronized(this_round.t + this_round.gap)
    psi, phi, *overheads = map(np.array, zip(*rows.values(), strict=True))
    names = ("fedac-i", "fedac-ii", "fedavg")
    return Trace(np.array(list(rows)), psi, phi, dict(zip(names, overheads, strict=True)))


def _quantities(
    F: ConvexObjective, best: Optimum, lane: Lane, mu: float, workers: ArrayState
) -> tuple[float, ...]:
    """Return Psi, Phi and the discrepancies, given the states of all workers, of shape (M, d)."""
    named = dict(zip(lane.algorithm.sequences, workers, strict=True))
    w, w_md = named["w"], lane.algorithm.query(workers, lane.hp)
    w_ag = named.get("w_ag", w)
    at_mean = w.mean(axis=0), best.w, mu
    # FedAc-I's discrepancy is a mean product of distances to the average.
    c = as_fedac(lane.hp).gamma * mu
    mixed = (_from_mean(w) + c * _from_mean(w_ag)) / (1 + c)
    # FedAc-II's is how far averaging is from commuting with the gradient.
    mean_gradient = np.mean([F.gradient(point) for point in w_md], axis=0)
    return (
        psi(float(F.values(w_ag).mean()) - best.value, *at_mean),
        phi(F.value(w_ag.mean(axis=0)) - best.value, *at_mean),
        float((_norms(_from_mean(w_md)) * _norms(mixed)).mean()),
        float(np.sum((F.gradient(w_md.mean(axis=0)) - mean_gradient) ** 2)),
        float((_norms(_from_mean(w)) ** 4).mean()),
    )


def _from_mean(sequence: Array) -> Array:
    difference: Array = sequence - sequence.mean(axis=0)
    return difference


def _norms(vectors: Array) -> Array:
    norms: Array = np.linalg.norm(vectors, axis=1)
    return norms


class PotentialRecorder:
    """A callback of `simulate` that records Psi and Phi of algorithms with ``w_ag`` and ``w``.

    Parameters
    ----------
    objective : ConvexObjective
        The objective of the simulation.
    mu : float, optional
        Strong-convexity estimate. Default: the objective's own.

    Attributes
    ----------
    psi, phi : dict of lists
        The potential at every record, by index of the run in its result.

    Examples
    --------
    >>> from fedac import NoisyQuadratic, simulate
    >>> F = NoisyQuadratic([1.0, 0.5], sigma=0.1)
    >>> potentials = PotentialRecorder(F)
    >>> how = dict(M=4, K=2, T=8, eta=0.5, engine="reference", callbacks=[potentials])
    >>> result = simulate(F, "fedac-i", **how)
    >>> len(potentials.psi[0]) == len(result.runs[0].steps)
    True
    """

    def __init__(self, objective: ConvexObjective, *, mu: float | None = None) -> None:
        self.optimum = optimum(objective)
        self.mu = objective.strong_convexity if mu is None else mu
        self.psi: dict[int, list[float]] = defaultdict(list)
        self.phi: dict[int, list[float]] = defaultdict(list)

    def __call__(self, record: Record) -> None:
        """Record both potentials, if the algorithm keeps both sequences."""
        if "w_ag" not in record.sequences:
            return
        above, w = record.loss - self.optimum.value, record.state[record.sequences.index("w")]
        self.psi[record.run].append(psi(above, w, self.optimum.w, self.mu))
        self.phi[record.run].append(phi(above, w, self.optimum.w, self.mu))
