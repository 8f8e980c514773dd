# SPDX-License-Identifier: Apache-2.0
"""Messages on the wire: what arrives, how large it is, and that it is right on average."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedac.algorithms import get
from fedac.errors import InputError
from fedac.federation.compression import (
    WIRES,
    bytes_of,
    decode,
    encode,
    keys_of,
    require_wire,
    rounded,
)
from fedac.federation.round import compress

numbers = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@pytest.mark.parametrize("wire", WIRES)
@given(x=arrays(np.float64, st.integers(1, 700), elements=numbers), key=st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_bytes_hold_what_arrives(wire, x, key) -> None:
    data = encode(wire, x, key)
    assert data.dtype == np.uint8
    assert data.nbytes == bytes_of(wire, len(x))
    np.testing.assert_array_equal(decode(wire, data, len(x)), rounded(wire, x, key))


@given(x=arrays(np.float64, st.integers(1, 700), elements=numbers), key=st.integers(0, 2**64 - 1))
@settings(max_examples=100, deadline=None)
def test_int8_is_off_by_less_than_a_step_of_its_own_block(x, key) -> None:
    errors = np.abs(rounded("int8", x, key) - x)
    for first in range(0, len(x), 256):
        block = slice(first, first + 256)
        step = np.abs(x[block]).max() * (1 + 2e-6) / 127 + 1e-37
        assert errors[block].max() <= step
    # A code is a whole number of at most 127.
    codes = encode("int8", x, key)[4 * -(-len(x) // 256) :].view(np.int8)
    assert codes.min() >= -127


def test_int8_is_unbiased() -> None:
    # 40,000 draws a number: the mean of an error below one step is off by more than 5.5 of its
    # standard deviations, at most step / (2 sqrt(40,000)), with probability below 4e-8 a number.
    x = np.random.default_rng(1).normal(size=300)
    count = 40_000
    keys = keys_of(3, np.arange(count), 5, 0)
    total = sum(rounded("int8", np.tile(x, (1000, 1)), part).sum(axis=0)
                for part in keys.reshape(-1, 1000))  # fmt: skip
    steps = np.repeat([np.abs(x[:256]).max(), np.abs(x[256:]).max()], 256)[:300] / 127
    assert (np.abs(total / count - x) < 5.5 * steps / 2 / np.sqrt(count)).all()


def test_draws_differ_by_client_round_vector_and_coordinate() -> None:
    keys = [keys_of(seed, m, r, t) for seed in (0, 1) for m in (0, 1) for r in (0, 1)
            for t in (0, 1)]  # fmt: skip
    assert len({int(key) for key in keys}) == 16
    half = np.full(1000, 0.5)
    half[::256] = 127  # a step of 1 in every block: 0.5 goes either way
    first, second = (rounded("int8", half, key) for key in keys[:2])
    assert 400 < (first != second).sum() < 600  # 500 +- 6 standard deviations


def test_golden_bytes() -> None:
    # By SplitMix64 in Python's unbounded integers.
    mask = 2**64 - 1
    golden = 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    seed, m, r, t = 9 ^ 0xA24BAED4963EE407, 4, 2, 1
    key = mix(mix(seed + golden & mask) ^ m * golden & mask)
    key = mix(mix(key + (r + 1) * golden & mask) + (t + 1) * golden & mask)
    assert int(keys_of(9, m, r, t)) == key
    x = np.array([0.3, -1.0, 0.0])
    scale = np.float32((1 + 1e-6) / 127) + np.float32(1.2e-38)
    expected = [
        np.floor(x[j] / scale + (mix(key + (j + 1) * golden & mask) >> 11) / 2**53)
        for j in range(3)
    ]
    assert encode("int8", x, key)[4:].view(np.int8).tolist() == expected


@pytest.mark.parametrize(
    ("x", "nearest"),
    [(1.0, 1.0), (1.00390625, 1.0), (1.0078125, 1.0078125), (1.006, 1.0078125),
     (-3.1415, -3.140625)],
)  # fmt: skip
def test_bfloat16_by_hand(x, nearest) -> None:
    assert rounded("bfloat16", [x], 0)[0] == nearest


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_what_is_not_finite_arrives_as_such(wire) -> None:
    with np.errstate(invalid="ignore"):
        for bad in (np.nan, np.inf):
            data = encode(wire, [1.0, bad], 3)
            assert not np.isfinite(decode(wire, data, 2)).all()


def test_zeros_stay_zeros() -> None:
    assert not rounded("int8", np.zeros(300), 5).any()


def test_a_client_remembers_what_it_sent() -> None:
    def down(x, t):
        return np.floor(x)

    # Control variates: c is rounded as it is, and c_m moves with it.
    scaffold = get("scaffold")
    sent, memory = compress(scaffold, (2.75, 1.5), (2.5, 8.0), (4.0,), down)
    assert (sent, memory) == ((2.5, 1.0), (3.5,))
    # Scaffnew keeps its point, FedAc at home a difference that does not depend on it.
    sent, memory = compress(get("scaffnew"), (2.75,), (2.5,), (7.0, 2.75), down)
    assert (sent, memory) == ((2.5,), (7.0, 2.5))
    sent, memory = compress(get("fedac-i+local"), (2.75,), (2.5,), (7.0,), down)
    assert (sent, memory) == ((2.5,), (7.0,))


def test_unknown_formats_are_named() -> None:
    with pytest.raises(InputError, match="unknown wire format 'fp8'; known: bfloat16"):
        require_wire("fp8")
