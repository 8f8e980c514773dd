# SPDX-License-Identifier: Apache-2.0
"""The planner: choices by the paper's bounds."""

from math import sqrt

import pytest

from fedac.errors import InputError
from fedac.theory import theorem
from fedac.theory.bounds import min_max_lower_bound
from fedac.theory.constants import Constants
from fedac.theory.planner import SLACK, Choice, Plan, choose, divisors, plan

STRONG = Constants(L=1.0, mu=1e-2, sigma=1.0, D0=1.0, Q=0.5)
CONVEX = Constants(L=1.0, mu=0.0, sigma=1.0, D0=1.0, Q=0.5)


def labels(plan: Plan) -> list[str]:
    return [choice.theorem.label for choice in plan]


def row(plan: Plan, label: str) -> Choice:
    [found] = [choice for choice in plan if choice.theorem.label == label]
    return found


def test_every_theorem_has_a_row() -> None:
    assert labels(plan(STRONG, M=16, T=1024)) == [
        "fedaci:full", "fedacii:a1:full", "fedacii:a2:full", "fedavg:a1", "fedavg:a2:full",
        "mb-sgd", "mb-ac-sgd", "ac-sgd",
    ]  # fmt: skip
    assert labels(plan(CONVEX, M=16, T=1024)) == [
        "fedaci:a1:gcvx", "fedacii:a1:gcvx", "fedacii:a2:gcvx", "fedavg:a1:gcvx", "fedavg:a2:gcvx",
        "mb-sgd:gcvx", "mb-ac-sgd:gcvx", "ac-sgd:gcvx",
    ]  # fmt: skip


def test_without_Q_the_theorems_that_need_it_are_left_out_and_say_why() -> None:
    unknown = Constants(L=1.0, mu=1e-2, sigma=1.0, D0=1.0)
    found = plan(unknown, M=16, T=1024)
    assert not [c for c in found if c.theorem.assumption == 2]
    why = "needs Q, which is not known"
    assert found.left_out == {"fedacii:a2:full": why, "fedavg:a2:full": why}


def test_a_choice_is_what_its_theorem_says() -> None:
    choice = plan(STRONG, M=16, T=4096)[0]
    at = {"L": 1.0, "mu": 1e-2, "sigma": 1.0, "M": 16, "K": choice.K, "T": 4096, "Psi0": 1.0}
    full = theorem("fedaci:full")
    assert (choice.step_size.eta, 0.0, choice.bound) == full.best(**at)
    assert choice.bound == full.at(choice.step_size.eta, **at)
    assert choice.closed_form == full.bound(**at)
    assert choice.rounds * choice.K == choice.T == 4096


def test_one_local_step_is_accelerated_minibatch_sgd() -> None:
    # 4099 is prime, so K is 1. The closed form of fedaci:full has a discrepancy even there,
    # where workers never differ, and is far above the other row of the same algorithm.
    constants = Constants(L=1.0, mu=0.1, sigma=1.0, D0=1.0)
    found = plan(constants, M=256, T=4099)
    fedac, minibatch = row(found, "fedaci:full"), row(found, "mb-ac-sgd")
    assert fedac.K == minibatch.K == 1
    assert fedac.step_size.eta == minibatch.step_size.eta
    assert fedac.bound == minibatch.bound
    assert fedac.closed_form is not None
    assert fedac.closed_form.total > 100 * fedac.bound.total


@pytest.mark.parametrize("constants", [STRONG, CONVEX], ids=["strongly convex", "convex"])
def test_one_worker_has_no_discrepancy_and_no_speedup(constants: Constants) -> None:
    for choice in plan(constants, M=1, T=4096):
        assert choice.bound.discrepancy == 0, choice.theorem.label
        assert choice.speedup_rounds is None


@pytest.mark.slow
def test_one_machine_is_a_row_of_its_own() -> None:
    for constants, label in ((STRONG, "ac-sgd"), (CONVEX, "ac-sgd:gcvx")):
        alone = row(plan(constants, M=64, T=4096, dim=1000), label)
        assert (alone.M, alone.K, alone.rounds, alone.speedup_rounds) == (1, 4096, 1, None)
        assert alone.megabytes_per_worker == pytest.approx(0.008)
        # It is accelerated minibatch SGD with one worker and one gradient a round.
        same = theorem("mb-" + label).best(**constants.letters, M=1, K=1, T=4096)
        assert alone.bound == same.bound
        # Rounds are free for it, so T is the fewest steps that are enough.
        there = row(plan(constants, M=64, target=0.1, round_cost=1e6), label)
        fewer = theorem(label).best(**constants.letters, M=1, K=1, T=there.T - 1)
        assert there.bound.total <= 0.1 < fewer.bound.total


