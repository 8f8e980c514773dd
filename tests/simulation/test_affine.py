# SPDX-License-Identifier: Apache-2.0
"""The affine form of every algorithm, and the tables of a round against the plain recursion."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.algorithms import ALGORITHMS, FEDAVG, fedac
from fedac.algorithms.hyperparameters import (
    AveragedHyperparameters,
    FedAcHyperparameters,
    Hyperparameters,
)
from fedac.errors import InputError
from fedac.simulation.engines.linear.coefficients import Affine, affine_form, round_tables
from fedac.simulation.problem import Lane

# In the order of `sequences`: [w_ag, w] of FedAc, [w, p] of the weighted average. With FedAc's
# w_md = (1 - 1/beta) w_ag + 1/beta w the second row of A is
# [(1 - 1/beta)/alpha, 1 - 1/alpha + 1/(alpha beta)].
BY_HAND = {
    # gamma = 1/2, alpha = 4, beta = 5
    "fedac-i": (
        {"eta": 1 / 2, "mu": 1 / 2, "K": 4},
        [4 / 5, 1 / 5],
        [[4 / 5, 1 / 5], [1 / 5, 4 / 5]],
        [-1 / 2, -1 / 2],
    ),
    # gamma = 1, alpha = 4, beta = 31/3
    "fedac-ii": (
        {"eta": 2 / 3, "mu": 1 / 3, "K": 2},
        [28 / 31, 3 / 31],
        [[28 / 31, 3 / 31], [7 / 31, 24 / 31]],
        [-2 / 3, -1],
    ),
    # gamma = 2, alpha = 8, beta = 9
    "fedac-vanilla": (
        {"eta": 1 / 4, "mu": 1 / 16, "K": 7},
        [8 / 9, 1 / 9],
        [[8 / 9, 1 / 9], [1 / 9, 8 / 9]],
        [-1 / 4, -2],
    ),
    "mb-ac-sgd": (
        {"eta": 1 / 4, "mu": 1 / 16, "K": 7},
        [8 / 9, 1 / 9],
        [[8 / 9, 1 / 9], [1 / 9, 8 / 9]],
        [-1 / 4, -2],
    ),
    "fedavg": ({"eta": 1 / 2, "mu": 1, "K": 3}, [1], [[1]], [-1 / 2]),
    "mb-sgd": ({"eta": 1 / 2, "mu": 1, "K": 3}, [1], [[1]], [-1 / 2]),
    # rho = 3/4: p' = 3/4 p + w
    "fedavg-weighted": (
        {"eta": 1 / 2, "mu": 1, "K": 3},
        [1, 0],
        [[1, 0], [1, 3 / 4]],
        [-1 / 2, 0],
    ),
}


def lane_of(algorithm, *, eta: float = 0.5, mu: float = 0.5, K: int = 4) -> Lane:
    return Lane(algorithm, algorithm.couple(eta=eta, mu=mu, K=K))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_forms_by_hand(name: str) -> None:
    given_, c, expected, b = BY_HAND[name]
    form = affine_form(lane_of(ALGORITHMS[name], **given_))
    assert form.c == pytest.approx(np.array(c), abs=1e-15)
    assert (np.abs(form.A - expected) < 1e-15).all()
    assert form.b == pytest.approx(np.array(b), abs=1e-15)


def test_the_form_of_general_fedac_by_hand() -> None:
    form = affine_form(lane_of(fedac(gamma=2.0, alpha=2.0, beta=4.0), eta=0.5))
    assert form.c.tolist() == [3 / 4, 1 / 4]
    assert form.A.tolist() == [[3 / 4, 1 / 4], [3 / 8, 5 / 8]]
    assert form.b.tolist() == [-1 / 2, -2]


def test_l2_goes_into_A() -> None:
    # A + 2 b c': [[3/4, 1/4], [3/8, 5/8]] - 2 [[3/8, 1/8], [3/2, 1/2]]
    form = affine_form(lane_of(fedac(gamma=2.0, alpha=2.0, beta=4.0), eta=0.5)).with_l2(2.0)
    assert form.A.tolist() == [[0, 0], [-21 / 8, -3 / 8]]
    assert form.c.tolist() == [3 / 4, 1 / 4]
    assert form.b.tolist() == [-1 / 2, -2]


@pytest.mark.parametrize("eta", [1e-100, 1e-9, 1e100])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_step_sizes_of_all_magnitudes_have_a_form(name: str, eta: float) -> None:
    # eta mu = 1e-3 keeps the couplings in their bounds.
    form = affine_form(lane_of(ALGORITHMS[name], eta=eta, mu=1e-3 / eta))
    assert form.b[0] == -eta


def _squares(state, w_md, g, hp):
    return (w_md - hp.eta * g * g,)


def _drifts(state, w_md, g, hp):
    return (w_md - hp.eta * g + 1.0,)


def _takes_floats_only(state, w_md, g, hp):
    return (float(w_md) - hp.eta * g,)


def _branches(state, w_md, g, hp):
    return (w_md - hp.eta * g if g > 0 else w_md,)


def _mixes_coordinates(state, w_md, g, hp):
    return (w_md - hp.eta * (g - g.mean()),)


def _loses_a_sequence(state, w_md, g, hp):
    return ()


def _clips(state, w_md, g, hp):
    return (w_md - hp.eta * np.clip(g, -100.0, 100.0),)


def _shrinks(state, w_md, g, hp):
    w = w_md - hp.eta * g
    return (np.sign(w) * np.maximum(np.abs(w) - 1e-10, 0.0),)


@pytest.mark.parametrize(
    ("update", "eta"),
    [
        (_squares, 0.5),
        (_drifts, 0.5),
        (_mixes_coordinates, 0.5),
        (_clips, 0.5),
        (_shrinks, 0.5),
        (_squares, 1e-10),
    ],
)
def test_what_is_not_affine_is_refused(update, eta: float) -> None:
    mine = replace(FEDAVG, name="my-own", update=update)
    with pytest.raises(
        InputError, match=r"'my-own' is not linear.*only the reference and network engines"
    ):
        affine_form(lane_of(mine, eta=eta))


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (_takes_floats_only, "update.* fails.*TypeError"),
        (_branches, "update.* fails.*ValueError"),
        (_loses_a_sequence, "update must return a tuple of 1"),
    ],
)
def test_what_is_broken_is_refused_with_the_reason(update, reason: str) -> None:
    mine = replace(FEDAVG, name="my-own", update=update)
    with pytest.raises(InputError, match=f"algorithm 'my-own': {reason}"):
        affine_form(lane_of(mine))


def test_a_query_that_is_not_linear_is_refused() -> None:
    mine = replace(FEDAVG, name="my-own", query=lambda state, hp: abs(state[0]))
    with pytest.raises(
        InputError, match=r"'my-own' is not linear.*only the reference and network engines"
    ):
        affine_form(lane_of(mine))


def follow(forms: list[Affine], l2: float, S_0, g, u: float):
    """Take the steps one by one: the query points and the last state, with all l2 at `u`."""
    state, queried = S_0.copy(), []
    for g_t in g:
        w_md = np.array([form.c @ state[:, v] for v, form in enumerate(forms)])
        queried.append(w_md)
        state = np.stack(
            [
                form.A @ state[:, v] + form.b * (g_t[v] + l2 * (w_md[v] - u))
                for v, form in enumerate(forms)
            ],
            axis=1,
        )
    return np.array(queried), state


def follow_tables(tables, closing, S_0, g, u: float):
    """Do what a kernel does with the tables, for one coordinate."""
    Y, idle, queried, folds = S_0.copy(), S_0.copy(), [], iter(tables.folds)
    for t, g_t in enumerate(g):
        queried.append((tables.q[t] * Y).sum(axis=0) + tables.e[t] * u)
        if tables.fold_after[t]:
            columns = next(folds)
            Y = np.einsum("jiv,jv->iv", columns, Y)
            idle = np.einsum("jiv,jv->iv", columns, idle)
        Y = Y + tables.r[t] * g_t
    assert next(folds, None) is None, "every fold was used"
    base = np.einsum("ijv,jv->iv", closing.to_base, S_0)
    assert base == pytest.approx(idle, rel=1e-9, abs=1e-9 * np.abs(S_0).max())
    end = np.einsum("ijv,jv->iv", closing.to_state, Y) + closing.constant * u
    return np.array(queried), end


def compare(forms: list[Affine], *, l2: float, gap: int, dtype=np.float64, u: float = 0.7):
    rng = np.random.default_rng(gap)
    S = len(forms[0].c)
    S_0, g = rng.standard_normal((S, len(forms))), rng.standard_normal((gap, len(forms)))
    tables, of_lengths = round_tables(forms, l2, (gap,), dtype)
    closing = type(of_lengths)(*(each[0] for each in of_lengths))
    points, state = follow(forms, l2, S_0, g, u)
    by_table, end = follow_tables(tables, closing, S_0, g, u)
    # Rounding is relative to the largest number a lane has met.
    size = 1 + np.abs(points).max(axis=0) + np.abs(state).max(axis=0)
    assert np.abs(by_table - points).max(axis=0) / size == pytest.approx(0, abs=1e-10)
    assert np.abs(end - state).max(axis=0) / size == pytest.approx(0, abs=1e-10)
    return tables, closing


FEDAC = affine_form(lane_of(ALGORITHMS["fedac-i"], eta=0.5, mu=0.1))
PLAIN = affine_form(lane_of(FEDAVG, eta=0.5))


def test_a_short_round_needs_no_fold() -> None:
    tables, closing = compare([FEDAC], l2=0.1, gap=4)
    assert not tables.fold_after.any()
    assert tables.folds.shape == (0, 2, 2, 1)
    assert tables.q.shape == tables.r.shape == (4, 2, 1)
    assert closing.to_base[..., 0].tolist() == np.eye(2).tolist()


def test_a_round_with_folds() -> None:
    # A = 1 - eta l2 = 1/2: its powers can be undone 39 times before 2^-t passes 1e-12.
    tables, _ = compare([PLAIN], l2=1.0, gap=100)
    assert np.flatnonzero(tables.fold_after).tolist() == [39, 79]
    assert len(tables.folds) == 2
    # A shear: with g = 1 the weighted sum gathers, and A^t is ever worse conditioned.
    weighted = affine_form(lane_of(ALGORITHMS["fedavg-weighted"], eta=1.0, mu=0.1))
    tables, _ = compare([weighted], l2=0.0, gap=1000)
    assert tables.fold_after.any()


def test_a_matrix_without_inverse_is_folded_at_every_step() -> None:
    tables, _ = compare([PLAIN], l2=2.0, gap=5)  # A = 1 - 1/2 * 2 = 0
    assert tables.fold_after.all()
    assert not tables.folds.any()


def test_single_precision_is_folded_more_often() -> None:
    (single, _), (double, _) = (
        compare([FEDAC], l2=0.1, gap=256, dtype=t) for t in (np.float32, np.float64)
    )
    assert single.fold_after.sum() > double.fold_after.sum()


def test_one_bad_lane_makes_all_lanes_fold() -> None:
    alone, _ = compare([PLAIN], l2=0.01, gap=8)
    together, _ = compare([PLAIN, Affine(PLAIN.c, PLAIN.A, 200 * PLAIN.b)], l2=0.01, gap=8)
    assert not alone.fold_after.any()
    assert together.fold_after.all()


near_one = st.sampled_from([1.0, 1 - 1e-16, 1 + 1e-9, 1 - 1e-9, 1 - 1e-4, 1.001])
strengths = st.one_of(near_one, st.floats(1e-6, 1.9), st.just(0.0))  # eta l2


@st.composite
def lanes(draw) -> tuple[list[Affine], float]:
    """Some lanes of FedAc, or of FedAvg with and without an average, and an l2."""
    l2 = draw(st.sampled_from([0.0, 1e-3, 1.0]))
    kind = draw(st.sampled_from(["fedac", "fedavg", "fedavg-weighted"]))
    forms = []
    for _ in range(draw(st.integers(1, 4))):
        eta = draw(strengths.filter(bool)) / l2 if l2 else draw(st.floats(1e-3, 10))
        gamma, alpha = eta * draw(st.floats(1, 4)), draw(st.floats(1, 50))
        beta, rho = draw(st.floats(1, 50)), draw(st.floats(0.1, 1))
        hp: Hyperparameters
        if kind == "fedac":
            hp = FedAcHyperparameters(eta=eta, gamma=gamma, alpha=alpha, beta=beta)
        else:
            hp = AveragedHyperparameters(eta=eta, rho=rho)
        algorithm = fedac(gamma=1, alpha=1, beta=1) if kind == "fedac" else ALGORITHMS[kind]
        forms.append(affine_form(Lane(algorithm, hp)))
    return forms, l2


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    drawn=lanes(),
    gap=st.integers(1, 70),
    u=st.sampled_from([0.0, 1.0, -30.0]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_tables_are_the_recursion(drawn, gap: int, u: float, dtype) -> None:
    forms, l2 = drawn
    compare(forms, l2=l2, gap=gap, dtype=dtype, u=u)
