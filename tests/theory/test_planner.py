"""The planner: choices by the paper's bounds."""

import pytest

from fedac.errors import InputError
from fedac.theory import theorem
from fedac.theory.constants import Constants
from fedac.theory.planner import SLACK, choose, divisors, plan

STRONG = Constants(L=1.0, mu=1e-2, sigma=1.0, D0=1.0, Q=0.5)
CONVEX = Constants(L=1.0, mu=0.0, sigma=1.0, D0=1.0, Q=0.5)


def test_every_theorem_has_a_row() -> None:
    assert [choice.theorem.label for choice in plan(STRONG, M=16, T=1024)] == [
        "fedaci:full", "fedacii:a1:full", "fedacii:a2:full", "fedavg:a1", "fedavg:a2:full",
        "mb-sgd", "mb-ac-sgd",
    ]  # fmt: skip
    assert [choice.theorem.label for choice in plan(CONVEX, M=16, T=1024)] == [
        "fedaci:a1:gcvx", "fedacii:a1:gcvx", "fedacii:a2:gcvx", "fedavg:a2:gcvx",
        "mb-sgd:gcvx", "mb-ac-sgd:gcvx",
    ]  # fmt: skip


def test_without_Q_the_theorems_that_need_it_are_left_out() -> None:
    unknown = Constants(L=1.0, mu=1e-2, sigma=1.0, D0=1.0)
    assert not [c for c in plan(unknown, M=16, T=1024) if c.theorem.assumption == 2]


def test_a_choice_is_what_its_theorem_says() -> None:
    choice = plan(STRONG, M=16, T=4096)[0]
    at = {"L": 1.0, "mu": 1e-2, "sigma": 1.0, "M": 16, "K": choice.K, "T": 4096, "Psi0": 1.0}
    assert choice.step_size == theorem("fedaci:full").step_size(**at)
    assert choice.bound == theorem("fedaci:full").bound(**at)
    assert choice.rounds * choice.K == choice.T == 4096


@pytest.mark.parametrize("constants", [STRONG, CONVEX], ids=["strongly convex", "convex"])
def test_fewest_rounds_within_the_slack(constants: Constants) -> None:
    choice = plan(constants, M=64, T=2**16)[0]
    at = constants.letters | {"M": 64, "T": 2**16}
    totals = {K: choice.theorem.bound(**at, K=K).total for K in divisors(2**16)}
    best = min(totals.values())
    assert choice.bound.total <= SLACK * best
    assert all(total > SLACK * best for K, total in totals.items() if K > choice.K)


def test_the_cheapest_way_to_a_target() -> None:
    choices = plan(STRONG, M=64, target=0.01, round_cost=500.0)
    assert len(choices) == 7
    for choice in choices:
        assert choice.bound.total <= 0.01
        # One round less would not be enough.
        if choice.theorem.label == "fedaci:full":
            fewer = {"M": 64, "K": choice.K, "T": choice.T - choice.K, "Psi0": 1.0}
            assert choice.theorem.bound(L=1.0, mu=1e-2, sigma=1.0, **fewer).total > 0.01


def test_expensive_rounds_are_longer() -> None:
    cheap, expensive = (plan(STRONG, M=64, target=0.01, round_cost=cost)[0] for cost in (1.0, 1e6))
    assert expensive.rounds < cheap.rounds
    assert expensive.K > cheap.K


def test_a_target_out_of_reach_gives_no_row() -> None:
    assert plan(STRONG, M=1, target=1e-30) == []


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
    assert plan(STRONG, M=4, T=64)[0].megabytes_per_worker is None


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


def test_theorems_that_need_more_steps_than_there_are_are_left_out() -> None:
    names = [choice.theorem.label for choice in plan(CONVEX, M=4, T=64)]
    assert names == ["fedaci:a1:gcvx", "mb-sgd:gcvx", "mb-ac-sgd:gcvx"]


def test_choose_may_find_nothing() -> None:
    assert choose(lambda K, T: 1.0, T=None, target=0.5, round_cost=1.0, most_steps=64) is None
