"""Potentials and discrepancies at every step, also between synchronizations.

At a synchronization all workers agree, and `recorders.PotentialRecorder` records the potentials
there. In between, every worker's state is needed, so a trace runs the reference engine, which
holds them all (float64, M x d numbers per sequence).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedac.algorithms import Algorithm
from fedac.algorithms import get as get_algorithm
from fedac.algorithms.couplings import as_fedac
from fedac.arrays import Array
from fedac.errors import InputError
from fedac.objectives import Objective, optimum
from fedac.require import require_count, require_positive
from fedac.simulation.inputs import require_seed, start_point
from fedac.simulation.problem import ArrayState, Lane
from fedac.simulation.reference import run_round
from fedac.simulation.schedule import Schedule
from fedac.theory.potentials import phi, psi


@dataclass(frozen=True, slots=True)
class Trace:
    """The quantities of the proofs, by step.

    Attributes
    ----------
    steps : array of int, shape (n,)
        0 to T.
    psi, phi : array, shape (n,)
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
    objective: Objective,
    algorithm: str | Algorithm,
    *,
    M: int,
    K: int,
    T: int,
    eta: float,
    mu: float | None = None,
    start: npt.ArrayLike | None = None,
    seed: int = 0,
) -> Trace:
    """Run one algorithm and return its potentials and discrepancies at every step.

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
    lane = _lane(objective, algorithm, eta=eta, mu=mu, K=K)
    tracer = _Tracer(objective, lane, objective.strong_convexity if mu is None else mu)
    state: ArrayState = lane.algorithm.start(start_point(objective, start))
    tracer.add(0, _as_one_worker(state))
    for t, gap in Schedule.every(K, steps=T):

        def on_step(step: int, workers: ArrayState, last: int = t + gap) -> None:
            if step < last:
                tracer.add(step, workers)

        state = run_round(objective, lane, state, t=t, gap=gap, M=M, seed=seed, on_step=on_step)
        tracer.add(t + gap, _as_one_worker(state))
    return tracer.trace()


def _lane(
    objective: Objective, algorithm: str | Algorithm, *, eta: float, mu: float | None, K: int
) -> Lane:
    chosen = get_algorithm(algorithm)
    if chosen.minibatch:
        raise InputError(f"'{chosen.name}' takes one step per round, so its workers never differ")
    mu = objective.strong_convexity if mu is None else require_positive("mu", mu)
    return Lane(chosen, chosen.couple(eta=eta, mu=mu, K=K))


def _as_one_worker(state: ArrayState) -> ArrayState:
    return tuple(sequence[None, :] for sequence in state)


@dataclass
class _Tracer:
    """Collects the rows of a trace from the states of all workers."""

    objective: Objective
    lane: Lane
    mu: float
    rows: list[tuple[int, float, float, float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.best = optimum(self.objective)

    def add(self, step: int, workers: ArrayState) -> None:
        """Record the states of all workers, arrays of shape (M, d), after a step."""
        F, best = self.objective, self.best
        named = dict(zip(self.lane.algorithm.sequences, workers, strict=True))
        w, w_md = named["w"], self.lane.query(workers)
        w_ag = named.get("w_ag", w)
        mean = w.mean(axis=0)
        at_mean = {"w": mean, "w_star": best.w, "mu": self.mu}
        decentralized = float(F.values(w_ag).mean()) - best.value
        centralized = F.value(w_ag.mean(axis=0)) - best.value
        self.rows.append(
            (
                step,
                psi(suboptimality=decentralized, **at_mean),
                phi(suboptimality=centralized, **at_mean),
                self._product(w, w_ag, w_md),
                self._gradients(w_md),
                float((_norms(w - mean) ** 4).mean()),
            )
        )

    def _product(self, w: Array, w_ag: Array, w_md: Array) -> float:
        """Return FedAc-I's discrepancy: a mean product of distances to the average."""
        c = as_fedac(self.lane.hp).gamma * self.mu
        mixed = (_apart(w) + c * _apart(w_ag)) / (1 + c)
        return float((_norms(_apart(w_md)) * _norms(mixed)).mean())

    def _gradients(self, w_md: Array) -> float:
        """Return FedAc-II's discrepancy: how far averaging is from commuting with the gradient."""
        F = self.objective
        mean = np.mean([F.gradient(point) for point in w_md], axis=0)
        return float(np.sum((F.gradient(w_md.mean(axis=0)) - mean) ** 2))

    def trace(self) -> Trace:
        """Return the recorded rows as arrays."""
        steps, psi, phi, *overheads = map(np.array, zip(*self.rows, strict=True))
        names = ("fedac-i", "fedac-ii", "fedavg")
        return Trace(steps, psi, phi, dict(zip(names, overheads, strict=True)))


def _apart(sequence: Array) -> Array:
    """Return each worker's difference from the mean."""
    apart: Array = sequence - sequence.mean(axis=0)
    return apart


def _norms(vectors: Array) -> Array:
    norms: Array = np.linalg.norm(vectors, axis=1)
    return norms
