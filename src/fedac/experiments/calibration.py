"""The planner's second opinion: short simulations on the data instead of worst-case bounds.

There are three stages. Probe: run every algorithm with several K and step sizes. Fit: find the
constants with which the terms of the any-step-size lemmas explain the probes, and use them to
predict which K are worth trying. Measure: run all algorithms at these K, at full size if that is
affordable, and tune their step sizes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from fedac.arrays import Array
from fedac.errors import InputError, StepSizeWarning
from fedac.objectives import Objective
from fedac.simulation import Result, simulate
from fedac.simulation.result import Edge
from fedac.theory import lemmas
from fedac.theory.constants import Constants
from fedac.theory.planner import SLACK, choose, divisors
from fedac.theory.terms import Bound

LEMMAS: dict[str, Callable[..., Bound]] = {
    "fedac-i": lemmas.fedac_i_general_eta,
    "fedac-ii": lemmas.fedac_ii_a1_general_eta,
    "fedavg": lemmas.fedavg_a1_general_eta,
    "mb-sgd": lemmas.mb_sgd_general_eta,
    "mb-ac-sgd": lemmas.mb_ac_sgd_general_eta,
}
# In units of 1/L, where the theory ends; larger step sizes often do better.
ETAS = tuple(2.0**power for power in range(-8, 4))
PROBED_K = 5
# Gradients to spend on each stage: a few seconds on two cores.
PROBE_QUERIES = 4e8
MEASURE_QUERIES = 2.5e9
FEWEST_WORKERS = 16
# With a target instead of T: the steps of a probe, and the most steps to consider.
PROBE_STEPS = 1024
MOST_MEASURED_STEPS = 2**17


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants with which a lemma's bound fits an algorithm's runs.

    Attributes
    ----------
    optimization, speed, variance, discrepancy : float
        Multipliers of the lemma's terms; `speed` multiplies the exponent of the first.
    spread : float
        Root mean square of log2(measured/fitted) over the probes.

    Examples
    --------
    >>> bound = Bound(optimization=0.25, variance=0.5, discrepancy=2.0)
    >>> fit = Fit(optimization=1.0, speed=2.0, variance=0.1, discrepancy=0.01, spread=0.0)
    >>> fit(bound, start=1.0).terms
    {'optimization': 0.0625, 'variance': 0.05, 'accelerated_variance': 0.0, 'discrepancy': 0.02}
    """

    optimization: float
    speed: float
    variance: float
    discrepancy: float
    spread: float

    def __call__(self, bound: Bound, *, start: float) -> Bound:
        """Return the bound with these constants; `start` is the potential at the start."""
        return Bound(
            optimization=self.optimization * start * (bound.optimization / start) ** self.speed,
            variance=self.variance * (bound.variance + bound.accelerated_variance),
            discrepancy=self.discrepancy * bound.discrepancy,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What an algorithm reached at one K with its best step size.

    Attributes
    ----------
    M, T : int
        As simulated; M is reduced where the full number would take too long.
    edge : "smallest", "largest" or None
        Whether `eta` is at an edge of the step sizes tried.
    suboptimality : float
        The smallest recorded after at least one step.
    fitted : Bound
        What the fit predicted for this K at full size, with the best step size.
    fit : Fit
        The algorithm's constants.
    """

    algorithm: str
    M: int
    K: int
    T: int
    rounds: int
    eta: float
    edge: Edge | None
    suboptimality: float
    megabytes_per_worker: float
    fitted: Bound
    fit: Fit


@dataclass(frozen=True, slots=True)
class Calibration:
    """All measurements, and the recommended one."""

    measured: tuple[Measured, ...]
    recommended: Measured


def calibrate(
    objective: Objective,
    constants: Constants,
    *,
    M: int,
    T: int | None = None,
    target: float | None = None,
    round_cost: float = 1000.0,
    seed: int = 1,
    on_progress: Callable[[int], object] = lambda queries: None,
) -> Calibration:
    """Measure which algorithm, K and step size suit M workers on an objective.

    Like `fedac.theory.planner.plan`, for T steps or for a target at the least cost.

    Examples
    --------
    >>> from fedac.data import load
    >>> from fedac.objectives import LogisticRegression
    >>> from fedac.theory.constants import estimate
    >>> data = load("synthetic")
    >>> F = LogisticRegression(data.X, data.y, l2=1e-2)
    >>> found = calibrate(F, estimate(F), M=64, T=256)
    >>> found.recommended.T
    256
    """

    def run(M: int, K: int, T: int) -> Result:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepSizeWarning)
            return simulate(
                objective, list(LEMMAS), M=M, K=K, T=T, eta=_etas(constants), seed=seed,
                on_progress=on_progress,
            )  # fmt: skip

    def expected(name: str, K: int, T: int) -> Bound:
        return _best_fitted(name, fits[name], constants, M, K, T)

    def candidate(name: str) -> tuple[int, int] | None:
        return choose(
            lambda K, T: expected(name, K, T).total,
            T=T, target=target, round_cost=round_cost, most_steps=MOST_MEASURED_STEPS,
        )  # fmt: skip

    def measure(name: str, result: Result) -> list[Measured]:
        schedule = result.schedule
        return _measured(name, result, expected(name, schedule.K, schedule.T), fits[name])

    probe_M, probe_T = _affordable(M, T or PROBE_STEPS, PROBED_K, PROBE_QUERIES)
    probes = [run(probe_M, K, probe_T) for K in _spread(divisors(probe_T)[:-1] or [1], PROBED_K)]
    fits = {name: _fit(name, probes, constants) for name in LEMMAS}
    candidates = {found for name in LEMMAS if (found := candidate(name)) is not None}
    if not candidates:
        raise InputError(
            f"no algorithm is expected to reach {target:g} within {MOST_MEASURED_STEPS} steps; "
            "use a larger target or more workers"
        )
    measured = []
    for K, steps in sorted(candidates):
        workers, _ = _affordable(M, steps, len(candidates), MEASURE_QUERIES, keep_T=True)
        result = run(workers, K, steps)
        for name in LEMMAS:
            measured += measure(name, result)
    if not measured:
        raise InputError("every run diverged; use a larger l2 or scale the data")
    best = _recommended(measured, target, round_cost)
    while target is not None and best.suboptimality <= target and best.rounds > 1:
        # The fit may have expected too many rounds: half of them are often enough.
        shorter = measure(best.algorithm, run(best.M, best.K, best.K * (best.rounds // 2)))
        if not shorter or shorter[0].suboptimality > target:
            break
        best = shorter[0]
        measured.append(best)
    return Calibration(tuple(measured), best)


def _recommended(measured: Sequence[Measured], target: float | None, round_cost: float) -> Measured:
    if target is None:
        # The fewest rounds within the slack of the best; among those, the best algorithm.
        enough = SLACK * min(m.suboptimality for m in measured)
        good = (m for m in measured if m.suboptimality <= enough)
        return min(good, key=lambda m: (m.rounds, m.suboptimality))
    reached = [m for m in measured if m.suboptimality <= target]
    if reached:
        return min(reached, key=lambda m: (m.rounds * (round_cost + m.K), m.suboptimality))
    return min(measured, key=lambda m: m.suboptimality)


def _etas(constants: Constants) -> list[float]:
    # FedAc-II is undefined at 1/mu.
    return [eta / constants.L for eta in ETAS if eta * constants.mu < constants.L]


def _covered(eta: float, constants: Constants) -> bool:
    """Return whether the theory covers a step size."""
    return eta * constants.L <= 1 + 1e-12


def _affordable(
    M: int, T: int, simulations: int, queries: float, *, keep_T: bool = False
) -> tuple[int, int]:
    """Halve the workers, then the steps, until all simulations together are affordable."""
    each = queries / (simulations * len(LEMMAS) * len(ETAS))
    while each < M * T and M >= 2 * FEWEST_WORKERS:
        M //= 2
    while each < M * T and T % 2 == 0 and not keep_T:
        T //= 2
    return M, T


def _spread(candidates: Sequence[int], count: int) -> list[int]:
    """Return up to `count` evenly spaced candidates, including the first and the last."""
    places = np.unique(np.linspace(0, len(candidates) - 1, count).round().astype(int))
    return [candidates[place] for place in places]


def _lemma(
    name: str, constants: Constants, *, eta: float, M: int, K: int, T: int
) -> tuple[Bound, float]:
    """Return an algorithm's bound for a step size, and the potential at the start."""
    start = {"fedac-i": "Psi0", "fedac-ii": "Phi0"}.get(name, "D0")
    letters = {letter: constants.letters[letter] for letter in ("L", "mu", "sigma", start)}
    bound = LEMMAS[name](eta=eta, M=M, K=K, T=T, **letters)
    return bound, constants.L * constants.D0**2 if start == "D0" else letters[start]


def _fit(name: str, probes: Sequence[Result], constants: Constants) -> Fit:
    """Find the multipliers that explain an algorithm's probes, in logarithms."""
    cases, logs = [], []
    for result in probes:
        of = {"M": result.M, "K": result.schedule.K, "T": result.schedule.T}
        for run in result.runs:
            gap = run.trained_loss - result.optimum.value  # NaN if the run diverged
            if run.algorithm == name and gap > 0 and _covered(run.eta, constants):
                cases.append(_lemma(name, constants, eta=run.eta, **of))
                logs.append(math.log(gap))

    def fit(x: Array, spread: float = 0.0) -> Fit:
        optimization, speed, variance, discrepancy = np.exp(x).tolist()
        return Fit(optimization, speed, variance, discrepancy, spread)

    def residuals(x: Array) -> Array:
        tried = fit(x)
        totals = [tried(bound, start=start).total for bound, start in cases]
        errors: Array = np.log(np.maximum(totals, 1e-300)) - np.array(logs)
        return errors

    guess, low = np.log([1.0, 1.0, 0.1, 0.01]), np.log([1e-6, 0.1, 1e-9, 1e-12])
    found = least_squares(residuals, guess, bounds=(low, np.log([1e3] * 4)), loss="soft_l1")
    spread = float(np.sqrt(np.mean(residuals(found.x) ** 2)) / math.log(2))
    return fit(found.x, spread)


def _best_fitted(name: str, fit: Fit, constants: Constants, M: int, K: int, T: int) -> Bound:
    """Return what a fit predicts for the best step size that the theory covers."""
    covered = [eta for eta in _etas(constants) if _covered(eta, constants)]
    lemma = [_lemma(name, constants, eta=eta, M=M, K=K, T=T) for eta in covered]
    return min((fit(bound, start=start) for bound, start in lemma), key=lambda b: b.total)


def _measured(name: str, result: Result, fitted: Bound, fit: Fit) -> list[Measured]:
    """Return an algorithm's best run; nothing if all diverged."""
    own = replace(result, runs=tuple(run for run in result.runs if run.algorithm == name))
    best = own.best
    if best is None:
        return []
    found = Measured(
        algorithm=name,
        M=result.M,
        K=result.schedule.K,
        T=result.schedule.T,
        rounds=result.schedule.rounds,
        eta=best.eta,
        edge=own.edge,
        suboptimality=best.trained_loss - result.optimum.value,
        megabytes_per_worker=best.megabytes_per_worker,
        fitted=fitted,
        fit=fit,
    )
    return [found]
