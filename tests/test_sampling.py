import math

import numpy as np
import pytest
from scipy import stats

from fedac.federation.sampling import GOLDEN, gaussians, mix


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


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shape(size: int) -> None:
    assert gaussians(np.arange(5), size).shape == (5, size)
    assert gaussians(np.arange(0), size).shape == (0, size)


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
