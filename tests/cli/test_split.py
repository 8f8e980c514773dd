# SPDX-License-Identifier: Apache-2.0
"""`fedac split`: the table, JSON, the picture, and what it refuses."""

from __future__ import annotations

import json
import struct

import pytest

from fedac.data import load, split


def test_the_table_is_that_of_python(fedac, small):
    code, out, err = fedac("split", "--dataset", small, "--clients", 20, "--split", "power(1)")
    assert (code, err) == (0, "")
    assert out == f"{split(load(str(small)), 20, 'power(1)')}\n"


def test_labels_are_those_of_the_data(fedac, tmp_path):
    table = tmp_path / "patients.csv"
    rows = ["oslo,1.5,ill", "oslo,2,well", "rome,0.5,ill", "rome,1,ill"]
    table.write_text("\n".join(["hospital,age,outcome", *rows, ""]))
    code, out, _ = fedac("split", "--dataset", table, "--client", "hospital", "--json")
    found = json.loads(out)
    assert (code, found["names"]) == (0, ["oslo", "rome"])
    assert found["labels"] == {"ill": [1, 2], "well": [1, 0]}
    _, out, _ = fedac("split", "--dataset", table, "--client", "hospital")
    assert "share of label ill" in out
    assert "client  rows  label ill  label well" in out


def test_json_has_rows_and_labels_of_every_client(fedac, small):
    options = ("--clients", 5, "--split", "dirichlet(0.1)", "--split-seed", 3)
    code, out, err = fedac("split", "--dataset", small, *options, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    clients = split(load(str(small)), 5, "dirichlet(0.1)", seed=3)
    assert json.loads(out) == {
        "dataset": {"name": "small", "n_samples": 60, "n_features": 12},
        "split": "dirichlet(0.1)",
        "split_seed": 3,
        "figure": None,
        "clients": 5,
        "names": ["0", "1", "2", "3", "4"],
        "sizes": clients.sizes.tolist(),
        "labels": {label: rows.tolist() for label, rows in clients.count_labels().items()},
    }


def test_a_file_names_the_clients(fedac, small, write):
    names = write(b"oslo\n" * 20 + b"rome\n" * 40, "cities.txt")
    code, out, err = fedac("split", "--dataset", small, "--split", names)
    assert (code, err) == (0, "")
    assert out.startswith("2 clients, 60 rows (cities.txt)\n")
    assert out.splitlines()[-1].split() == ["rome", "40", "13", "27"]
    result = json.loads(fedac("split", "--dataset", small, "--split", names, "--json").out)
    assert (result["names"], result["sizes"]) == (["oslo", "rome"], [20, 40])
    # Every third label is -1, beginning with the first.
    assert result["labels"]["-1"] == [7, 13]


def test_a_column_names_the_clients(fedac, assert_refused, write):
    table = write(b"age,city,y\n1,oslo,no\n2,rome,yes\n3,rome,no\n", "table.csv")
    code, out, err = fedac("split", "--dataset", table, "--client", "city")
    assert (code, err) == (0, "")
    assert out.startswith("2 clients, 3 rows (by city)\n")
    found = fedac("split", "--dataset", table, "--label", "age", "--client", "city", "--json")
    assert json.loads(found.out)["split"] == "by city"
    for other in ("--clients", 2), ("--split", "iid"):
        says = f"--client names the clients already: omit {other[0]}"
        assert_refused("split", "--dataset", table, "--client", "city", *other, saying=says)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("b.PDF", b"%PDF"), ("c.svg", b"<?xml")]
)
def test_the_picture(fedac, small, tmp_path, name, start):
    path = tmp_path / name
    options = ("--clients", 50, "--split", "label", "--figure", path)
    code, out, err = fedac("split", "--dataset", small, *options)
    assert (code, err) == (0, "")
    assert out.endswith(f"\n\nFigure: {path}\n")
    content = path.read_bytes()
    assert content.startswith(start)
    if name == "a.png":
        assert struct.unpack(">II", content[16:24]) == (1400, 760)
    assert json.loads(fedac("split", "--dataset", small, *options, "--json").out)["figure"] == str(
        path
    )


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        ((), "clients is missing: give the number of clients"),
        (("--clients", 0), "clients must be a whole number, at least 1, got 0"),
        (("--clients", "x"), "'--clients'"),
        (("--clients", 3, "--split", "sorted"), "unknown split 'sorted'; "),
        (("--clients", 3, "--split", "none.txt"), "' a file"),
        (("--clients", 3, "--split", "dirichlet(0)"), "must be a finite number above 0"),
        (("--clients", 3, "--split-seed", -1), "--split-seed must be"),
        (("--clients", 3, "--figure", "a.txt"), "--figure takes a file that ends in .png"),
        (("--clients", 3, "--figure", ""), "the path is empty"),
        (("--clients", 3, "--figure", "gone/a.png"), "--figure: cannot write 'gone/a.png': there"),
    ],
)
def test_options_are_checked_before_the_data_are_read(
    assert_refused, options, saying, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert_refused("split", "--dataset", "no-such-folder/x", *options, saying=saying)
    assert not list(tmp_path.iterdir())


def test_more_clients_than_rows(assert_refused, small):
    saying = "61 clients need at least 61 rows, one for each; there are 60"
    assert_refused("split", "--dataset", small, "--clients", 61, saying=saying)


def test_a_file_of_other_data(assert_refused, small, write):
    names = write(b"a\nb\n")
    saying = f"{names} has 2 lines, but small has 60 rows"
    assert_refused("split", "--dataset", small, "--split", names, saying=saying)
