# SPDX-License-Identifier: Apache-2.0
import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.algorithms.hyperparameters import (
    as_fedac,
    fedac_i,
    fedac_ii,
    fedavg,
    fedavg_weighted,
    vanilla,
)
from fedac.errors import InputError

ALL = [fedac_i, fedac_ii, vanilla, fedavg, fedavg_weighted]

etas = st.floats(1e-6, 1e3)
products = st.floats(1e-6, 0.9)  # eta * mu
intervals = st.integers(1, 10**6)


@pytest.mark.parametrize(
    ("couple", "eta", "mu", "K", "expected"),
    [
        # sqrt((1/4)/(1/2 * 2)) = 1/2; 1/(1/2 * 1/2) = 4
        (fedac_i, 1 / 4, 1 / 2, 2, {"gamma": 1 / 2, "alpha": 4, "beta": 5}),
        # sqrt((1/2)/8) = 1/4 is below eta = 1/2
        (fedac_i, 1 / 2, 1, 8, {"gamma": 1 / 2, "alpha": 2, "beta": 3}),
        # sqrt((2/3)/(1/3 * 2)) = 1; 9/2 - 1/2 = 4; (32 - 1)/3
        (fedac_ii, 2 / 3, 1 / 3, 2, {"gamma": 1, "alpha": 4, "beta": 31 / 3}),
        # sqrt(3/10) = 0.548 is below eta = 3/5; 5/2 - 1/2 = 2; (8 - 1)/1
        (fedac_ii, 3 / 5, 1, 2, {"gamma": 3 / 5, "alpha": 2, "beta": 7}),
        # sqrt((1/4)/(1/16)) = 2; 1/(2/16) = 8
        (vanilla, 1 / 4, 1 / 16, 1000, {"gamma": 2, "alpha": 8, "beta": 9}),
        (fedavg, 1 / 4, 1 / 16, 1000, {}),
        # 1 - (1/2 * 1/2)/2 = 7/8
        (fedavg_weighted, 1 / 2, 1 / 2, 1000, {"rho": 7 / 8}),
    ],
)
def test_numbers_by_hand(couple, eta, mu, K, expected) -> None:
    hp = couple(eta=eta, mu=mu, K=K)
    assert dataclasses.asdict(hp) == pytest.approx({"eta": eta} | expected, rel=1e-14)


def test_fedavg_is_fedac_with_one_step_size_and_no_coupling() -> None:
    hp = as_fedac(fedavg_weighted(eta=0.25, mu=1.0))
    assert dataclasses.asdict(hp) == {"eta": 0.25, "gamma": 0.25, "alpha": 1.0, "beta": 1.0}
    own = fedac_i(eta=0.25, mu=0.5, K=2)
    assert as_fedac(own) is own


@pytest.mark.parametrize("couple", ALL)
def test_eta_and_mu_must_be_positive_and_finite(couple) -> None:
    for value in (0.0, -1.0, math.nan, math.inf, "0.1", None):
        with pytest.raises(InputError, match=r"eta must be a finite number above 0, got"):
            couple(eta=value, mu=1.0, K=1)
        if couple is not fedavg:
            with pytest.raises(InputError, match=r"mu must be a finite number above 0, got"):
                couple(eta=0.1, mu=value, K=1)


@pytest.mark.parametrize("couple", [fedac_i, fedac_ii])
def test_K_and_the_ratio_of_eta_and_mu_have_bounds(couple) -> None:
    for K in (0, -3):
        with pytest.raises(InputError, match=rf"K must be at least 1, got {K}"):
            couple(eta=0.1, mu=1.0, K=K)
    with pytest.raises(InputError, match=r"eta=1e\+200 is too large for mu=1e-200"):
        couple(eta=1e200, mu=1e-200, K=1)


