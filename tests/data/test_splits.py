# SPDX-License-Identifier: Apache-2.0
"""Splits: every row has one owner, every client a row, and the shares are those that were asked."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, kstest

from fedac.data import Dataset, split
from fedac.data.splits import check_split, is_split
from fedac.errors import InputError
from fedac.objectives import LogisticRegression, NoisyQuadratic

SPECS = ["iid", "label", "dirichlet(0.1)", "dirichlet(1)", "dirichlet(100)", "power(0)", "power(1)"]
EXTREMES = [
    *("dirichlet(5e-324)", "dirichlet(1e-9)", "dirichlet(1e300)", "dirichlet(1.7e308)"),
    *("power(1e-300)", "power(50)", "power(1e308)"),
]


def assert_sound(clients, n, N):
    """Every row has one owner and every client a row, and all accounts of it agree."""
    assert len(clients) == N
    assert sorted(clients.rows.tolist()) == list(range(n))
    assert clients.bounds[0] == 0
    assert clients.bounds[-1] == n
    assert clients.sizes.min() >= 1
    for m in range(N):
        rows = clients.rows_of(m)
        assert (np.diff(rows) > 0).all()
        assert (clients.owners[rows] == m).all()


@pytest.mark.parametrize("by", SPECS + EXTREMES)
def test_every_split_of_every_shape(by):
    for n, N in [(1, 1), (7, 1), (7, 7), (10, 3), (1000, 7), (1000, 999)]:
        for kinds in (1, 2, 10):
            labels = np.arange(n) % kinds
            clients = split(labels, clients=N, by=by, seed=3)
            assert_sound(clients, n, N)
            assert clients.how == by
            assert clients.labels is labels


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_labels_and_numbers(data):
    kind = data.draw(st.sampled_from([st.integers(-2, 2), st.sampled_from("abc"), st.booleans()]))
    labels = data.draw(st.lists(kind, min_size=1, max_size=40))
    N = data.draw(st.integers(1, len(labels)))
    a = data.draw(st.floats(0, 1e300, exclude_min=True))
    by = data.draw(st.sampled_from(["iid", "label", f"dirichlet({a!r})", f"power({a!r})"]))
    seed = data.draw(st.integers(0, 2**64))
    clients = split(labels, N, by, seed)
    assert_sound(clients, len(labels), N)
    assert split(labels, N, by, seed).fingerprint() == clients.fingerprint()


@pytest.mark.parametrize("by", SPECS)
def test_the_seed_decides(by):
    labels = np.arange(1000) % 2
    prints = [split(labels, 10, by, seed).fingerprint() for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("by", ["iid", "label"])
def test_equal_parts_differ_by_one_row_at_most(by):
    clients = split(np.arange(1000) % 3, 7, by)
    assert set(clients.sizes.tolist()) == {142, 143}


def test_by_label_a_client_has_one_label_or_two_neighbours():
    labels = np.random.default_rng(0).permutation(np.repeat(list("dacb"), 25))
    held = [labels[split(labels, 8, "label").rows_of(m)] for m in range(8)]
    assert "".join(held[0]) == "a" * 13
    firsts_and_lasts = [(min(own), max(own)) for own in held]
    assert all(last <= first for (_, last), (first, _) in pairwise(firsts_and_lasts))


def test_power_gives_one_row_each_and_the_rest_in_proportion():
    # 22 rows beyond the first ones, in proportion to 1, 1/2 and 1/3: 12, 6 and 4.
    assert split(np.ones(25), 3, "power(1)").sizes.tolist() == [13, 7, 5]
    # In proportion to 1, 1/4 and 1/9: 16.16, 4.04 and 1.80.
    assert split(np.ones(25), 3, "power(2)").sizes.tolist() == [17, 5, 3]
    assert split(np.ones(25), 3, "power(1e308)").sizes.tolist() == [23, 1, 1]


def test_iid_rows_are_not_in_order():
    """A client of 500 of 1000 rows has between 200 and 300 of the first half, but for 1e-9."""
    owned = split(np.ones(1000), 2).rows_of(0)
    assert 200 < (owned < 500).sum() < 300


@pytest.mark.parametrize("a", [0.05, 0.5, 5.0])
def test_dirichlet_shares_have_the_right_mean_and_variance(a):
    """A share of a symmetric Dirichlet distribution of N clients is Beta(a, a (N - 1)).

    Bounds of four standard errors: each fails with probability 6e-5 for another seed.
    """
    N, kinds, rows = 5, 400, 500
    held = split(np.repeat(np.arange(kinds), rows), N, f"dirichlet({a})", seed=1).count_labels()
    shares = np.array([counts[0] for counts in held.values()]) / rows
    mean, variance, _, kurtosis = beta(a, a * (N - 1)).stats("mvsk")
    assert mean == pytest.approx(1 / N)
    assert shares.mean() == pytest.approx(mean, abs=4 * math.sqrt(variance / kinds))
    # The variance of a sample's variance is (mu_4 - sigma^4) / kinds, and mu_4 = (3 + k) sigma^4.
    assert shares.var() == pytest.approx(variance, rel=4 * math.sqrt((2 + kurtosis) / kinds))


@pytest.mark.parametrize("a", [1.0, 4.0])
def test_dirichlet_shares_of_two_clients_follow_the_beta_distribution(a):
    """Kolmogorov and Smirnov's test: it fails with probability 1e-4 for another seed."""
    labels = np.repeat(np.arange(400), 1000)
    held = split(labels, 2, f"dirichlet({a})", seed=5).count_labels()
    shares = np.array([counts[0] for counts in held.values()]) / 1000
    assert kstest(shares, beta(a, a).cdf).pvalue > 1e-4


