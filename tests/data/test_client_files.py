# SPDX-License-Identifier: Apache-2.0
"""Clients by a spec or a file of names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedac.data import Dataset, split
from fedac.data.splits import as_clients, check_clients
from fedac.errors import InputError

DATA = Dataset("six", np.eye(6), np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0]))


@pytest.fixture
def names(tmp_path):
    """Return a function that writes a file of names and returns its path."""

    def names(content: str | bytes) -> str:
        path = tmp_path / "names.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return names


def test_a_spec_is_that_of_split():
    ours, theirs = as_clients("dirichlet(0.5)", DATA, 3, 7), split(DATA, 3, "dirichlet(0.5)", 7)
    assert ours.fingerprint() == theirs.fingerprint()
    assert ours.how == "dirichlet(0.5)"


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_file_names_the_client_of_every_row(names, end):
    path = names("rome\noslo\nrome\n åbo \noslo\nrome" + end)
    clients = as_clients(path, DATA)
    assert clients.names == ("oslo", "rome", "åbo")
    assert clients.owners.tolist() == [1, 0, 1, 2, 0, 1]
    assert clients.how == "names.txt"
    assert clients.count_labels()["1"].tolist() == [1, 3, 0]
    assert as_clients(path, DATA, 3).fingerprint() == clients.fingerprint()


def test_whole_numbers_in_a_file_are_those_of_an_array(names):
    numbers = [10, 9, 10, 2, 9, 2]
    clients = as_clients(names("\n".join(map(str, numbers))), DATA)
    assert clients.names == ("2", "9", "10")
    assert clients.fingerprint() == split(DATA, by=numbers).fingerprint()


@pytest.mark.parametrize("odd", ["01", "x", "-1", "9" * 30, "²"])
def test_other_names_are_text(names, odd):
    assert as_clients(names(f"10\n9\n1\n9\n9\n{odd}"), DATA).names == tuple(
        sorted({"10", "9", "1", odd})
    )


def test_a_spec_wins_over_a_file_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "iid").write_text("a\na\na\na\na\nb\n")
    assert as_clients("iid", DATA, 3).sizes.tolist() == [2, 2, 2]
    assert as_clients("./iid", DATA).sizes.tolist() == [5, 1]
    assert as_clients(Path("iid"), DATA).sizes.tolist() == [5, 1]


@pytest.mark.parametrize(
    ("content", "saying"),
    [
        ("a\nb\n", r"names.txt has 2 lines, but six has 6 rows"),
        ("", "has 0 lines"),
        ("a\nb\n\nc\nd\ne\n", "line 3 is empty: one client name per line"),
        ("a\n" + "b" * 201, "line 2 has 201 characters"),
        (b"\xff\xfe\x00", "is not a text file with one client name per line"),
    ],
)
def test_bad_files(names, content, saying):
    with pytest.raises(InputError, match=saying):
        as_clients(names(content), DATA)


def test_a_file_and_a_number_must_agree(names):
    with pytest.raises(InputError, match=r"there are 2 clients .names.txt., not 4"):
        as_clients(names("a\nb\na\nb\na\nb\n"), DATA, 4)


@pytest.mark.parametrize(
    ("clients", "by", "seed", "saying"),
    [
        (None, "iid", 0, "clients is missing: give the number of clients"),
        (0, "iid", 0, "clients must be a whole number, at least 1"),
        (3, "iid", -1, "seed of the split must be"),
        (3, "none.txt", 0, "unknown split 'none.txt'; known: .*; nor is 'none.txt' a file"),
        (3, "dirichlet(0)", 0, "a of .* must be a finite number above 0"),
        (3, "x" * 5000, 0, "unknown split"),
        (3, "", 0, "unknown split ''"),
    ],
)
def test_bad_specs_are_refused_before_and_with_the_data(clients, by, seed, saying):
    with pytest.raises(InputError, match=saying):
        check_clients(clients, by, seed)
    with pytest.raises(InputError, match=saying):
        as_clients(by, DATA, clients, seed)


def test_good_ones_are_not(names):
    check_clients(3, "dirichlet(0.1)", 5)
    check_clients(None, names("a\n"))
