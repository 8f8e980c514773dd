# SPDX-License-Identifier: Apache-2.0
"""Shards: every group is in one part, and all parts take about the same time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedac.errors import InputError
from fedac.experiments import sweep
from fedac.experiments.grid import make_grid
from fedac.experiments.merge import Shard


def test_parse():
    assert Shard.parse("3/16") == Shard(part=3, of=16)
    assert Shard.parse("1/1") == Shard(1, 1)
    assert str(Shard(3, 16)) == "3/16"


@pytest.mark.parametrize(
    "text", ["a/b", "3", "", "3/", "/4", "-1/4", "1.0/4", "1/2/3", " 1/4", "1/٤"]
)
def test_what_is_no_shard(text):
    with pytest.raises(InputError, match=r"a part and the number of parts, as in 3/16, not '"):
        Shard.parse(text)


@pytest.mark.parametrize("text", ["0/4", "5/4"])
def test_parts_that_do_not_exist(text):
    with pytest.raises(InputError, match=f"no shard {text}: the parts of 4 are 1/4 to 4/4"):
        Shard.parse(text)


def test_at_least_one_part():
    with pytest.raises(InputError, match="no shard 1/0: give at least one part, as 1/1"):
        Shard.parse("1/0")


@given(st.lists(st.floats(0, 1e4)), st.integers(1, 20))
def test_each_group_is_in_one_part_and_parts_are_balanced(seconds, of):
    groups = list(enumerate(seconds))
    parts = [Shard(part, of).select(groups, lambda group: group[1]) for part in range(1, of + 1)]
    assert sorted(group for part in parts for group in part) == groups
    assert all(part == sorted(part) for part in parts)  # as in the grid
    loads = [sum(time for _, time in part) for part in parts]
    assert max(loads) - min(loads) <= max(seconds, default=0) + 1e-6 * (len(seconds) + 1)


@given(st.lists(st.floats(1e-2, 1e4), max_size=30), st.integers(1, 5))
def test_another_rounding_of_the_last_bit_changes_nothing(seconds, of):
    exact = list(enumerate(round(time, 4) for time in seconds))
    places = dict(exact)
    for part in range(1, of + 1):
        one = Shard(part, of).select(exact, lambda group: group[1])
        other = Shard(part, of).select(exact, lambda group: places[group[0]] * (1 + 2**-52))
        assert one == other


@pytest.mark.parametrize("of", [1, 3, 16, 100])
def test_a_grid(of):
    grid = make_grid(
        name="tiny", dataset="synthetic", l2=1e-2, algorithms=("fedac-i", "mb-sgd"),
        workers=(4, 64, 1024), local_steps=(1, 8), steps=16, eta=(0.1, 0.5), seeds=(1, 2, 3),
    )  # fmt: skip
    task, groups = sweep.prepare(grid)
    parts = [Shard(part, of).select(groups, task.seconds) for part in range(1, of + 1)]
    assert sum(map(len, parts)) == len(groups) == 18
    assert {group for part in parts for group in part} == set(groups)
    assert [len(part) for part in parts].count(0) == max(0, of - 18)
