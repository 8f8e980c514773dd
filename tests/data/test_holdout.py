# SPDX-License-Identifier: Apache-2.0
"""Test sets: which rows are held out, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedac.cli import main
from fedac.data import Clients, Dataset, load, split
from fedac.data.registry import hold_out, hold_out_clients, load_with_test
from fedac.errors import InputError

HELD_OUT = (0, 0x7E57)  # the seed of held-out rows, which never changes
rng = np.random.default_rng(0)
DATA = Dataset("small", rng.standard_normal((50, 3)), rng.choice([-1.0, 1.0], 50))


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.98])
def test_every_row_is_trained_on_or_tested_on(share):
    train, test = hold_out(DATA, share)
    assert test.n_samples == round(50 * share)
    rows = {tuple(row): y for part in (train, test) for row, y in zip(part.X, part.y, strict=True)}
    assert rows == {tuple(row): y for row, y in zip(DATA.X, DATA.y, strict=True)}


def test_the_same_rows_every_time():
    first, again = hold_out(DATA, 0.2), hold_out(DATA, 0.2)
    np.testing.assert_array_equal(first[1].X, again[1].X)
    # A larger share holds out the same rows and more.
    larger = {tuple(row) for row in hold_out(DATA, 0.4)[1].X}
    assert {tuple(row) for row in first[1].X} < larger


def test_held_out_rows_never_change():
    train, test = hold_out(Dataset("ten", np.arange(10.0)[:, None], np.ones(10)), 0.3)
    assert (train.name, test.name) == ("ten, 70% of its rows", "30% of ten")
    assert train.X.ravel().tolist() == [0, 1, 2, 4, 5, 7, 9]
    assert test.X.ravel().tolist() == [3, 6, 8]


@pytest.mark.parametrize("by", ["iid", "dirichlet(0.3)", "label"])
def test_a_split_and_its_test_set_are_independent(by):
    # With one seed for both, i.i.d. clients lost all of their rows or none.
    data = load("digits")
    data = replace(data, clients=split(data, clients=50, by=by))  # at least 4 rows each
    train, _ = hold_out(data, 0.2)
    assert len(train.clients) == 50
    left = train.clients.sizes / data.clients.sizes
    assert abs(left.mean() - 0.8) < 0.04  # five standard deviations


def test_sparse_rows_stay_sparse():
    train, test = load_with_test("a9a", 0.25)
    assert test is not None
    assert train.n_samples + test.n_samples == load("a9a").n_samples
    assert (train.name, test.name) == ("a9a, 75% of its rows", "25% of a9a")
    assert train.X.format == test.X.format == "csr"


def test_no_rows_are_left():
    for share in (0.005, 0.995):
        with pytest.raises(InputError, match=f"a share of {share} of 50 rows leaves none to train"):
            hold_out(DATA, share)


@pytest.mark.parametrize("text", ["0", "1", "1.5", "-0.2", "nan", "inf", "20"])
def test_bad_shares(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--test", text])
    assert f"must be between 0 and 1, got {text}" in capsys.readouterr().err


def test_clients_named_line_by_line_cannot_be_held_out(tmp_path, capsys):
    users = tmp_path / "users.txt"
    users.write_text("a\n")
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--test", "0.2", "--split", str(users)])
    assert "users.txt' names the clients of all rows" in capsys.readouterr().err


def test_labels_that_contradict_the_data_are_refused(tmp_path):
    train, test = tmp_path / "train", tmp_path / "test"
    train.write_text("1 1:1\n2 1:2\n")
    test.write_text("-1 1:1\n1 1:2\n")
    with pytest.raises(InputError, match=r"label -1.0 is not one of .* 1, 2"):
        load_with_test(str(train), str(test))
    assert load_with_test(str(train), str(train))[1].y.tolist() == [-1.0, 1.0]


def test_held_out_clients():
    owners = [9, 10, 9, 100, 2, 10, 2, 100, 9, 30]
    data = Dataset("ten", np.arange(10.0)[:, None], np.ones(10), clients=Clients(owners))
    train, test = hold_out_clients(data, 0.4)
    # As in test_held_out_rows_never_change, here clients 2 and 4 of 2, 9, 10, 30, 100.
    assert test.clients.names == ("10", "100")
    assert train.clients.names == ("2", "9", "30")
    assert test.X.ravel().tolist() == [1, 3, 5, 7]
    assert train.X.ravel().tolist() == [0, 2, 4, 6, 8, 9]
    assert train.clients.owners.tolist() == [1, 1, 0, 0, 1, 2]
    assert (train.name, test.name) == ("ten, 60% of its clients", "40% of the clients of ten")
    with pytest.raises(InputError, match="six has no clients to hold out"):
        hold_out_clients(Dataset("six", np.eye(6), np.ones(6)), 0.4)


def test_training_clients_set_the_scale():
    owners = rng.integers(0, 5, 50)
    train, test = load_with_test(DATA, test_clients=0.4, clients=owners, standardize=True)
    np.testing.assert_allclose(train.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(train.X.std(axis=0), 1)
    held_out = np.isin(owners, np.random.default_rng(HELD_OUT).permutation(5)[:2])
    mean, deviation = DATA.X[~held_out].mean(axis=0), DATA.X[~held_out].std(axis=0)
    np.testing.assert_allclose(test.X, (DATA.X[held_out] - mean) / deviation)