def test_numpy_numbers_are_numbers() -> None:
    for mu in (np.float32(0.5), np.int64(1)):
        assert fedac_i(eta=0.25, mu=mu, K=2) == fedac_i(eta=0.25, mu=float(mu), K=2)


@pytest.mark.parametrize("eta", [0.25, 0.3, 4.0])
def test_fedac_ii_refuses_alpha_up_to_one_and_says_what_is_allowed(eta: float) -> None:
    # mu = 4: gamma mu < 1 exactly where eta < 1/4
    with pytest.raises(
        InputError, match=r"alpha > 1.*gives alpha=.*Use eta < 1/mu = 0\.25$"
    ) as caught:
        fedac_ii(eta=eta, mu=4.0, K=1)
    assert f"eta={eta:g}" in str(caught.value)
    assert fedac_ii(eta=0.2499, mu=4.0, K=1).alpha > 1


@pytest.mark.parametrize("eta", [0.5, 0.6])
def test_weighted_average_needs_eta_below_two_over_mu(eta: float) -> None:
    with pytest.raises(InputError, match=rf"needs eta < 2/mu = 0\.5, got eta={eta:g}"):
        fedavg_weighted(eta=eta, mu=4.0)
    assert fedavg_weighted(eta=0.49, mu=4.0).rho > 0


@pytest.mark.parametrize("hp", [fedac_i(eta=0.1, mu=1.0, K=2), fedavg_weighted(eta=0.1, mu=1.0)])
def test_hyperparameters_are_checked_where_they_are_built(hp) -> None:
    for field in dataclasses.fields(hp):
        with pytest.raises(InputError, match=rf"{field.name} must be"):
            dataclasses.replace(hp, **{field.name: 0.0})
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(hp, field.name, 1.0)


@settings(deadline=None)
@given(eta=etas, product=products, K=intervals)
def test_gamma_lies_between_eta_and_that_of_full_acceleration(eta, product, K) -> None:
    mu = product / eta
    for couple in (fedac_i, fedac_ii):
        gamma = couple(eta=eta, mu=mu, K=K).gamma
        assert eta <= gamma <= vanilla(eta=eta, mu=mu).gamma * (1 + 1e-15)


@settings(deadline=None)
@given(eta=etas, product=products)
def test_fedac_i_that_synchronizes_at_every_step_is_vanilla(eta, product) -> None:
    assert fedac_i(eta=eta, mu=product / eta, K=1) == vanilla(eta=eta, mu=product / eta)


@settings(deadline=None)
@given(eta=etas, product=products, K=intervals)
def test_gamma_falls_and_alpha_grows_with_K(eta, product, K) -> None:
    for couple in (fedac_i, fedac_ii):
        near = couple(eta=eta, mu=product / eta, K=K)
        far = couple(eta=eta, mu=product / eta, K=2 * K)
        assert far.gamma <= near.gamma
        assert far.alpha >= near.alpha
        assert near.beta > near.alpha > 1


@settings(deadline=None)
@given(eta=etas, product=products, K=intervals, power=st.integers(-20, 20))
def test_couplings_have_the_right_units(eta, product, K, power) -> None:
    # eta and gamma are 1/curvatures, mu is a curvature, alpha, beta and rho are pure numbers.
    scale = 2.0**power
    mu = product / eta
    for couple in ALL:
        one = couple(eta=eta, mu=mu, K=K)
        other = couple(eta=eta * scale, mu=mu / scale, K=K)
        scaled = {
            name: getattr(one, name) * scale for name in ("eta", "gamma") if hasattr(one, name)
        }
        assert other == dataclasses.replace(one, **scaled)


@settings(deadline=None)
@given(eta=etas, K=st.integers(3, 10**6))
def test_long_intervals_leave_no_acceleration(eta, K) -> None:
    # eta mu = 1/2, so from K = 2 on sqrt(eta/(mu K)) is at most eta.
    assert fedac_i(eta=eta, mu=0.5 / eta, K=K).gamma == eta
