# SPDX-License-Identifier: Apache-2.0
"""The vector type: every operation against NumPy, in both precisions."""

import numpy as np
import pytest
from numba import njit

from fedac.simulation.engines.linear.kernels import simd
from fedac.simulation.engines.linear.kernels.simd import (
    Template,
    aligned,
    load,
    multiply_add,
    splat,
    store,
    sum_tiles,
    tile,
)

LANES = 4
precisions = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@njit
def exp_of(lanes, x, out):
    for place in range(0, x.size, len(lanes)):
        store(out, place, simd.exp(load(lanes, x, place)))


@njit
def arithmetic(lanes, x, y, out):
    """Write the results of all elementwise operations, one after the other."""
    n = len(lanes)
    a, b = load(lanes, x, 0), load(lanes, y, 0)
    store(out, 0, a + b)
    store(out, n, a - b)
    store(out, 2 * n, a * b)
    store(out, 3 * n, a / b)
    store(out, 4 * n, a + 2.0)
    store(out, 5 * n, 2.0 - a)
    store(out, 6 * n, a * 3)
    store(out, 7 * n, 1.0 / a)
    store(out, 8 * n, simd.minimum(a, b))
    store(out, 9 * n, simd.maximum(a, b))
    store(out, 10 * n, multiply_add(a, b, a))
    store(out, 11 * n, splat(a, 0.1))
    store(out, 12 * n, splat(lanes, 7))
    store(out, 13 * n, -a)
    store(out, 14 * n, abs(a))


@njit
def shapes(lanes, sequences, x, out):
    """Repeat a short vector, add up the parts of a long one, read and write single lanes."""
    short, long = load(lanes, x, 0), load(sequences, x, 0)
    simd.prefetch(x, np.uint64(0))
    store(out, 0, tile(sequences, short))
    store(out, len(sequences), sum_tiles(lanes, long))
    reversed_ = short
    for lane in range(len(short)):
        reversed_ = simd.insert(reversed_, len(short) - 1 - lane, simd.extract(short, lane))
    store(out, len(sequences) + len(lanes), reversed_)
    return len(long)


def exp(x: np.ndarray) -> np.ndarray:
    """Compute exp by our vectors, whatever the length of x."""
    padded = aligned((-(-len(x) // LANES) * LANES,), x.dtype)
    padded[: len(x)] = x
    out = np.empty_like(padded)
    exp_of(Template(x.dtype, LANES), padded, out)
    return out[: len(x)]


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [(np.float32, 87.0), (np.float64, 1.0), pytest.param(np.float64, 708.0)],
)
def test_exp_is_exact_to_the_last_digits(dtype, largest: float) -> None:
    rng = np.random.default_rng(0)
    halves = (np.arange(-1020, 1021) + 0.5) * np.log(2)  # where the range reduction switches
    x = np.concatenate(
        [
            np.linspace(-largest, largest, 100_001),
            rng.uniform(-1, 1, 100_001),
            rng.uniform(-1e-6, 1e-6, 10_001),
            halves[np.abs(halves) < largest],
            [0.0, -0.0, 1.0, -1.0, largest, -largest],
        ]
    ).astype(dtype)
    got = exp(x)
    assert got.dtype == dtype
    exact = np.exp(x.astype(np.longdouble))
    ulp = np.spacing(exact.astype(dtype)).astype(np.longdouble)
    assert np.abs((got - exact) / ulp).max() < 3.0
    assert (got[x == 0] == 1.0).all()


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, 87.0), (np.float64, 708.0)])
def test_exp_stays_finite_and_positive_at_any_argument(dtype, largest: float) -> None:
    most = np.finfo(dtype).max
    x = np.array([largest + 0.01, 1e4, most, np.inf, -largest - 0.01, -1e4, -most, -np.inf], dtype)
    got = exp(x)
    bounds = np.exp(np.array([largest, -largest], dtype=dtype))
    assert np.isfinite(got).all()
    assert got[:4] == pytest.approx(np.full(4, bounds[0]), rel=1e-6, abs=0)
    assert got[4:] == pytest.approx(np.full(4, bounds[1]), rel=1e-6, abs=0)


@precisions
def test_exp_rises(dtype) -> None:
    x = np.linspace(-20, 20, 40_001).astype(dtype)
    assert (np.diff(exp(x)) > 0).all()


@precisions
def test_arithmetic(dtype) -> None:
    a = np.array([1.5, -2.25, 1e-3, 3e7], dtype)
    b = np.array([0.3, 7.0, -1e-3, 3e6], dtype)
    out = np.empty(15 * LANES, dtype)
    arithmetic(Template(dtype, LANES), a, b, out)
    two, three = dtype(2), dtype(3)
    # The exact product of two floats fits a longer format; then one rounding.
    fused = (a.astype(np.longdouble) * b + a).astype(dtype)
    expected = [a + b, a - b, a * b, a / b, a + two, two - a, a * three, dtype(1) / a]
    expected += [np.minimum(a, b), np.maximum(a, b), fused]
    expected += [np.full(LANES, 0.1, dtype), np.full(LANES, 7, dtype), -a, abs(a)]
    got = out.reshape(15, LANES)
    for place, values in enumerate(expected):
        if place == 10 and dtype is np.float64:
            assert got[place] == pytest.approx(values, rel=1e-15)
        else:
            assert got[place].tolist() == values.tolist(), place


def test_multiply_add_rounds_once() -> None:
    # (1 + e)^2 - (1 + 2 e) is e^2, which two roundings would lose.
    e = 2.0**-40
    x = np.full(LANES, 1 + e)

    @njit
    def residual(lanes, x, out):
        a = load(lanes, x, 0)
        store(out, 0, multiply_add(a, a, splat(a, -1 - 2 * 2.0**-40)))

    out = np.empty(LANES)
    residual(Template(np.float64, LANES), x, out)
    assert out.tolist() == [e * e] * LANES


@precisions
def test_shapes(dtype) -> None:
    x = np.arange(1.0, 1 + 2 * LANES).astype(dtype)
    out = np.zeros(4 * LANES, dtype)
    assert shapes(Template(dtype, LANES), Template(dtype, 2 * LANES), x, out) == 2 * LANES
    assert out[: 2 * LANES].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert out[2 * LANES : 3 * LANES].tolist() == [1 + 5, 2 + 6, 3 + 7, 4 + 8]
    assert out[3 * LANES :].tolist() == [4, 3, 2, 1]


def test_vectors_need_no_alignment() -> None:
    x = np.arange(3 * LANES + 1.0)[1:]
    assert x.ctypes.data % 64
    out = np.zeros(3 * LANES + 1)[1:]
    exp_of(Template(np.float64, LANES), x, out)
    assert out == pytest.approx(np.exp(x), rel=1e-15)


@precisions
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 8), (1000, 3)])
def test_aligned(dtype, shape: tuple[int, ...]) -> None:
    array = aligned(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.ctypes.data % 64 == 0 or not array.size
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert not array.any()


@precisions
def test_a_template_gives_precision_and_lanes(dtype) -> None:
    assert len(Template(dtype, 3)) == 3
    # Equal templates are of one type: a kernel is compiled once for them.
    shapes(
        Template(dtype, LANES), Template(dtype, 2 * LANES), np.zeros(8, dtype), np.zeros(16, dtype)
    )
    before = len(shapes.signatures)
    shapes(
        Template(dtype, LANES), Template(dtype, 2 * LANES), np.ones(8, dtype), np.ones(16, dtype)
    )
    assert len(shapes.signatures) == before
