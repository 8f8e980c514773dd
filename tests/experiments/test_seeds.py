# SPDX-License-Identifier: Apache-2.0
"""Summaries over seeds, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from fedac.errors import InputError
from fedac.experiments.summary import Band, over_seeds

INF = math.inf


def test_median_and_range():
    assert over_seeds([6.0, 1.0, 2.0]) == Band(2.0, 1.0, 6.0)
    assert over_seeds([8.0, 1.0, 4.0, 2.0], "range") == Band(3.0, 1.0, 8.0)


def test_median_and_quartiles():
    # Places 0.75 and 2.25 between the four values: 1 + 3/4 and 4 + 4/4.
    assert over_seeds([8.0, 1.0, 4.0, 2.0], "quartiles") == Band(3.0, 1.75, 5.0)
    assert over_seeds([1.0, 2.0, 3.0, 4.0, 50.0], "quartiles") == Band(3.0, 2.0, 4.0)


def test_mean_and_confidence_interval():
    # The deviations from 3 are -2, -1, 0 and 3: variance 14/3. t(0.975; 3) = 3.182446.
    half = 3.182446305284263 * math.sqrt(14 / 3) / 2
    assert over_seeds([1.0, 2.0, 3.0, 6.0], "confidence") == pytest.approx((3, 3 - half, 3 + half))
    # Two seeds: t(0.975; 1) = 12.706205, and the deviations are 1/2 each.
    half = 12.706204736432095 / 2
    assert over_seeds([1.0, 2.0], "confidence") == pytest.approx((1.5, 1.5 - half, 1.5 + half))


@pytest.mark.parametrize("band", ["range", "quartiles", "confidence"])
def test_one_seed_is_a_band_of_no_width(band):
    assert over_seeds([0.3], band) == Band(0.3, 0.3, 0.3)
    assert over_seeds([INF], band) == Band(INF, INF, INF)


def test_diverged_seeds_are_infinite():
    assert over_seeds([0.1, INF, INF]) == Band(INF, 0.1, INF)
    assert over_seeds([0.1, 0.2, INF]) == Band(0.2, 0.1, INF)
    # The lower quartile of five is the second value, whatever lies above it.
    assert over_seeds([0.1, 0.2, INF, INF, INF], "quartiles") == Band(INF, 0.2, INF)
    assert over_seeds([0.1, 0.2, 0.3, 0.4, INF], "quartiles") == Band(0.3, 0.2, 0.4)
    assert over_seeds([0.1, INF], "quartiles") == Band(INF, INF, INF)
    assert over_seeds([0.1, 0.2, INF], "confidence") == Band(INF, INF, INF)


def test_a_missing_seed_leaves_no_summary():
    assert all(map(math.isnan, over_seeds([0.1, math.nan], "quartiles")))


def test_an_unknown_band():
    with pytest.raises(InputError, match="unknown band 'iqr'; known: confidence, quartiles, range"):
        over_seeds([1.0], "iqr")