def test_the_floor_is_for_convex_objectives_under_asm1_only() -> None:
    assert plan(STRONG, M=16, T=1024).at_floor is None
    assert {choice.floor for choice in plan(STRONG, M=16, T=1024)} == {None}
    found = plan(CONVEX, M=16, T=1024)
    for choice in found:
        at = {"M": choice.M, "K": choice.K, "T": 1024, "L": 1.0, "sigma": 1.0, "D0": 1.0}
        asm1 = choice.theorem.assumption == 1
        assert choice.floor == (min_max_lower_bound(**at) if asm1 else None)
    # With Q = 0 FedAvg's bound under asm2 is good in one round. On all problems of asm1 no method
    # is, so the floor must not stand beside it.
    flat = plan(Constants(L=1.0, mu=0.0, sigma=1.0, D0=1.0, Q=0.0), M=1024, T=2**20)
    once = row(flat, "fedavg:a2:gcvx")
    assert (once.rounds, once.floor) == (1, None)
    at = {"L": 1.0, "sigma": 1.0, "D0": 1.0, "M": 1024, "K": 2**20, "T": 2**20}
    assert min_max_lower_bound(**at) > 10 * once.bound.total
    assert flat.at_floor is not None
    assert flat.at_floor.theorem.label == "fedavg:a1:gcvx"
    assert flat.at_floor.bound.total == min(
        c.bound.total for c in flat if c.theorem.assumption == 1 and c.M > 1
    )
    assert flat.at_floor.floor < flat.at_floor.bound.total


def test_a_known_start_lowers_the_bounds_for_convex_objectives() -> None:
    # F(w_0) - F* instead of L D0^2/2, in what is left of the start
    at = {"L": 1.0, "sigma": 0.0, "M": 16, "K": 1, "T": 64, "D0": 1.0}
    one = theorem("mb-ac-sgd:gcvx")
    far, near = (one.at(0.5, 1e-3, **at | more).optimization for more in ({}, {"Psi0": 0.05}))
    assert far - near == pytest.approx((0.5 - 0.05) * (1 - sqrt(0.5e-3)) ** 64)
    assert one.at(0.5, 1e-3, **at, Psi0=3.0).optimization == far
    known = Constants(L=1.0, mu=0.0, sigma=1.0, D0=1.0, Psi0=0.01, Phi0=0.01)
    for before, after in zip(plan(CONVEX, M=16, T=1024), plan(known, M=16, T=1024), strict=False):
        if before.theorem.augmented and "fedavg" not in before.theorem.label:
            assert after.bound.total < before.bound.total


def test_lam_may_exceed_L_where_the_noise_asks_for_it() -> None:
    letters = {"L": 1.0, "sigma": 1e4, "M": 1, "K": 1, "T": 24, "D0": 1.0}
    for label in ("fedaci:a1:gcvx", "mb-ac-sgd:gcvx", "ac-sgd:gcvx"):
        best = theorem(label).best(**letters)
        assert best.lam > 1
        assert best.bound.total < theorem(label).bound(**letters).total
        # Not for a bound that says something: lam D0^2/2 is part of it.
        assert best.bound.total > 1 / 2 > theorem(label).best(**letters | {"sigma": 1.0}).lam / 2


def test_a_plan_knows_when_it_never_takes_a_second_local_step() -> None:
    quiet, noisy = (Constants(L=1.0, mu=1e-2, sigma=sigma, D0=1.0) for sigma in (1.0, 10.0))
    found = plan(quiet, M=256, T=4096)
    assert {c.theorem.label: c.K for c in found} == {
        "fedaci:full": 1, "fedacii:a1:full": 1, "fedavg:a1": 1, "mb-sgd": 8, "mb-ac-sgd": 32,
        "ac-sgd": 4096,
    }  # fmt: skip
    assert found.synchronizes_every_step
    assert not plan(noisy, M=256, T=4096).synchronizes_every_step
    assert not plan(quiet, M=256, T=1).synchronizes_every_step  # there is no second step


def test_a_target_above_the_start_is_already_reached() -> None:
    # F(w_0) - F* <= L D0^2/2 = 1/2
    assert plan(STRONG, M=16, target=0.5).already_reached
    assert not plan(STRONG, M=16, target=0.5).choices
    assert not plan(STRONG, M=16, target=0.49).already_reached
    assert plan(STRONG, M=16, target=0.49).choices


