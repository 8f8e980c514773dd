# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.errors import InputError
from fedac.simulation import Schedule

gap_lists = st.lists(st.integers(1, 20), min_size=1, max_size=30)


def test_every() -> None:
    schedule = Schedule.every(4, steps=12)
    assert schedule.gaps == (4, 4, 4)
    assert (schedule.K, schedule.T, schedule.rounds) == (4, 12, 3)
    assert list(schedule) == [(0, 0, 4), (1, 4, 4), (2, 8, 4)]


def test_at() -> None:
    schedule = Schedule.at([1, 4, 6])
    assert schedule.gaps == (1, 3, 2)
    assert (schedule.K, schedule.T, schedule.rounds) == (3, 6, 3)
    assert list(schedule) == [(0, 0, 1), (1, 1, 3), (2, 4, 2)]


def test_equal_gaps_are_equal_schedules() -> None:
    assert Schedule.at(range(5, 41, 5)) == Schedule.every(5, steps=40)


@pytest.mark.parametrize(
    ("every", "recorded"),
    [
        (4, {0, 4, 8, 12, 16, 20}),
        (1, {0, 4, 8, 12, 16, 20}),
        # 6 is passed in the round that ends at 8, 12 is a synchronization, 18 is passed at 20
        (6, {0, 8, 12, 20}),
        (8, {0, 8, 16, 20}),
        (1000, {0, 20}),
    ],
)
def test_records(every: int, recorded: set[int]) -> None:
    assert Schedule.every(4, steps=20).records(every) == recorded


def test_records_of_irregular_rounds() -> None:
    # ends 1, 4, 11, 12; multiples of 5: 5 and 10 are both passed at 11
    assert Schedule.at([1, 4, 11, 12]).records(5) == {0, 11, 12}


@settings(deadline=None)
@given(gaps=gap_lists, every=st.integers(1, 100))
def test_records_are_synchronizations_at_most_every_and_a_round_apart(gaps, every) -> None:
    schedule = Schedule(tuple(gaps))
    records = schedule.records(every)
    assert {0, schedule.T} <= records <= {0, *(t + gap for _, t, gap in schedule)}
    assert np.diff(sorted(records)).max() < every + schedule.K


@settings(deadline=None)
@given(gaps=gap_lists)
def test_rounds_tile_the_run(gaps) -> None:
    schedule = Schedule(tuple(gaps))
    steps = [step for _, t, gap in schedule for step in range(t, t + gap)]
    assert steps == list(range(schedule.T))
    assert Schedule.at(np.cumsum(gaps).tolist()) == schedule


@pytest.mark.parametrize(
    ("K", "steps", "advice"),
    [(3, 10, r"Use T=9 or T=12$"), (8, 5, r"Use T=8$"), (64, 4097, r"Use T=4096 or T=4160$")],
)
def test_K_that_does_not_divide_T(K: int, steps: int, advice: str) -> None:
    with pytest.raises(InputError, match=rf"K={K} does not divide T={steps}.*{advice}"):
        Schedule.every(K, steps=steps)


@pytest.mark.parametrize("value", [0, -1, 2.0, 2.5, "2", None, True])
def test_counts_are_whole_numbers_from_one(value: object) -> None:
    with pytest.raises(InputError, match=r"K \(local steps\) must be a whole number, at least 1"):
        Schedule.every(value, steps=4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"T \(steps\) must be a whole number, at least 1"):
        Schedule.every(2, steps=value)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"record_every must be a whole number, at least 1"):
        Schedule.every(2, steps=4).records(value)  # type: ignore[arg-type]


def test_numpy_integers_are_whole_numbers() -> None:
    assert Schedule.every(np.int64(2), steps=np.int32(4)) == Schedule.every(2, steps=4)


@pytest.mark.parametrize("times", [[0, 2], [3, 3], [4, 2], [-1]])
def test_synchronizations_must_ascend_from_one(times: list[int]) -> None:
    with pytest.raises(InputError, match="ascending whole step counts from 1 on"):
        Schedule.at(times)


def test_a_schedule_has_rounds() -> None:
    with pytest.raises(InputError, match="at least one round"):
        Schedule(())
    with pytest.raises(InputError, match="at least one round"):
        Schedule.at([])
    for gaps in [(0,), (2, 0), (-1,), (1.5,)]:
        with pytest.raises(InputError, match="a round's length must be a whole number, at least 1"):
            Schedule(gaps)


def test_synchronizations_are_whole_numbers() -> None:
    with pytest.raises(InputError, match="whole step counts"):
        Schedule.at([1.5, 3])  # type: ignore[list-item]
