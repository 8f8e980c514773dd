# SPDX-License-Identifier: Apache-2.0
"""A table of hospitals: every command and keyword gives its rows to the same clients."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedac
from fedac.experiments.store import FILE

rng = np.random.default_rng(0)
ROWS = 90
TABLE = pd.DataFrame(
    {
        "state": rng.choice(["sick", "well"], ROWS),
        "age": rng.normal(50, 20, ROWS).round(1),
        "hospital": rng.choice([2, 9, 10, 30, 100], ROWS),
        "dose": rng.normal(size=ROWS).round(3),
    }
)
SIZES = {"K": 2, "rounds": 3}


@pytest.fixture
def table(tmp_path) -> Path:
    path: Path = tmp_path / "hospitals.csv"
    TABLE.to_csv(path, index=False)
    return path


@pytest.fixture(params=["column", "split"])
def who(request, table):
    """Return options of the commands, keywords of the functions, and the clients."""
    if request.param == "column":
        data = fedac.load(table, "state", "hospital", standardize=True)
        return ("--client", "hospital"), data, {}, data.clients
    data = fedac.load(TABLE.drop(columns="hospital"), "state", standardize=True)
    TABLE.drop(columns="hospital").to_csv(table, index=False)
    by = "dirichlet(0.3)"
    options = ("--clients", 4, "--split", by)
    return options, data, {"clients": by, "M": 4}, fedac.split(data, 4, by)


def test_the_same_rows_in_every_command(fedac_command, table, who, tmp_path):
    options, data, keywords, clients = who
    problem = ("--dataset", table, "--label", "state", *options)
    shown = fedac_command("split", *problem)
    assert (shown["sizes"], shown["names"]) == (clients.sizes.tolist(), list(clients.names))

    api = fedac.simulate(data, "fedavg", eta=0.1, record_every=2, **SIZES, **keywords)
    assert api.federation.clients.fingerprint() == clients.fingerprint()
    small = ("--standardize", "-K", 2, "--rounds", 3)
    run = fedac_command("run", *problem, *small, "--algorithm", "fedavg", "--eta", 0.1,
                        "--record-every", 2)  # fmt: skip
    assert run["runs"][0]["trace"] == [[t, f] for t, f in zip(*trace(api), strict=True)]
    assert (run["clients"], run["split"]) == (len(clients), clients.how)

    sweep = ("sweep", *problem, *small, "--algorithms", "fedavg", "--eta", 0.1, "--l2", 1e-3)
    fedac_command(*sweep, "--out", tmp_path / "sweep", as_json=False)
    tuned = ("--methods", "fedavg", "--tries", 4, "--repeats", 2)
    found = fedac_command("compare", *problem, *small, *tuned, "--out", tmp_path / "compare")
    assert found["clients"] == len(clients)
    for folder in ("sweep", "compare"):
        stored = runs_in(tmp_path / folder)
        assert stored == {(clients.fingerprint(), api.objective.fingerprint(), None, 6)}


@pytest.mark.parametrize("held_out", ["test", "test_clients"])
def test_the_same_held_out_rows(fedac_command, table, who, tmp_path, held_out):
    options, data, keywords, _ = who
    raw = fedac.load(table, "state", data.columns.client)
    api = fedac.simulate(
        raw, "fedavg", eta=1e-4, record_every=2, **SIZES, **keywords, **{held_out: 0.4}
    )
    problem = ("--dataset", table, "--label", "state", *options, "-K", 2, "--rounds", 3,
               f"--{held_out.replace('_', '-')}", 0.4)  # fmt: skip
    run = fedac_command("run", *problem, "--algorithm", "fedavg", "--eta", 1e-4,
                        "--record-every", 2)  # fmt: skip
    (ours,) = api.runs
    assert [point[1] for point in run["runs"][0]["test_trace"]] == ours.test_loss.tolist()
    assert run["runs"][0]["trace"] == [[t, f] for t, f in zip(*trace(api), strict=True)]
    assert run["clients"] == api.M
    sweep = ("sweep", *problem, "--algorithms", "fedavg", "--eta", 1e-4, "--l2", 1e-3)
    fedac_command(*sweep, "--out", tmp_path / "out", as_json=False)
    name = "40% of hospitals.csv"
    if held_out == "test_clients":
        name = "40% of the clients of hospitals.csv"
    hashes = (api.federation.clients.fingerprint(), api.objective.fingerprint())
    assert runs_in(tmp_path / "out") == {(*hashes, name, 6)}
    assert run["test"]["name"] == name
    tuned = ("--methods", "fedavg", "--tries", 4, "--repeats", 2)
    found = fedac_command("compare", *problem, *tuned, "--out", tmp_path / "compare")
    assert runs_in(tmp_path / "compare") == {(*hashes, name, 6)}
    assert found["clients"] == api.M
    fedac.compare(
        raw, "fedavg", **SIZES, tries=4, repeats=2, out=tmp_path / "api",
        **{"workers" if name == "M" else name: value for name, value in keywords.items()},
        **{held_out: 0.4},
    )  # fmt: skip
    assert runs_in(tmp_path / "api") == {(*hashes, name, 6)}


def test_a_folder_of_a_comparison_knows_its_clients(fedac, table, tmp_path):
    small = ("compare", "--dataset", table, "--label", "state", "--standardize", "-K", 2,
             "--rounds", 3, "--tries", 4, "--repeats", 2, "--out", tmp_path / "out")  # fmt: skip
    code, out, _ = fedac(*small, "--methods", "fedavg", "--client", "hospital")
    assert code == 0
    assert "5 clients, split by hospital" in " ".join(out.split())
    code, _, err = fedac(*small, "--methods", "fedac-i", "--client", "hospital")
    assert code == 0
    assert "already compares fedavg" in err


def test_an_archive_has_its_own_clients(fedac_command, tmp_path):
    path = tmp_path / "data.npz"
    X, y = TABLE[["age", "dose"]].to_numpy(), TABLE["state"].to_numpy(str)
    np.savez(path, X=X, y=y, clients=TABLE["hospital"].to_numpy())
    small = ("--dataset", path, "-K", 2, "--rounds", 3)
    assert fedac_command("run", *small, "--eta", 1e-4)["clients"] == 5
    assert fedac_command("run", *small, "--eta", 1e-4, "--workers", 3)["clients"] is None
    found = fedac_command("compare", *small, "--methods", "fedavg", "--tries", 4, "--repeats", 2)
    assert (found["clients"], found["split"]) == (5, "given")


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        (("--test-clients", 0.2), "--test-clients needs --clients: workers draw from all rows"),
        (("--clients", 3, "--test-clients", 1.2), "is a share of the clients, below 1, got 1.2"),
        (("--clients", 3, "--test-clients", 0), "--test-clients must be a finite number above 0"),
        (("--clients", 3, "--test-clients", 0.2, "--test", 0.2), "use either of them, not both"),
        (("--rounds", 3, "-T", 6), "--rounds and --steps both give the length of a run: use one"),
        (("--rounds", 0), "--rounds must be a whole number, at least 1, got 0"),
    ],
)
def test_bad_options(assert_refused, options, saying):
    assert_refused("run", "--dataset", "no-such-folder/x", *options, saying=saying)


def test_bad_columns(assert_refused, table, small):
    run = ("run", "--dataset", table)
    assert_refused(*run, "--client", "hospitl", saying="did you mean 'hospital'?")
    assert_refused("run", "--dataset", small, "--client", "a", saying="has no client column 'a'")
    assert_refused("run", "--dataset", small, "--label", "a", saying="is a LIBSVM file, which has")
    few = ("--client", "hospital", "--label", "state", "--test-clients", 0.05)
    assert_refused(*run, *few, saying="a share of 0.05 of 5 clients leaves none to train")


def test_several_splits_have_no_clients_to_hold_out(assert_refused, table, tmp_path):
    grid = ("sweep", "--dataset", table, "--l2", 0.1, "--algorithms", "fedavg", "-K", 2, "--eta",
            0.1, "--clients", "2,3", "--test-clients", 0.5, "--out", tmp_path / "out")  # fmt: skip
    assert_refused(*grid, saying="clients to hold out need one split")


def test_a_plan_leaves_the_clients_out_of_the_features(fedac_command, table):
    small = ("plan", "--dataset", table, "--label", "state", "--standardize", "--client")
    by_hand = fedac.load(table, "state", "hospital", standardize=True)
    F = fedac.LogisticRegression(by_hand.X, by_hand.y, l2=1e-3)
    found = fedac_command(*small, "hospital")
    assert found["constants"]["L"] == pytest.approx(F.smoothness)


@pytest.fixture
def fedac_command(fedac):
    """Return a function that runs a command that must succeed, and returns its JSON."""

    def command(*arguments: object, as_json: bool = True):
        code, out, err = fedac(*arguments, *(["--json"] if as_json else []))
        assert code == 0, err
        return json.loads(out) if as_json else None

    return command


def runs_in(folder):
    """Return the hashes of the clients and of the data, the test set and T of all stored runs."""
    with closing(sqlite3.connect(folder / FILE)) as db:
        specs = [json.loads(spec) for (spec,) in db.execute("SELECT spec FROM runs")]
    names = ("split_hash", "data_hash", "test", "T")
    return {tuple(map(spec.get, names)) for spec in specs}


def trace(result):
    (run,) = result.runs
    return run.steps.tolist(), run.loss.tolist()


def test_columns_of_very_different_scale_are_noticed(fedac, tmp_path):
    for scale, noticed in ((1.0, False), (1000.0, True)):
        rows = np.random.default_rng(0).standard_normal((20, 3)) * [1, 1, scale]
        table = pd.DataFrame(rows, columns=["a", "b", "c"]).assign(y=np.arange(20) % 2)
        table.to_csv(tmp_path / "t.csv", index=False)
        how = ("run", "--dataset", tmp_path / "t.csv", "-M", 2, "-K", 2, "-T", 4, "--eta", 1e-9)
        assert ("try --standardize" in fedac(*how).err) == noticed
        assert "try --standardize" not in fedac(*how, "--standardize").err


def test_targets_far_from_0_without_an_intercept_are_noticed(fedac, tmp_path):
    rows = np.random.default_rng(0).standard_normal((20, 2))
    table = pd.DataFrame(rows, columns=["a", "b"])
    near, far = np.linspace(-1, 2, 20), np.linspace(150, 153, 20)
    tables = {
        "near": table.assign(y=near),
        "far": table.assign(y=far),
        "far-with-categories": table.assign(c=["x", "y"] * 10, y=far),
        "far-with-ones": table.assign(c=1, y=far),
    }
    for name, each in tables.items():
        each.to_csv(tmp_path / f"{name}.csv", index=False)
        how = ("run", "--dataset", tmp_path / f"{name}.csv", "-M", 2, "-K", 2, "-T", 4)
        noticed = "far from 0, 152 on average: try --intercept" in fedac(*how, "--eta", 1e-9).err
        assert noticed == (name == "far")
        assert "try --intercept" not in fedac(*how, "--eta", 1e-9, "--intercept").err
