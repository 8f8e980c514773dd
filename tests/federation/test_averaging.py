# SPDX-License-Identifier: Apache-2.0
"""Weighted means of arrays and of metrics."""

import numpy as np
import pytest

from fedac.federation.round import mean_by_key, weighted_mean


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_mean_has_the_type_of_its_values_and_is_summed_in_float64(dtype) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 3)).astype(dtype)
    weights = rng.integers(1, 100, size=50).tolist()
    mean = weighted_mean(list(values), weights)
    wanted = np.average(values.astype(np.float64), axis=0, weights=weights)
    assert mean.dtype == dtype
    np.testing.assert_allclose(mean, wanted, rtol=2 * np.finfo(dtype).eps)


def test_one_value_is_its_own_mean_to_the_bit() -> None:
    value = np.array([0.1, 1 / 3, -7e22])
    assert np.array_equal(weighted_mean([value], [17]), value)


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        weighted_mean([np.ones(2), np.ones(2)], [1.0])


def test_a_key_is_averaged_over_those_who_have_it() -> None:
    means = mean_by_key([{"a": 1.0}, {"b": np.float32([2, 4])}, {"a": 4.0, "b": [0, 0]}], [1, 1, 2])
    assert means["a"] == 3.0
    assert means["a"].dtype == np.float64
    assert means["b"].tolist() == pytest.approx([2 / 3, 4 / 3])