def test_a_large_dirichlet_parameter_gives_equal_shares():
    held = split(np.arange(1000) % 2, 10, "dirichlet(1e9)").count_labels()
    assert {rows for label in held.values() for rows in label.tolist()} == {50}


def test_a_tiny_dirichlet_parameter_gives_a_label_to_one_client():
    clients = split(np.arange(1000) % 2, 10, "dirichlet(1e-6)", seed=1)
    # Two clients hold a label each, but for the single rows of the eight others.
    assert sorted(clients.sizes.tolist()) == [1] * 8 + [496, 496]
    biggest = np.argsort(clients.sizes)[-2:]
    assert {len(set(clients.labels[clients.rows_of(m)])) for m in biggest} == {1}


def test_rows_for_the_poor_come_from_the_rich():
    """One label, so that a client holds all rows before the nine others get one each."""
    assert sorted(split(np.ones(100), 10, "dirichlet(1e-9)").sizes.tolist()) == [1] * 9 + [91]
    gifts = [split(np.ones(100), 10, "dirichlet(1e-9)", seed) for seed in range(20)]
    given = {row for one in gifts for m in np.flatnonzero(one.sizes == 1) for row in one.rows_of(m)}
    assert len(given) > 50  # any row may be given, of 180 gifts


@pytest.mark.slow
@pytest.mark.parametrize("by", ["iid", "label", "dirichlet(1e-9)", "dirichlet(0.1)", "power(1)"])
def test_a_hundred_thousand_clients(by):
    """Takes about 0.5 s; a loop over clients that looks at all rows would take minutes."""
    labels = np.random.default_rng(0).choice([-1.0, 1.0], 10**6)
    assert split(labels, 100_000, by).sizes.min() >= 1


def test_what_has_labels_can_be_split():
    X, y = np.eye(6), np.array([1.0, -1, 1, -1, 1, 1])
    expected = split(y, 2, "label").fingerprint()
    assert split(Dataset("six", X, y), 2, "label").fingerprint() == expected
    assert split(LogisticRegression(X, y), 2, "label").fingerprint() == expected
    assert split(y.tolist(), 2, "label").fingerprint() == expected


