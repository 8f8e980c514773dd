# SPDX-License-Identifier: Apache-2.0
"""Every kind of data gets to a comparison in two lines of Python, or in one command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, load_iris

import fedac
from fedac.cli import main

TINY = {"methods": ("fedavg", "fedac-i"), "K": 2, "rounds": 5, "tries": 4, "repeats": 2}
OPTIONS = ("--methods", "fedavg,fedac-i", "-K", "2", "--rounds", "5", "--tries", "4",
           "--repeats", "2", "--json")  # fmt: skip

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
BITS = (X[:, 0] + rng.normal(size=60) > 0).astype(int)
TEN = np.arange(60) % 10
REAL = X @ [1.0, -2.0, 0.5] + rng.normal(size=60)
COUNTS = rng.poisson(np.exp(0.3 * X[:, 0]))
HOSPITALS = ["Bay", "Dale", "Bay", "Eden"] * 15
FRAME = pd.DataFrame(X, columns=["age", "dose", "weight"]).assign(
    ward=np.array(["heart", "lung", "skin"])[rng.integers(0, 3, 60)],
    hospital=HOSPITALS,
    outcome=np.array(["ill", "well"])[BITS],
)


class Images:
    """A map-style dataset of PyTorch: pairs (image, class) by number."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return X[i].reshape(1, 3, 1), int(TEN[i])


# The source, options of load and compare, and the parameters of the model.
KINDS = {
    "labels 0 and 1": ((X, BITS), {}, {"clients": 3}, 3),
    "labels -1 and 1": (fedac.Dataset("mine", X, 2 * BITS - 1), {}, {"clients": 3}, 3),
    "strings": ((X, FRAME["outcome"]), {}, {"clients": 3}, 3),
    "booleans": ((X, BITS > 0), {}, {"clients": 3}, 3),
    "a DataFrame": (FRAME, {}, {"clients": 3}, 9),
    "standardized": (FRAME, {"standardize": True}, {"clients": 3}, 9),
    "a DataFrame with clients": (FRAME, {"client": "hospital"}, {}, 6),
    "a list of clients": ((X, BITS), {}, {"clients": HOSPITALS}, 3),
    "ten classes": ((X, TEN), {}, {"clients": 3}, 30),
    "real targets": ((X, REAL), {}, {"clients": 3}, 3),
    "least squares": ((X, REAL), {}, {"clients": 3, "loss": "least-squares"}, 3),
    "Huber": ((X, REAL), {}, {"clients": 3, "loss": "huber"}, 3),
    "counts": ((X, COUNTS), {}, {"clients": 3, "loss": "poisson"}, 3),
    "squared hinge": ((X, BITS), {}, {"clients": 3, "loss": "squared-hinge"}, 3),
    "sparse rows": ((sp.csr_matrix(X), BITS), {}, {"clients": 3}, 3),
    "scikit-learn": (load_iris(), {}, {"clients": 3}, 12),
    "PyTorch": (Images(), {}, {"clients": 3}, 30),
    "Hugging Face": (SimpleNamespace(to_pandas=lambda: FRAME), {}, {"clients": 3}, 9),
}


@pytest.mark.parametrize("kind", KINDS)
def test_python_compares_in_two_lines(kind):
    source, how, options, parameters = KINDS[kind]
    data = fedac.load(source, **how)
    found = fedac.compare(data, **options, **TINY)
    assert sorted(found.frame["method"]) == ["fedac-i", "fedavg"]
    assert np.isfinite(found.frame["suboptimality"]).all()
    assert found.dim == parameters


def save_arrays(name: str) -> None:
    np.savez(name, X=X, y=BITS)


# How to write a file, the options, and what the command says about its targets.
FILES = {
    "bits.csv": (
        lambda name: FRAME.assign(outcome=BITS).to_csv(name, index=False),
        ["--clients", "3"],
        "column 'outcome': 2 classes: 0, 1; logistic regression",
    ),
    "index.csv": (
        FRAME.to_csv,
        ["--clients", "3"],
        "column 'outcome': 2 classes: ill, well; logistic regression",
    ),
    "hospitals.csv": (
        FRAME.to_csv,
        ["--label", "outcome", "--client", "hospital", "--standardize"],
        "column 'outcome': 2 classes: ill, well; logistic regression",
    ),
    "wards.tsv.gz": (
        lambda name: FRAME.to_csv(name, sep="\t"),
        ["--label", "ward", "--clients", "3"],
        "column 'ward': 3 classes: heart, lung, skin; softmax regression",
    ),
    "ten.csv": (
        lambda name: FRAME.assign(y=TEN).to_csv(name),
        ["--clients", "3"],
        "column 'y': 10 classes: 0, 1, 2, 3, ...; softmax regression",
    ),
    "real.csv": (
        lambda name: FRAME.assign(y=REAL).to_csv(name),
        ["--clients", "3"],
        "column 'y': real targets from -5.",
    ),
    "squares.csv": (
        lambda name: FRAME.assign(y=REAL).to_csv(name),
        ["--clients", "3", "--loss", "least-squares"],
        "; least squares",
    ),
    "counts.csv": (
        lambda name: FRAME.assign(y=COUNTS).to_csv(name),
        ["--clients", "3", "--loss", "poisson"],
        "column 'y': numbers from 0 to ",
    ),
    "bits.npz": (save_arrays, ["--clients", "3"], "2 classes: 0, 1; logistic regression"),
    "bits.svm": (
        lambda name: dump_svmlight_file(X, BITS, name, zero_based=False),
        ["--clients", "3"],
        "2 classes: 0, 1; logistic regression",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_command_compares(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write, options, says = FILES[name]
    write(name)
    with pytest.raises(SystemExit) as stop:
        main(["compare", "--dataset", name, *options, *OPTIONS])
    out, err = capfd.readouterr()
    assert stop.value.code == 0, err
    assert f"fedac: {name}" in err
    assert says in err
    rows = json.loads(out)["rows"]
    assert sorted(row["method"] for row in rows) == ["fedac-i", "fedavg"]


def test_one_line_from_a_file(tmp_path: Path):
    pytest.importorskip("pyarrow")
    file = tmp_path / "table.parquet"
    FRAME.to_parquet(file)
    found = fedac.compare(file, label="outcome", clients="hospital", standardize=True, **TINY)
    assert found.dim == 6
    assert "ill, well; logistic regression" in found.title
    assert "3 clients, split by hospital" in found.title