def test_what_is_vacuous_is_decided_by_the_start() -> None:
    found = plan(STRONG, M=1, T=256)
    assert all(c.vacuous == (c.bound.total >= 0.5) for c in found)
    assert any(0.5 <= c.bound.total < 1.0 for c in found)


@pytest.mark.parametrize("constants", [STRONG, CONVEX], ids=["strongly convex", "convex"])
def test_fewest_rounds_within_the_slack(constants: Constants) -> None:
    choice = plan(constants, M=64, T=2**16)[0]
    at = constants.letters | {"M": 64, "T": 2**16}
    totals = {K: choice.theorem.best(**at, K=K).bound.total for K in divisors(2**16)}
    best = min(totals.values())
    assert choice.bound.total <= SLACK * best
    assert all(total > SLACK * best for K, total in totals.items() if K > choice.K)


def test_the_cheapest_way_to_a_target() -> None:
    choices = plan(STRONG, M=64, target=0.01, round_cost=500.0)
    assert len(choices) == 8
    for choice in choices:
        assert choice.bound.total <= 0.01
        # One round less would not be enough.
        if choice.theorem.label == "fedaci:full":
            fewer = {"M": 64, "K": choice.K, "T": choice.T - choice.K, "Psi0": 1.0}
            assert choice.theorem.best(L=1.0, mu=1e-2, sigma=1.0, **fewer).bound.total > 0.01


def test_expensive_rounds_are_longer() -> None:
    cheap, expensive = (plan(STRONG, M=64, target=0.01, round_cost=cost)[0] for cost in (1.0, 1e6))
    assert expensive.rounds < cheap.rounds
    assert expensive.K > cheap.K


def test_a_target_out_of_reach_gives_no_row_and_says_why() -> None:
    found = plan(STRONG, M=1, target=1e-30)
    assert len(found) == 0
    assert found.left_out["fedaci:full"] == "does not reach 1e-30 within 2^40 steps"
    assert len(found.left_out) == 8


def test_linear_speedup() -> None:
    T = 2**16
    for choice in plan(STRONG, M=64, T=T):
        R = choice.speedup_rounds
        if choice.theorem.label == "fedaci:full":
            of = {"L": 1.0, "mu": 1e-2, "sigma": 1.0, "M": 64, "T": T, "Psi0": 1.0}
            enough, few = (choice.theorem.rate(K=T / rounds, **of) for rounds in (R, R - 1))
            start = choice.theorem.bound(K=T / (R - 1), **of).optimization
            assert enough.discrepancy <= enough.variance
            assert max(few.discrepancy, start) > few.variance
    fewer = plan(Constants(L=1.0, mu=1e-2, sigma=0.1, D0=1.0), M=64, T=64)
    assert fewer[0].speedup_rounds is None  # 64 steps are not enough to forget the start


def test_megabytes_count_both_sequences() -> None:
    by_name = {c.theorem.label: c for c in plan(STRONG, M=4, T=64, dim=1_000_000)}
    fedac, fedavg = by_name["fedaci:full"], by_name["fedavg:a1"]
    assert fedac.megabytes_per_worker == pytest.approx(8.0 * fedac.rounds)
    assert fedavg.megabytes_per_worker == pytest.approx(4.0 * fedavg.rounds)
    assert fedac.megabytes == pytest.approx(16.0 * fedac.rounds)  # received as well
    unknown = plan(STRONG, M=4, T=64)[0]
    assert unknown.megabytes_per_worker is None
    assert unknown.megabytes is None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "either T"),
        ({"T": 8, "target": 0.1}, "either T"),
        ({"T": 0}, "T \\(steps\\)"),
        ({"T": 2**41}, "2\\^40"),
        ({"target": 0.0}, "target"),
        ({"target": 0.1, "round_cost": -1.0}, "round_cost"),
        ({"T": 8, "M": 0}, "M \\(workers\\)"),
    ],
)
def test_bad_input(how: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(STRONG, **({"M": 4} | how))


def test_few_steps_are_enough_for_the_lemmas_but_not_for_the_closed_forms() -> None:
    found = plan(CONVEX, M=4, T=64)
    assert len(found) == 8
    without = [c.theorem.label for c in found if c.closed_form is None]
    assert without == ["fedacii:a1:gcvx", "fedacii:a2:gcvx", "fedavg:a2:gcvx"]


def test_choose_may_find_nothing() -> None:
    assert choose(lambda K, T: 1.0, T=None, target=0.5, round_cost=1.0, most_steps=64) is None