def test_an_array_names_the_clients():
    clients = split([1, 1, -1], by=["b", "a", "b"])
    assert clients.names == ("a", "b")
    assert clients.count_labels()["1"].tolist() == [1, 1]
    assert split([1, 1, -1], clients=2, by=["b", "a", "b"]).sizes.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        ({"clients": 7}, "7 clients need at least 7 rows, one for each; there are 6"),
        ({"clients": 0}, "clients must be a whole number, at least 1, got 0"),
        ({"clients": 2.5}, "clients must be a whole number"),
        ({"clients": True}, "clients must be a whole number"),
        ({}, "clients is missing: give the number of clients"),
        ({"clients": 2, "seed": -1}, "seed of the split must be a whole number, at least 0"),
        ({"clients": 2, "seed": 0.5}, "seed of the split must be"),
        ({"clients": 2, "by": "lable"}, "unknown split 'lable'; did you mean 'label'?"),
        ({"clients": 2, "by": "dirichlet"}, r"did you mean 'dirichlet\(a\)'"),
        ({"clients": 2, "by": "iid(3)"}, "unknown split 'iid.3.'; did you mean 'iid'"),
        ({"clients": 2, "by": ""}, "unknown split ''"),
        ({"clients": 2, "by": "dirichlet()"}, "split 'dirichlet..': '' is not a number"),
        ({"clients": 2, "by": "dirichlet(a)"}, "'a' is not a number"),
        ({"clients": 2, "by": "dirichlet(1,2)"}, "'1,2' is not a number"),
        ({"clients": 2, "by": "dirichlet(0)"}, "must be a finite number above 0, got 0.0"),
        ({"clients": 2, "by": "dirichlet(-1)"}, "must be a finite number above 0, got -1.0"),
        ({"clients": 2, "by": "dirichlet(nan)"}, "must be a finite number above 0, got nan"),
        ({"clients": 2, "by": "power(-1)"}, "must be a finite number, at least 0, got -1.0"),
        ({"clients": 2, "by": "power(inf)"}, "must be a finite number, at least 0, got inf"),
        ({"by": [1, 2]}, "2 rows have clients, but 6 have labels"),
        ({"clients": 4, "by": [0, 0, 1, 1, 2, 2]}, "clients=4 contradicts by, which names 3"),
    ],
)
def test_bad_arguments(arguments, saying):
    with pytest.raises(InputError, match=saying) as caught:
        split([1, -1, 1, -1, 1, -1], **arguments)
    assert "\n" not in str(caught.value)


def test_a_file_of_names_is_read_by_the_advice_as_printed(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("new york\noslo\nnew york\n")
    with pytest.raises(InputError, match=f"unknown split '{file}'") as caught:
        split([1, -1, 1], by=str(file))
    advice = str(caught.value).partition("to read a file: ")[2]
    clients = eval(f"split([1, -1, 1], {advice})", {"split": split, "Path": Path})
    assert (clients.names, clients.sizes.tolist()) == (("new york", "oslo"), [2, 1])


@pytest.mark.parametrize(
    "data", [np.eye(3), 5, [], [1.0, np.nan], [None, 1], NoisyQuadratic([1.0])]
)
def test_data_without_labels(data):
    with pytest.raises(InputError, match="the labels to split"):
        split(data, 2)


def test_numbers_to_predict_are_grouped_for_dirichlet():
    targets = np.linspace(0, 1, 20_000)
    with pytest.raises(InputError, match="10000 clients and 20000 labels are too many"):
        split(np.arange(20_000), 10_000, "dirichlet(1)")
    assert len(split(targets, 10_000, "dirichlet(1)").count_labels()) == 10
    assert_sound(split(targets[:50], 10, "dirichlet(1)"), 50, 10)
    assert len(split(targets, 10_000, "label")) == 10_000


def test_spaces_around_a_spec():
    expected = split([1, 2, 3, 4], 2, "dirichlet(0.5)").fingerprint()
    assert split([1, 2, 3, 4], 2, " dirichlet( 0.5 ) ").fingerprint() == expected


def test_what_counts_as_a_split():
    assert all(map(is_split, SPECS))
    assert is_split("dirichlet(wrong)")
    assert not any(map(is_split, ["names.txt", "./iid", "dirichlet", "data(1).csv", ""]))
    assert check_split(5, "power(2)", 0)[1:] == (2.0, 5)
