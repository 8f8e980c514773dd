# SPDX-License-Identifier: Apache-2.0
"""The constants that the planner estimates."""

import math

import numpy as np
import pytest

from fedac.errors import InputError
from fedac.objectives import LeastSquares, LogisticRegression, NoisyQuadratic, optimum
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
    # Of d = 2 Gaussian numbers, E ||x||^4 = (1 + 2/d) (E ||x||^2)^2.
    assert constants.sigma4 == pytest.approx(0.3 * 2**0.25)
    assert constants.start == pytest.approx(1.0)


def test_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4))
    F = LogisticRegression(X, np.where(rng.random(50) < 0.5, -1.0, 1.0), l2=0.1)
    constants, best = estimate(F), optimum(F)
    w_0 = np.random.RandomState(1).randn(4)
    assert pytest.approx(math.dist(w_0, best.w)) == constants.D0
    assert constants.sigma**2 == pytest.approx(max(F.noise(w_0), F.noise(best.w)))
    fourth = max(F.fourth_moment(w_0), F.fourth_moment(best.w))
    assert constants.sigma4**4 == pytest.approx(fourth)
    assert constants.sigma4 > constants.sigma
    assert constants.how["sigma"].startswith("measured: ")
    assert constants.how["sigma4"].startswith("measured: ")
    assert constants.Psi0 >= F.value(w_0) - best.value
    assert constants.Psi0 <= constants.L * constants.D0**2


def test_the_noise_of_logistic_regression_can_be_bounded() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 4))
    F = LogisticRegression(X, np.where(rng.random(50) < 0.5, -1.0, 1.0), l2=0.1)
    measured, bounded = estimate(F), estimate(F, bounded=True)
    squares = (X**2).sum(axis=1)
    assert bounded.sigma**2 == pytest.approx(squares.mean())
    assert bounded.sigma4**4 == pytest.approx(8 * (squares**2).mean())
    assert bounded.sigma > measured.sigma
    assert bounded.sigma4 > measured.sigma4
    assert bounded.how["sigma"].startswith("bounded at every w: ")
    assert bounded.how["L"] == measured.how["L"]


def test_noise_without_a_bound_is_refused() -> None:
    F = LeastSquares([[1.0], [2.0]], [1.0, -1.0], l2=0.1)
    with pytest.raises(InputError, match="the noise of LeastSquares has no known bound"):
        estimate(F, bounded=True)


def test_the_start_is_at_most_L_D0_squared_over_2() -> None:
    assert Constants(L=3.0, mu=0.5, sigma=1.0, D0=2.0).start == 6.0
    # ... or what the potentials say: 4 - 1/2 2^2/2 and 4 - 1/2 2^2/6
    assert Constants(L=3.0, mu=0.5, sigma=1.0, D0=2.0, Psi0=4.0, Phi0=4.0).start == 3.0


def test_what_was_not_given_says_so() -> None:
    constants = Constants(L=3.0, mu=0.5, sigma=1.0, D0=2.0)
    assert constants.how["L"] == "given"
    assert constants.sigma4 == 1.0
    for letter in ("sigma4", "Psi0", "Phi0"):
        assert constants.how[letter].startswith("not given: ")
    assert "mu/2 D0^2" in constants.how["Psi0"]
    assert "mu/6 D0^2" in constants.how["Phi0"]


def test_a_fourth_moment_is_not_below_the_second() -> None:
    with pytest.raises(InputError, match=r"sigma4 must be at least sigma=1, got 0\.5"):
        Constants(L=1.0, mu=0.1, sigma=1.0, D0=1.0, sigma4=0.5)


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
