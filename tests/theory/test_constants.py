"""The constants that the planner estimates."""

import math

import numpy as np
import pytest

from fedac.errors import InputError
from fedac.objectives import LogisticRegression, NoisyQuadratic, optimum
from fedac.theory.constants import ESTIMATES, Constants, estimate


def test_a_quadratic_has_exact_constants() -> None:
    F = NoisyQuadratic([4.0, 0.5], optimum=[1.0, 1.0], sigma=0.3)
    constants = estimate(F, start=[1.0, 3.0])
    assert constants.L == 4.0
    assert constants.mu == 0.5
    assert constants.sigma == pytest.approx(0.3)
    assert pytest.approx(2.0) == constants.D0
    assert constants.Psi0 == pytest.approx(1.0 + 0.25 * 4)  # F - F* = 1/2 * 0.5 * 2^2
    assert constants.Phi0 == pytest.approx(1.0 + 0.5 / 6 * 4)
    assert constants.Q == 0.0


def test_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4))
    F = LogisticRegression(X, np.where(rng.random(50) < 0.5, -1.0, 1.0), l2=0.1)
    constants, best = estimate(F), optimum(F)
    w_0 = np.random.RandomState(1).randn(4)
    assert pytest.approx(math.dist(w_0, best.w)) == constants.D0
    assert constants.sigma**2 == pytest.approx(max(F.noise(w_0), F.noise(best.w)))
    assert constants.Psi0 >= F.value(w_0) - best.value
    assert constants.Psi0 <= constants.L * constants.D0**2


def test_potentials_default_to_an_upper_bound() -> None:
    assert Constants(L=3.0, mu=0.0, sigma=1.0, D0=2.0).Phi0 == 12.0


def test_every_letter_is_explained() -> None:
    known = Constants(L=1.0, mu=0.1, sigma=1.0, D0=1.0, Q=1.0).letters
    assert set(known) == set(ESTIMATES)
    assert "Q" not in Constants(L=1.0, mu=0.1, sigma=1.0, D0=1.0).letters


@pytest.mark.parametrize(
    ("wrong", "letter"),
    [({"L": 0.0}, "L"), ({"mu": -1.0}, "mu"), ({"sigma": math.nan}, "sigma"),
     ({"D0": 0.0}, "D0"), ({"Q": -1.0}, "Q")],
)  # fmt: skip
def test_bad_constants(wrong: dict, letter: str) -> None:
    with pytest.raises(InputError, match=f"{letter} must"):
        Constants(**({"L": 1.0, "mu": 0.1, "sigma": 1.0, "D0": 1.0} | wrong))
