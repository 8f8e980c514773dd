# SPDX-License-Identifier: Apache-2.0
"""The bounds for averaged iterates of FedAvg and minibatch SGD, which docs/theory.md proves.

Plain NumPy with its own draws, typed from the statements; only the bounds come from the package.
Seeds are fixed, so nothing here fails by chance. In 2,000 settings of each test (`SETTINGS`) the
largest share of a bound is 0.39, with a standard error of 0.001.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from fedac.theory import theorem

Array = npt.NDArray[np.float64]

SETTINGS = 150
RUNS = 400  # of one setting, side by side
LABELS = {  # local steps, or minibatches; strongly convex, or not
    (True, True): "fedavg:a1",
    (True, False): "fedavg:a1:gcvx",
    (False, True): "mb-sgd",
    (False, False): "mb-sgd:gcvx",
}


@dataclass(frozen=True)
class Setting:
    """A problem, a method and its step size."""

    local: bool
    strong: bool
    curvatures: Array  # one per coordinate, from mu to L = 1
    start: Array
    sigma: float
    M: int
    K: int
    R: int
    eta: float

    @property
    def mu(self) -> float:
        return float(self.curvatures.min()) if self.strong else 0.0

    @property
    def weights(self) -> Array:
        """Weights (1 - eta mu)^-t of the iterates of all steps, or of all rounds."""
        steps = self.R * self.K if self.local else self.R
        weights = (1 - self.eta * self.mu) ** -np.arange(steps, dtype=float)
        return weights / weights.sum()

    @property
    def bound(self) -> float:
        """What the planner minimizes."""
        letters = {"L": 1.0, "sigma": self.sigma, "M": self.M, "K": self.K, "T": self.R * self.K}
        letters["D0"] = float(np.linalg.norm(self.start))
        if self.strong:
            letters["mu"] = self.mu
        return theorem(LABELS[self.local, self.strong]).at(self.eta, **letters).total

    @property
    def stated(self) -> float:
        """The statement of docs/theory.md, with K - 1 for its mean over a round."""
        T, s = self.R * self.K, self.sigma**2
        steps = T if self.local else self.R
        left = (1 - self.eta * self.mu) ** steps
        first = self.mu * left / (1 - left) if self.strong else 1 / (self.eta * steps)
        first *= float(self.start @ self.start)
        if not self.local:
            return first + self.eta * s / (self.M * self.K)
        drift = 1.5 * self.eta**2 * (self.K - 1) * s * (self.M - 1) / self.M
        return first + self.eta * s / self.M + drift


def settings(seed: int) -> list[Setting]:
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(SETTINGS):
        local, strong = rng.random(2) < (0.75, 0.5)
        least = 10 ** rng.uniform(-2, -0.2) if strong else 0.0
        curvatures = np.array([least, *rng.uniform(least, 1, rng.integers(3)), 1.0])
        # Half of the starts are along the weakest direction, where progress is slowest.
        start = (
            np.eye(len(curvatures))[0] if rng.random() < 0.5 else rng.normal(size=len(curvatures))
        )
        M, K, R = (int(2**power) for power in rng.integers(0, [5, 6, 5]))
        largest = 1 / 4 if local else 1 / 2
        eta = largest * (1.0 if rng.random() < 0.3 else 10 ** rng.uniform(-2, 0))
        sigma = 10 ** rng.uniform(-2, 1)
        drawn.append(
            Setting(bool(local), bool(strong), curvatures, start, sigma, M, K, R, float(eta))
        )
    return drawn


def exact(s: Setting) -> float:
    """Return E[F(average)] - F* on the quadratic with these curvatures.

    Averaging over workers commutes with its linear step, so only the averaged noise counts.
    """
    steps = len(s.weights)
    noise = s.sigma**2 / len(s.curvatures) / (s.M if s.local else s.M * s.K)
    total = 0.0
    for h, w_0 in zip(s.curvatures, s.start, strict=True):
        powers = (1 - s.eta * h) ** np.arange(steps)
        mean = s.weights @ powers * w_0
        # What one unit of noise in step i adds to the average, for every i.
        shares = [s.weights[i + 1 :] @ powers[: steps - 1 - i] for i in range(steps)]
        total += h / 2 * (mean**2 + noise * s.eta**2 * np.square(shares).sum())
    return total


def simulated(s: Setting, rng: np.random.Generator) -> tuple[float, float]:
    """Return mean and standard error of F(average) - F* where workers do drift apart.

    F is bent: its curvature in a coordinate is h on one side of the optimum and mu on the other, so
    the mean of the workers' gradients is not the gradient at their mean.
    """
    h, mu = s.curvatures, s.mu

    def slope(w: Array) -> Array:
        return np.where(w > 0, h, mu) * w

    def draws(*shape: int) -> Array:
        return s.sigma / np.sqrt(len(h)) * rng.choice([-1.0, 1.0], size=(*shape, RUNS, len(h)))

    average = np.zeros((RUNS, len(h)))
    workers = np.tile(s.start, (s.M, RUNS, 1))
    weights = iter(s.weights)
    for _ in range(s.R):
        if s.local:
            for _ in range(s.K):
                average += next(weights) * workers.mean(axis=0)
                workers = workers - s.eta * (slope(workers) + draws(s.M))
            workers[:] = workers.mean(axis=0)
        else:
            average += next(weights) * workers[0]
            noise = draws(s.M, s.K).mean(axis=(0, 1))
            workers = workers - s.eta * (slope(workers[0]) + noise)
    gaps = (np.where(average > 0, h, mu) * average**2 / 2).sum(axis=-1)
    return float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(RUNS))


@pytest.mark.slow
def test_exact_expectations_stay_below_the_bounds() -> None:
    for s in settings(seed=1):
        assert exact(s) <= s.bound <= s.stated * (1 + 1e-9), s


@pytest.mark.slow
def test_simulated_means_stay_below_the_bounds() -> None:
    rng = np.random.default_rng(2)
    for s in settings(seed=3):
        assert simulated(s, rng)[0] <= s.bound, s


def test_the_bounds_by_hand() -> None:
    # eta mu = 1/16; T = 4: q^4; eta sigma^2/M = 1/8; the drift of step t is 2 eta^2 sigma^2 3/8
    # times t mod 2, so 3/32 at t = 1 and 3, with weights q^2 and 1 of 1 + q + q^2 + q^3.
    q = 15 / 16
    letters = {"L": 2.0, "mu": 1 / 2, "sigma": 2.0, "M": 4, "K": 2, "T": 4, "D0": 3.0}
    fedavg = theorem("fedavg:a1").at(1 / 8, **letters)
    assert fedavg.optimization == pytest.approx(9 / 2 * q**4 / (1 - q**4))
    assert fedavg.variance == 1 / 8
    share = (q**2 + 1) / (q**3 + q**2 + q + 1)
    assert fedavg.discrepancy == pytest.approx(1.5 * 2 * 3 / 64 * share, rel=2e-4)
    # For convex F: D0^2/(eta T) = 18, and 1.5 L eta^2 (K - 1)/2 sigma^2 (M - 1)/M
    convex = theorem("fedavg:a1:gcvx").at(1 / 8, **letters)
    assert convex.optimization == 18
    assert convex.discrepancy == pytest.approx(1.5 * 2 / 64 / 2 * 4 * 3 / 4)
    # Minibatch SGD: R = 2; eta sigma^2/(M K) = 1/8
    minibatch = theorem("mb-sgd").at(1 / 4, **letters)
    assert minibatch.optimization == pytest.approx(9 / 2 * (7 / 8) ** 2 / (1 - (7 / 8) ** 2))
    assert (minibatch.variance, minibatch.discrepancy) == (1 / 8, 0)
    assert theorem("mb-sgd:gcvx").at(1 / 4, **letters).optimization == 18
