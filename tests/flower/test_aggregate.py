# SPDX-License-Identifier: Apache-2.0
"""The rules that combine replies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from fedac.flower._server.aggregate import RULES, Aggregation, clip

LARGEST = 1e150
FLOATS = st.floats(-LARGEST, LARGEST)
REPLIES = st.integers(1, 6).flatmap(
    lambda n: st.lists(hnp.arrays(np.float64, 3, elements=FLOATS), min_size=n, max_size=n)
)


def as_replies(arrays):
    return [{"w": array} for array in arrays]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@given(arrays=REPLIES)
@example(arrays=[np.full(3, LARGEST)] * 6)
@example(arrays=[np.full(3, -LARGEST)] * 3)
def test_finite_replies_give_a_finite_state_between_them(rule, arrays):
    before = {"w": arrays[0]}
    trim = 0.3 if rule == "trimmed-mean" else None
    state = Aggregation(rule=rule, trim=trim)(as_replies(arrays), before)["w"]
    assert np.isfinite(state).all()
    slack = 1e-12 * np.max(np.abs(arrays), axis=0) + 1e-300
    assert (state >= np.min(arrays, axis=0) - slack).all()
    assert (state <= np.max(arrays, axis=0) + slack).all()


@given(arrays=REPLIES, order=st.randoms())
def test_the_order_of_replies_does_not_matter(arrays, order):
    shuffled = list(arrays)
    order.shuffle(shuffled)
    for rule in ("median", "trimmed-mean"):
        one = Aggregation(rule=rule)(as_replies(arrays), {"w": np.zeros(3)})["w"]
        other = Aggregation(rule=rule)(as_replies(shuffled), {"w": np.zeros(3)})["w"]
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("weights", [[1, 1, 2], [1e150, 1e150, 2e150], [1e-150, 1e-150, 2e-150]])
def test_weights_are_relative(weights):
    replies = as_replies([np.array([0.0]), np.array([4.0]), np.array([8.0])])
    state = Aggregation()(replies, {"w": np.zeros(1)}, weights)["w"]
    assert state == pytest.approx(5.0)


def test_clipping_scales_all_sequences_of_a_client_by_one_factor():
    reply = {"w_ag/0": np.array([3.0, 0.0]), "w/0": np.array([0.0, 4.0])}
    before = {key: np.zeros(2) for key in reply}
    (clipped,) = clip([reply], before, bound=2.5)
    np.testing.assert_allclose(clipped["w_ag/0"], [1.5, 0.0])
    np.testing.assert_allclose(clipped["w/0"], [0.0, 2.0])


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_the_median_tolerates_a_minority(bad):
    rng = np.random.default_rng(0)
    honest = [rng.normal(size=4) for _ in range(7 - bad)]
    liars = [np.full(4, 1e30) for _ in range(bad)]
    state = Aggregation(rule="median")(as_replies(honest + liars), {"w": np.zeros(4)})["w"]
    assert (state <= np.max(honest, axis=0)).all()
