"""The planner's second opinion: short simulations on the data instead of worst-case constants.

In three steps. Probes: every algorithm with several K and step sizes. Fit: the terms of the
any-step-size lemmas get the constants that explain the probes best, and say which K is worth
trying at the real size. Measurement: all algorithms at these K, at the real size if it can be
afforded, tuned over step sizes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from fedac.arrays import Array
from fedac.errors import InputError, StepSizeWarning
from fedac.objectives import Objective
from fedac.simulation import Result, simulate
from fedac.theory import lemmas
from fedac.theory.terms import Bound
from fedac.theory.constants import Constants
from fedac.theory.planner import SLACK, choose, divisors

LEMMAS: dict[str, Callable[..., Bound]] = {
    "fedac-i": lemmas.fedac_i_general_eta,
    "fedac-ii": lemmas.fedac_ii_a1_general_eta,
    "fedavg": lemmas.fedavg_a1_general_eta,
    "mb-sgd": lemmas.mb_sgd_general_eta,
    "mb-ac-sgd": lemmas.mb_ac_sgd_general_eta,
}
# Step sizes around 1/L: the theory ends there, but good runs are found beyond.
ETAS = tuple(2.0**power for power in range(-8, 4))
PROBED_K = 5
# Gradients to spend on each step: a few seconds each on two cores.
PROBE_QUERIES = 4e8
MEASURE_QUERIES = 2.5e9
FEWEST_WORKERS = 16
# Steps of a probe where the number of steps is still to be found, and the most to try then.
PROBE_STEPS = 1024
MOST_MEASURED_STEPS = 2**17


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A lemma's bound with constants that fit an algorithm's runs.

    Attributes
    ----------
    optimization, speed, variance, discrepancy : float
        Multipliers of the lemma's terms; `speed` of the exponent in the first.
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
        """Return a bound with these constants; `start` is the potential it decays from."""
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
        As simulated; M is smaller than asked for where that would take too long.
    suboptimality : float
        The best recorded of the run, as in the paper's figures.
    fitted : Bound
        What the fit predicted for this K at the real size, with its best step size.
    fit : Fit
        The algorithm's constants.
    """

    algorithm: str
    M: int
    K: int
    T: int
    rounds: int
    eta: float
    suboptimality: float
    megabytes_per_worker: float
    fitted: Bound
    fit: Fit


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measurements, and the one that is recommended."""

    measured: tuple[Measured, ...]
    recommended: Measured

    def best(self, algorithm: str) -> Measured | None:
        """Return an algorithm's own choice: its fewest rounds within the slack of its best."""
        mine = [m for m in self.measured if m.algorithm == algorithm]
        return _fewest_rounds(mine) if mine else None


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

    As in `fedac.theory.planner.plan`, for T steps or for a target at the least cost.

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

    probe_M, probe_T = _affordable(M, T or PROBE_STEPS, PROBED_K, PROBE_QUERIES)
    probes = [run(probe_M, K, probe_T) for K in _spread(divisors(probe_T)[:-1] or [1], PROBED_K)]
    fits = {name: _fit(name, probes, constants) for name in LEMMAS}
    ways = set()
    for name, fit in fits.items():

        def expected(K: int, T: int, name: str = name, fit: Fit = fit) -> float:
            return _best_fitted(name, fit, constants, M, K, T).total

        way = choose(
            expected, T=T, target=target, round_cost=round_cost, most_steps=MOST_MEASURED_STEPS
        )
        if way is not None:
            ways.add(way)
    if not ways:
        raise InputError(
            f"no algorithm is expected to reach {target:g} within {MOST_MEASURED_STEPS} steps; "
            "use a larger target or more workers"
        )
    measured = []
    for K, steps in sorted(ways):
        workers, _ = _affordable(M, steps, len(ways), MEASURE_QUERIES, keep_T=True)
        result = run(workers, K, steps)
        for name, fit in fits.items():
            fitted = _best_fitted(name, fit, constants, M, K, steps)
            measured += _best_runs(result, name, fitted, fit)
    best = _recommended(measured, target, round_cost)
    while target is not None and best.suboptimality <= target and best.rounds > 1:
        # What the fit expected may have been too much: half the rounds are often enough.
        result = run(best.M, best.K, best.K * (best.rounds // 2))
        fitted = _best_fitted(
            best.algorithm, best.fit, constants, M, best.K, best.K * (best.rounds // 2)
        )
        shorter = _best_runs(result, best.algorithm, fitted, best.fit)
        if not shorter or shorter[0].suboptimality > target:
            break
        best = shorter[0]
        measured.append(best)
    return Calibration(tuple(measured), best)


def _recommended(measured: Sequence[Measured], target: float | None, round_cost: float) -> Measured:
    if target is None:
        # Of equally few rounds, the algorithm that gets furthest.
        few = _fewest_rounds(measured).K
        return min((m for m in measured if few == m.K), key=lambda m: m.suboptimality)
    reached = [m for m in measured if m.suboptimality <= target]
    if reached:
        return min(reached, key=lambda m: (m.rounds * (round_cost + m.K), m.suboptimality))
    return min(measured, key=lambda m: m.suboptimality)


def _etas(constants: Constants) -> list[float]:
    # FedAc-II has no meaning at 1/mu.
    return [eta / constants.L for eta in ETAS if eta * constants.mu < constants.L]


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
    """Return at most `count` of the candidates, evenly apart, the first and the last among them."""
    places = np.unique(np.linspace(0, len(candidates) - 1, count).round().astype(int))
    return [candidates[place] for place in places]


def _lemma(
    name: str, constants: Constants, *, eta: float, M: int, K: int, T: int
) -> tuple[Bound, float]:
    """Return an algorithm's bound for any step size, and the potential it decays from."""
    start, value = {
        "fedac-i": ("Psi0", constants.Psi0),
        "fedac-ii": ("Phi0", constants.Phi0),
    }.get(name, ("D0", constants.D0))
    bound = LEMMAS[name](
        eta=eta, L=constants.L, mu=constants.mu, sigma=constants.sigma, M=M, K=K, T=T,
        **{start: value},
    )  # fmt: skip
    return bound, value if start != "D0" else constants.L * value**2


def _fit(name: str, probes: Sequence[Result], constants: Constants) -> Fit:
    """Find the multipliers that explain an algorithm's probes, in logarithms."""
    cases: list[tuple[Bound, float]] = []
    logs: list[float] = []
    for result in probes:
        f_star = result.optimum.value
        for run in result.runs:
            gap = run.best_loss - f_star
            usable = run.status == "ok" and gap > 0 and run.eta * constants.L <= 1 + 1e-12
            if run.algorithm == name and usable:
                schedule = result.schedule
                cases.append(
                    _lemma(name, constants, eta=run.eta, M=result.M, K=schedule.K, T=schedule.T)
                )
                logs.append(math.log(gap))

    def fit(x: Array, spread: float = 0.0) -> Fit:
        a, speed, v, c = np.exp(x).tolist()
        return Fit(optimization=a, speed=speed, variance=v, discrepancy=c, spread=spread)

    def residuals(x: Array) -> Array:
        constants_now = fit(x)
        totals = [constants_now(bound, start=start).total for bound, start in cases]
        errors: Array = np.log(np.maximum(totals, 1e-300)) - np.array(logs)
        return errors

    guess = np.log([1.0, 1.0, 0.1, 0.01])
    found = least_squares(
        residuals, guess, bounds=(np.log([1e-6, 0.1, 1e-9, 1e-12]), np.log([1e3, 1e3, 1e3, 1e3])),
        loss="soft_l1",
    )  # fmt: skip
    spread = float(np.sqrt(np.mean(residuals(found.x) ** 2)) / math.log(2))
    return fit(found.x, spread)


def _best_fitted(name: str, fit: Fit, constants: Constants, M: int, K: int, T: int) -> Bound:
    """Return what a fit predicts for the best step size that the theory covers."""
    covered = [eta for eta in _etas(constants) if eta * constants.L <= 1 + 1e-12]
    lemma = [_lemma(name, constants, eta=eta, M=M, K=K, T=T) for eta in covered]
    return min((fit(bound, start=start) for bound, start in lemma), key=lambda b: b.total)


def _best_runs(result: Result, name: str, fitted: Bound, fit: Fit) -> list[Measured]:
    """Return an algorithm's best run, or none if all have diverged."""
    runs = [run for run in result.runs if run.algorithm == name and run.status == "ok"]
    if not runs:
        return []
    best = min(runs, key=lambda run: run.best_loss)
    schedule = result.schedule
    found = Measured(
        algorithm=name,
        M=result.M,
        K=schedule.K,
        T=schedule.T,
        rounds=schedule.rounds,
        eta=best.eta,
        suboptimality=best.best_loss - result.optimum.value,
        megabytes_per_worker=best.megabytes_per_worker,
        fitted=fitted,
        fit=fit,
    )
    return [found]


def _fewest_rounds(measured: Sequence[Measured]) -> Measured:
    enough = SLACK * min(m.suboptimality for m in measured)
    good = (m for m in measured if m.suboptimality <= enough)
    return min(good, key=lambda m: (m.rounds, m.suboptimality))
