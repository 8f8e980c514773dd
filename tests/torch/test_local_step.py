# SPDX-License-Identifier: Apache-2.0
"""Linear combinations of tensors: what they compute, for one tensor and for many."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.algorithms import get
from fedac.torch._local_step import combine, decayed_form, take_step

factors = st.sampled_from([0.0, 1.0, -1.0, 0.25, 0.75, 2.0]) | st.floats(1e-6, 3)


@settings(max_examples=200, deadline=None)
@given(out=st.integers(0, 3), coefficients=st.lists(factors, min_size=4, max_size=4))
def test_the_sum_is_computed_in_place(out: int, coefficients) -> None:
    values = list(
        torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    wanted = sum(c * value for c, value in zip(coefficients, values, strict=True))
    one = [[value.clone()] for value in values]
    many = [[value.clone(), 2 * value] for value in values]
    for slots in (one, many):
        combine(slots[out], zip(coefficients, slots, strict=True))
    torch.testing.assert_close(one[out][0], wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(many[out][0], one[out][0])
    assert torch.equal(many[out][1], 2 * one[out][0])
    for i in {0, 1, 2, 3} - {out}:
        assert torch.equal(one[i][0], values[i])


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["fedac-i", "fedac-ii", "gpa(0.5,0.75)", "momentum(0.9)",
                                  "fedavg-weighted", "fedac-i+cv", "fedprox(0.5)"])  # fmt: skip
def test_steps_of_one_and_of_many_tensors_are_bit_identical(name, weight_decay) -> None:
    algorithm = get(name)
    form = decayed_form(algorithm, algorithm.couple(eta=0.1, mu=0.1, K=4), weight_decay)
    S = len(form.query)
    values = torch.randn(S + 2, 9, generator=torch.Generator().manual_seed(0))
    one, many = ([[v.clone() for _ in range(n)] for v in values] for n in (1, 2))
    for *sequences, w_md, g in (one, many):
        take_step(form, sequences, w_md, g)
    for (mine,), (first, second) in zip(one, many, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(mine, first)
