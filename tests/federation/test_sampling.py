# SPDX-License-Identifier: Apache-2.0
"""Draws: pure functions of counters, uniform, normal and independent."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedac.federation.sampling import GOLDEN, gaussians, mix, sample_index

seeds = st.integers(0, 2**64 - 1)
counters = st.integers(0, 2**40)
sizes = st.integers(1, 2**62)


@pytest.mark.parametrize(
    ("seed", "m", "t", "n", "row"),
    [
        # Checked against SplitMix64 written with Python's unbounded integers.
        (0, 0, 0, 2**62, 1624281087606523372),
        (1, 2, 3, 32561, 26019),
        (2**64 - 1, 10**6, 2**40, 10**9, 835085721),
        (7, 0, 5, 2, 1),
        (42, 8191, 4095, 2**62, 2968541402424875520),
    ],
)
def test_golden_draws(seed: int, m: int, t: int, n: int, row: int) -> None:
    assert int(sample_index(seed, m, t, n)) == row


@settings(deadline=None)
@given(seed=seeds, m=counters, t=counters, n=sizes)
def test_pure_and_within_bounds(seed, m, t, n) -> None:
    row = int(sample_index(seed, m, t, n))
    assert row == int(sample_index(seed, m, t, n))
    assert 0 <= row < n


@settings(deadline=None)
@given(
    seed=seeds,
    workers=st.lists(counters, min_size=1, max_size=8),
    t=counters,
    n=sizes,
)
def test_many_workers_at_once_draw_as_one_by_one(seed, workers, t, n) -> None:
    together = sample_index(seed, workers, t, n)
    assert together.dtype == np.int64
    assert together.tolist() == [int(sample_index(seed, m, t, n)) for m in workers]
    across_steps = sample_index(seed, t, workers, n)
    assert across_steps.tolist() == [int(sample_index(seed, t, s, n)) for s in workers]


def test_a_single_row_is_always_drawn() -> None:
    assert not sample_index(3, np.arange(100), 7, 1).any()


def test_the_largest_population() -> None:
    rows = sample_index(3, np.arange(20_000), 0, 2**62)
    assert rows.min() >= 0
    assert rows.max() < 2**62
    # The mean of 20,000 uniform numbers, five standard deviations: probability 6e-7.
    mean = (rows / 2**62).mean()
    assert abs(mean - 1 / 2) < 5 / math.sqrt(12 * len(rows))
    assert len(np.unique(rows)) == len(rows)


@pytest.mark.parametrize(("seed", "n"), [(0, 2), (1, 7), (2**63, 123)])
def test_uniform_over_rows(seed: int, n: int) -> None:
    # Chi-square of 64,000 draws, two-sided at 1e-6: a uniform sampler fails one of these three
    # with probability below 3e-6.
    draws = sample_index(seed, np.arange(64)[:, None], np.arange(1000), n)
    p = stats.chisquare(np.bincount(draws.ravel(), minlength=n)).pvalue
    assert 5e-7 < p < 1 - 5e-7


def test_workers_do_not_follow_each_other() -> None:
    # 120 pairs of workers over 4,096 steps, |r| < 5.5/sqrt(steps): independent streams fail
    # with probability 120 * 3.8e-8 < 5e-6.
    draws = sample_index(1, np.arange(16)[:, None], np.arange(4096), 2**62).astype(float)
    r = np.corrcoef(draws)[np.triu_indices(16, 1)]
    assert np.abs(r).max() < 5.5 / math.sqrt(4096)


def test_neither_steps_nor_seeds_follow_each_other() -> None:
    # 16 lags and 15 pairs of seeds, |r| < 5.5/sqrt(steps): probability 31 * 3.8e-8 < 2e-6.
    steps = np.arange(4096)
    stream = sample_index(1, 0, steps, 2**62).astype(float)
    for lag in range(1, 17):
        assert abs(np.corrcoef(stream[lag:], stream[:-lag])[0, 1]) < 5.5 / math.sqrt(4096 - lag)
    for seed in range(2, 17):
        other = sample_index(seed, 0, steps, 2**62).astype(float)
        assert abs(np.corrcoef(stream, other)[0, 1]) < 5.5 / math.sqrt(4096)


def test_shifted_workers_are_not_shifted_steps() -> None:
    # If streams overlapped, draws of distinct (m, t) would repeat: among 250,000 draws from
    # 2^62 a birthday collision has probability 250,000^2 / 2^63 < 7e-9.
    draws = sample_index(5, np.arange(500)[:, None], np.arange(500), 2**62)
    assert len(np.unique(draws)) == draws.size


def test_the_published_splitmix64_stream_of_seed_zero() -> None:
    # The first three outputs of SplitMix64 seeded with 0, as in every published test vector.
    counters = np.arange(1, 4, dtype=np.uint64) * GOLDEN
    assert mix(counters).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_mix_does_not_collide() -> None:
    values = mix(np.arange(100_000, dtype=np.uint64))
    assert len(np.unique(values)) == len(values)


def test_golden_gaussians() -> None:
    expected = [
        [-0.7013069264063958, -0.4673746004510982, 0.6018428174778429],
        [1.3568495293845049, 0.058469687865878014, 0.39657827094975995],
        [0.19822646384989012, 0.9918265669003602, 0.10876496968452748],
    ]
    assert gaussians([0, 1, 2**62 - 1], 3) == pytest.approx(np.array(expected), rel=1e-14)


def test_a_key_has_its_numbers_whatever_else_is_asked() -> None:
    keys = np.array([5, 2**61, 5, 0])
    together = gaussians(keys, 4)
    assert np.array_equal(together[0], together[2])
    for i, key in enumerate(keys):
        assert np.array_equal(together[i], gaussians([key], 4)[0])


def test_shapes() -> None:
    for count, size in [(5, 1), (5, 2), (5, 3), (0, 3)]:
        assert gaussians(np.arange(count), size).shape == (count, size)


def test_moments() -> None:
    # 200,000 numbers N(0, 1). The k-th moment's error has standard deviation
    # sqrt(Var x^k / n), with Var x, x^2, x^3, x^4 = 1, 2, 15, 96. Five of them on either side:
    # probability 4 * 5.7e-7 < 3e-6 that a right generator fails.
    x = gaussians(np.arange(50_000), 4).ravel()
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((x**power).mean() - mean) < 5 * math.sqrt(variance / len(x)), power


def test_distribution() -> None:
    # Kolmogorov-Smirnov at level 1e-6.
    x = gaussians(np.arange(10_000), 2).ravel()
    assert stats.kstest(x, "norm").pvalue > 1e-6


def test_components_and_keys_are_uncorrelated() -> None:
    # 6 pairs of columns and 4 pairs of neighbouring keys, each |r| < 5/sqrt(n): a right
    # generator fails with probability below 10 * 5.7e-7 < 6e-6.
    x = gaussians(np.arange(40_000), 4)
    bound = 5 / math.sqrt(len(x) - 1)
    columns = np.corrcoef(x.T)[np.triu_indices(4, 1)]
    neighbours = [np.corrcoef(x[:-1, j], x[1:, j])[0, 1] for j in range(4)]
    assert np.abs([*columns, *neighbours]).max() < bound
