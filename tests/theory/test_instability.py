# SPDX-License-Identifier: Apache-2.0
"""The instability theorem, on the objective that its proof constructs."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.algorithms import hyperparameters
from fedac.errors import InputError
from fedac.theory import instability
from fedac.theory.instability import (
    Instance,
    PiecewiseQuadratic,
    by_block,
    curvatures,
    fedac_separation,
    follow,
    nesterov,
    predicted_separation,
    propagate,
    proven_bound,
    run_agd,
)

pytestmark = pytest.mark.slow

KAPPAS = [25.0, 100.0, 1e4]
CASES = list(itertools.product(KAPPAS, [1, 2, 5, 20, 60]))
# Where the first step of a block is at L, as the stated constants need, instead of the second.
STATED = [(kappa, blocks, 0) for kappa, blocks in CASES if blocks <= 20]
BOTH = [*((kappa, blocks, 1) for kappa, blocks in CASES), *STATED]
some = settings(deadline=None, max_examples=50, derandomize=True)


@functools.cache
def construct(kappa: float, blocks: int, at_L: int = 1) -> Instance:
    return instability.construct(kappa, blocks, at_L=at_L)


# The objective.

knots = st.lists(st.fractions(-4, 4, max_denominator=12), unique=True, min_size=2, max_size=10).map(
    sorted
)
points = st.fractions(-5, 5, max_denominator=50)


def with_bumps(knots: list[Fraction]) -> PiecewiseQuadratic:
    return PiecewiseQuadratic(
        Fraction(1, 3), Fraction(7), tuple(zip(knots[::2], knots[1::2], strict=False))
    )


@some
@given(knots=knots, w=points)
def test_gradient_is_mu_w_and_the_overlap_with_each_bump(knots, w) -> None:
    F = with_bumps(knots)
    low, high = min(w, 0), max(w, 0)
    overlap = sum(max(min(right, high) - max(left, low), 0) for left, right in F.bumps)
    slope = F.mu * abs(w) + (F.L - F.mu) * overlap
    assert F.gradient(w) == (slope if w > 0 else -slope)
    assert F.curvature(w) == (F.L if any(a <= w <= b for a, b in F.bumps) else F.mu)


@some
@given(knots=knots)
def test_gradient_is_an_exact_integral_across_all_knots(knots) -> None:
    F = with_bumps(knots)
    stops = sorted({Fraction(-5), Fraction(0), Fraction(5), *knots})
    for a, b in itertools.pairwise(stops):
        # Between two knots H is constant and F' is linear.
        for end in (b, (a + b) / 2):
            width = end - a
            assert F.gradient(end) - F.gradient(a) == F.curvature((a + b) / 2) * width
    assert F.gradient(0) == 0


@some
@given(knots=knots, w=points, u=points)
def test_objective_is_strongly_convex_and_smooth(knots, w, u) -> None:
    F = with_bumps(knots)
    slope = (F.gradient(w) - F.gradient(u)) * (w - u)
    assert F.mu * (w - u) ** 2 <= slope <= F.L * (w - u) ** 2


# Accelerated gradient descent.


def test_one_step_by_hand() -> None:
    # w_md = 12/6 + (5/6) 6 = 7; with the bump, F'(7) = 7 + 24.
    hp = nesterov(Fraction(5))
    start = (Fraction(6), Fraction(12))
    plain = run_agd(PiecewiseQuadratic(1, 25), start, hp, steps=1)
    assert plain == ((6, Fraction(168, 25)), (7,), (12, Fraction(48, 5)))
    bumped = run_agd(PiecewiseQuadratic(1, 25, ((0, 1),)), start, hp, steps=1)
    assert bumped == ((6, Fraction(144, 25)), (7,), (12, Fraction(24, 5)))


def agd_of_the_paper(gradient, w_ag, w, L, mu, root, steps):
    """Write out algo:agd; `root` is sqrt(kappa), and sqrt(1/(L mu)) is 1/(mu root)."""
    for _ in range(steps):
        w_md = 1 / (root + 1) * w + root / (root + 1) * w_ag
        w_ag = w_md - 1 / L * gradient(w_md)
        w = (1 - 1 / root) * w + 1 / root * w_md - 1 / (mu * root) * gradient(w_md)
    return w_ag, w


@some
@given(
    knots=knots,
    root=st.fractions(1, 20, max_denominator=9),
    mu=st.fractions(Fraction(1, 9), 9, max_denominator=9),
    w_ag=points,
    w=points,
)
def test_vanilla_fedac_at_one_over_L_is_agd(knots, root, mu, w_ag, w) -> None:
    L = mu * root**2
    F = PiecewiseQuadratic(mu, L, with_bumps(knots).bumps)
    ours = run_agd(F, (w_ag, w), nesterov(root, mu), steps=4)
    theirs = agd_of_the_paper(F.gradient, w_ag, w, L, mu, root, 4)
    assert (ours.w_ag[-1], ours.w[-1]) == theirs  # of fractions, so exactly
    vanilla = hyperparameters.vanilla(eta=1 / float(L), mu=float(mu))
    for name in ("eta", "gamma", "alpha", "beta"):
        same = pytest.approx(getattr(vanilla, name), rel=1e-14)
        assert float(getattr(nesterov(root, mu), name)) == same


def test_the_separating_trajectory_converges_in_the_end() -> None:
    # The remark after theorem instability:sketch: no contradiction to convergence.
    instance = construct(25.0, 5)
    after = run_agd(instance.objective, instance.start, instance.hp, steps=200)
    assert max(abs(after.w_ag[-1]), abs(after.w[-1])) < 1e-12


# How a difference evolves.


def step_matrix(hp, curvature):
    """Return the matrix from a difference (w_ag, w) to the next."""
    units = np.eye(2)
    after = propagate(hp, [curvature], start=(units[0], units[1]))
    return np.stack([after.w_ag[-1], after.w[-1]])


def growth_matrix(kappa, at_L=1):
    """Return the matrix by which AGD multiplies a difference (w_ag, w) in one block."""
    hp = nesterov(math.sqrt(kappa))
    first, second, third = (step_matrix(hp, F) for F in curvatures(kappa, 1, at_L))
    return third @ second @ first


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_step_matrix_is_that_of_lemma_instability_2(kappa, share) -> None:
    root = math.sqrt(kappa)
    curvature = 1 + share * (kappa - 1)
    at_L, at_mu = 1 - curvature / kappa, 1 - curvature
    expected = np.array([[root * at_L, at_L], [at_mu, root * at_L]]) / (root + 1)
    np.testing.assert_allclose(step_matrix(nesterov(root), curvature), expected, 1e-12, 1e-12)


@pytest.mark.parametrize("kappa", KAPPAS)
def test_growth_matrix_is_that_of_the_proof(kappa) -> None:
    root = math.sqrt(kappa)
    projection = np.array([[1, 1 / root], [root, 1]]) / 2
    np.testing.assert_allclose(projection @ projection, projection, rtol=1e-15)
    expected = -2 * (1 - 1 / root) ** 3 * projection
    np.testing.assert_allclose(growth_matrix(kappa), expected, rtol=1e-12)


@pytest.mark.parametrize("kappa", KAPPAS)
def test_growth_matrix_of_a_block_that_begins_at_L(kappa) -> None:
    root = math.sqrt(kappa)
    expected = -((1 - 1 / root) ** 3) * np.array([[2, 0], [root, 0]])
    np.testing.assert_allclose(growth_matrix(kappa, at_L=0), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("at_L", [0, 1])
@pytest.mark.parametrize("kappa", KAPPAS)
def test_prediction_is_the_power_of_the_growth_matrix(kappa, at_L) -> None:
    for blocks in (1, 2, 7):
        apart = np.linalg.matrix_power(growth_matrix(kappa, at_L), blocks) @ np.ones(2)
        assert predicted_separation(kappa, blocks, at_L) == pytest.approx(tuple(apart), rel=1e-12)


# The theorem.


@pytest.mark.parametrize(("kappa", "blocks"), CASES)
def test_measured_separation_is_that_of_the_proof(kappa, blocks) -> None:
    root = math.sqrt(kappa)
    measured = construct(kappa, blocks).separation()
    assert len(measured) == blocks + 1
    assert measured[0] == (1, 1)
    for k in range(1, blocks + 1):
        growth = (-2 * (1 - 1 / root) ** 3) ** k / 2
        expected = (growth * (1 + 1 / root), growth * (root + 1))
        assert measured[k] == pytest.approx(expected, rel=1e-9)
        assert predicted_separation(kappa, k) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(("kappa", "blocks"), CASES)
def test_rounding_errors_are_negligible(kappa, blocks) -> None:
    # More digits than a double has: those that remain of the guard bits after all steps.
    instance = construct(kappa, blocks)
    w, u = instance.trajectories()
    with mpmath.workprec(200):
        root = mpmath.sqrt(kappa)
        expected = instance.eps_0 / 2 * (-2 * (1 - 1 / root) ** 3) ** blocks * (root + 1) / 2
        assert abs((w.w[-1] - u.w[-1]) / expected - 1) < 1e-17


@pytest.mark.parametrize(("kappa", "blocks"), CASES)
def test_both_sequences_separate_as_proven(kappa, blocks) -> None:
    for k, apart in enumerate(construct(kappa, blocks).separation()):
        assert abs(apart.w_ag) >= 1.02**k / 2
        assert abs(apart.w) >= 1.02**k
        assert proven_bound(k) == (1.02**k / 2, 1.02**k)


@pytest.mark.parametrize(("kappa", "blocks", "at_L"), STATED)
def test_the_theorem_holds_as_stated_if_blocks_begin_at_L(kappa, blocks, at_L) -> None:
    root = math.sqrt(kappa)
    measured = construct(kappa, blocks, at_L).separation()
    for k in range(1, blocks + 1):
        growth = (-2 * (1 - 1 / root) ** 3) ** k
        assert measured[k] == pytest.approx((growth, root / 2 * growth), rel=1e-9)
        assert abs(measured[k].w_ag) >= 1.02**k
        assert abs(measured[k].w) >= 1.02**k / 2
        assert proven_bound(k, at_L) == (1.02**k, 1.02**k / 2)


@pytest.mark.parametrize("root", [5, 6, 10, 10**6])
@pytest.mark.parametrize("blocks", [1, 2, 40])
def test_the_theorem_holds_as_stated_in_exact_fractions(root: int, blocks: int) -> None:
    # kappa = root^2 >= 25 and curvatures (L, mu, mu) in each block: no number is rounded.
    kappa, c = Fraction(root**2), 1 - Fraction(1, root)
    block = [kappa, Fraction(1), Fraction(1)]
    apart = propagate(nesterov(Fraction(root)), block * blocks, (Fraction(1), Fraction(1)))
    growth = (2 * c**3) ** blocks
    assert abs(apart.w_ag[-1]) == growth
    assert abs(apart.w[-1]) == Fraction(root, 2) * growth
    stated = Fraction(102, 100) ** blocks
    assert abs(apart.w_ag[-1]) >= stated
    assert abs(apart.w[-1]) >= stated / 2


def test_the_block_matrix_in_exact_fractions() -> None:
    root = 7
    c, hp = 1 - Fraction(1, root), nesterov(Fraction(root))
    block = [Fraction(root**2), Fraction(1), Fraction(1)]
    columns = [propagate(hp, block, start) for start in ((Fraction(1), Fraction(0)),
                                                         (Fraction(0), Fraction(1)))]  # fmt: skip
    matrix = [[column.w_ag[-1] for column in columns], [column.w[-1] for column in columns]]
    assert matrix == [[-2 * c**3, 0], [-root * c**3, 0]]


def test_the_objective_of_the_proof_does_not_give_the_stated_constants() -> None:
    assert abs(construct(25.0, 1).separation()[1].w_ag) < 1.02
    assert abs(construct(25.0, 1, at_L=0).separation()[1].w_ag) > 1.02


def test_only_the_first_or_second_step_of_a_block_can_be_at_L() -> None:
    with pytest.raises(InputError, match="at_L must be 0 or 1, got 2"):
        instability.construct(25.0, 1, at_L=2)


def test_growth_falls_short_below_25() -> None:
    assert abs(predicted_separation(24.0, 300).w) < proven_bound(300).w
    assert abs(predicted_separation(25.0, 300).w) > proven_bound(300).w


@pytest.mark.parametrize(("kappa", "blocks", "at_L"), BOTH)
def test_curvature_conditions_of_lemma_instability_1(kappa, blocks, at_L) -> None:
    instance = construct(kappa, blocks, at_L)
    F, delta, eps_0 = instance.objective, instance.delta, instance.eps_0
    knots = [knot for bump in F.bumps for knot in bump]
    for corner in [(0, 0), (-1, -1), (1, 1), (1, -1), (-1, 1)]:
        start = tuple(w + sign * eps_0 for w, sign in zip(instance.start, corner, strict=True))
        for t, w_md in enumerate(run_agd(F, start, instance.hp, steps=3 * blocks).w_md):
            expected = F.L if t % 3 == at_L else F.mu
            assert {F.curvature(w_md + shift) for shift in (-delta, 0, delta)} == {expected}
            assert not any(abs(knot - w_md) < delta for knot in knots)


@pytest.mark.parametrize(("kappa", "blocks"), CASES)
def test_curvature_is_mu_or_L_with_a_bump_per_block(kappa, blocks) -> None:
    instance = construct(kappa, blocks)
    F = instance.objective
    assert (F.mu, F.L, len(F.bumps)) == (1, kappa, blocks)
    knots = [knot for bump in F.bumps for knot in bump]
    # AGD descends from 1 to the minimum at 0, and no bump is there.
    assert 0 < knots[0] < knots[-1] < 1
    beside = [knot + side * instance.delta for knot in knots for side in (-1, 1)]
    rng = np.random.default_rng(0)
    for w in [*knots, *beside, *rng.uniform(-1, 2, size=100)]:
        assert F.curvature(w) in (F.mu, F.L)
    for a, b in itertools.pairwise(knots):
        # The slope of F' from knot to knot, to all digits that the distance leaves.
        slope = (F.gradient(b) - F.gradient(a)) / (b - a)
        assert abs(slope / F.curvature((a + b) / 2) - 1) < 1e-15


@pytest.mark.parametrize(("kappa", "blocks", "at_L"), BOTH)
def test_neighbourhoods_of_different_steps_are_apart(kappa, blocks, at_L) -> None:
    instance = construct(kappa, blocks, at_L)
    for run in instance.trajectories():
        assert min(a - b for a, b in itertools.pairwise(run.w_md)) >= 2 * instance.delta > 0


@pytest.mark.parametrize("share", [1, 1 / 3, 2.0**-24])
def test_any_eps_up_to_eps_0_gives_the_same(share) -> None:
    instance = construct(100.0, 5)
    eps = instance.eps_0 * share
    w_ag, w = instance.start
    runs = [
        run_agd(instance.objective, start, instance.hp, steps=15)
        for start in (instance.start, (w_ag - eps, w - eps))
    ]
    apart = ((runs[0].w_ag[-1] - runs[1].w_ag[-1]) / eps, (runs[0].w[-1] - runs[1].w[-1]) / eps)
    assert tuple(map(float, apart)) == pytest.approx(predicted_separation(100.0, 5), rel=1e-9)


def test_far_outside_the_neighbourhoods_the_formula_does_not_hold() -> None:
    instance = construct(100.0, 5)
    eps = 0.01
    F, hp = instance.objective, instance.hp
    runs = [run_agd(F, (1 - shift, -shift), hp, steps=15) for shift in (0, eps)]
    apart = float(runs[0].w[-1] - runs[1].w[-1]) / eps
    assert abs(apart) < 1 < abs(predicted_separation(100.0, 5).w)


def test_a_bump_out_of_place_breaks_the_construction() -> None:
    # Bumps at the w_md of the quadratic, not moved along: this is why the proof needs F~.
    instance = construct(100.0, 5)
    F = PiecewiseQuadratic(instance.objective.mu, instance.objective.L)
    w_md = run_agd(F, instance.start, instance.hp, steps=15).w_md
    radii = [(right - left) / 2 for left, right in reversed(instance.objective.bumps)]
    for k, radius in enumerate(radii):
        F = F.with_bump(w_md[3 * k + 1], radius)
    visited = run_agd(F, instance.start, instance.hp, steps=15).w_md
    assert [float(F.curvature(at)) for at in visited] != curvatures(100.0, 5)


def test_kappa_need_not_be_a_square() -> None:
    for kappa in (25.000001, 31.4, 12345.678, 1e12):
        apart = construct(kappa, 6).separation()[-1]
        assert apart == pytest.approx(predicted_separation(kappa, 6), rel=1e-9)


def test_the_global_precision_is_unchanged() -> None:
    before = mpmath.mp.prec
    instability.construct(25.0, 2).separation()
    assert mpmath.mp.prec == before


def test_precision_grows_with_blocks_and_kappa() -> None:
    bits = [construct(kappa, blocks).bits for kappa, blocks in ((25.0, 5), (25.0, 20), (1e4, 20))]
    assert bits == sorted(bits)
    assert bits[0] < bits[-1]


# FedAc-I under the same curvatures.


@pytest.mark.parametrize("kappa", KAPPAS)
def test_fedac_i_with_K_1_separates_like_agd(kappa) -> None:
    for k, apart in enumerate(fedac_separation(kappa, 20, K=1)[1:], start=1):
        assert apart == pytest.approx(predicted_separation(kappa, k), rel=1e-9)


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("K", [4, 16, 64, 10**4])
def test_fedac_i_separates_less(kappa, K) -> None:
    for k, apart in enumerate(fedac_separation(kappa, 20, K=K)[1:], start=1):
        predicted = predicted_separation(kappa, k)
        assert abs(apart.w) < 0.6 * abs(predicted.w)
        assert abs(apart.w_ag) < 0.6 * abs(predicted.w_ag)


@pytest.mark.parametrize("kappa", KAPPAS)
def test_the_first_block_grows_less_the_longer_the_interval(kappa) -> None:
    first = [abs(fedac_separation(kappa, 1, K=K)[1].w) for K in (1, 2, 4, 8, 16)]
    assert first == sorted(first, reverse=True)
    assert first[-1] < first[0] / 3


def test_fedac_i_without_acceleration_never_separates() -> None:
    # From K = kappa on gamma = eta, and no curvatures make the transformed norm grow
    # (proposition fedaci:stab:bound): here |w_ag - w| and |w|.
    for apart in fedac_separation(100.0, 20, K=100):
        assert max(abs(apart.w), abs(apart.w_ag)) <= 1


def test_other_curvatures_separate_fedac_i() -> None:
    # What the note in `fedac_separation` says.
    hp = hyperparameters.fedac_i(eta=1 / 100, mu=1.0, K=2)
    matrix = np.linalg.multi_dot([step_matrix(hp, F) for F in [100.0] + 8 * [1.0]])
    assert max(abs(np.linalg.eigvals(matrix))) == pytest.approx(1.75, abs=0.01)


def test_differences_take_the_steps_of_trajectories() -> None:
    # On a quadratic of any curvature, with the same definition for both.
    hp = hyperparameters.fedac_i(eta=1 / 50, mu=1.0, K=4)
    first, second = (
        follow(lambda t, w_md: 7 * w_md, start, hp, steps=6) for start in ((3.0, 1.0), (2.0, 4.0))
    )
    difference = propagate(hp, [7.0] * 6, start=(1.0, -3.0))
    assert difference.w_ag == pytest.approx(np.subtract(first.w_ag, second.w_ag))
    assert difference.w == pytest.approx(np.subtract(first.w, second.w))
    assert [apart.w for apart in by_block(difference)] == [difference.w[t] for t in (0, 3, 6)]


# Bad input.


@pytest.mark.parametrize("kappa", [24.999, 0, -100, 1.1e12, math.nan, math.inf, "100", None, True])
def test_kappa_is_checked(kappa) -> None:
    with pytest.raises(InputError, match=r"kappa must be a number from 25 to 1e\+12, got"):
        instability.construct(kappa, 1)


@pytest.mark.parametrize("blocks", [0, -1, 101, 10**30, 1.5, 2.0, "3", None, True])
def test_blocks_are_checked(blocks) -> None:
    limits = "a whole number, at least 1|at most 100"
    with pytest.raises(InputError, match=f"blocks must be ({limits}), got"):
        instability.construct(100.0, blocks)


def test_errors_give_the_reason() -> None:
    with pytest.raises(InputError, match=r"the theorem needs L/mu >= 25$"):
        instability.construct(16.0, 1)
    with pytest.raises(InputError, match=r"the digits needed grow with its square$"):
        instability.construct(25.0, 1000)
