# SPDX-License-Identifier: Apache-2.0
"""`fedac methods`, and compositions wherever a name is typed."""

from __future__ import annotations

import json

import pytest

from fedac.algorithms import ALGORITHMS
from fedac.algorithms.catalog import LOCAL_RULES, MEMORIES, SERVER_RULES, WELL_KNOWN
from fedac.experiments.store import Store


def test_everything_is_listed(fedac):
    code, out, err = fedac("methods")
    assert (code, err) == (0, "")
    for name in (*LOCAL_RULES, *MEMORIES, *SERVER_RULES, *WELL_KNOWN, *ALGORITHMS):
        assert f"\n  {name}" in out
    for piece in (*LOCAL_RULES.values(), *MEMORIES.values(), *SERVER_RULES.values()):
        assert f"\n      {piece.rule}\n" in out
    assert "with constant eta the same as momentum(alpha, beta)" in out  # said of SlowMo
    assert "\n  adagrad(gamma=0.1, b1=0, tau=0.001)\n" in out
    listed = json.loads(fedac("methods", "--json").out)
    sizes = {kind: len(entries) for kind, entries in listed.items()}
    known = {"local_rules": LOCAL_RULES, "memories": MEMORIES, "server_rules": SERVER_RULES}
    assert {kind: len(pieces) for kind, pieces in known.items()}.items() < sizes.items()
    assert fedac("algorithms") == (code, out, err)  # its former name


def test_where_methods_run(fedac):
    names = ("fedavg", "adamw", "mimelite", "mb-sgd", "fedcm+cv", "dualavg")
    listed = json.loads(fedac("methods", *names, "--json").out)["methods"]
    runs_in = {entry["name"]: " ".join(entry["runs_in"]) for entry in listed}
    assert "fast" in runs_in["fedavg"]
    assert "Flower" in runs_in["fedavg"]
    assert all(runs_in[name].endswith("reference and network engines")
               for name in ("adamw", "dualavg(0.001)"))  # fmt: skip
    assert "PyTorch (with a function for full gradients)" in runs_in["mimelite(0.9)"]
    assert "PyTorch" not in runs_in["mb-sgd"]
    bytes_of = {entry["name"]: entry["bytes_per_parameter"] for entry in listed}
    assert bytes_of["fedavg+fedcm(0.1)+cv"] == {"up": 8, "down": 12}  # D is only broadcast
    assert bytes_of["dualavg(0.001)"] == {"up": 4, "down": 4}  # the threshold is one number


def test_a_method_is_described(fedac):
    code, out, err = fedac("methods", "fedac-i+cv+nesterov(1|0.5,0.3)", "mb-sgd")
    assert (code, err) == (0, "")
    assert "\n      sends w_ag, w, c up and down (12 bytes per" in out
    for name in ("fedac-i", "cv"):
        assert f"\n      {name}: {(LOCAL_RULES | MEMORIES)[name].rule}\n" in out
    assert f"\n      nesterov(1,0.3): {SERVER_RULES['nesterov'].rule}\n" in out
    assert "fedac-i+cv+nesterov(0.5,0.3)" in out
    assert "sends gradient up, query point down" in out
    described = json.loads(fedac("methods", "fedac-i+local+adam", "--json").out)
    assert described["methods"] == [
        {
            "name": "fedac-i+local+adam(0.1,0.9,0.99,0.001)",
            "rules": {
                "fedac-i": LOCAL_RULES["fedac-i"].rule,
                "local": MEMORIES["local"].rule,
                "adam(gamma=0.1, b1=0.9, b2=0.99, tau=0.001)": SERVER_RULES["adam"].rule,
            },
            "up": ["w_ag"],
            "down": ["w_ag"],
            "bytes_per_parameter": {"up": 4, "down": 4},
            "client_keeps": ["kept_w"],
            "server_keeps": ["w_ag_m", "w_ag_v"],
            "runs_in": ["simulator: fast, network and reference engines", "PyTorch", "Flower"],
        }
    ]


@pytest.mark.parametrize(
    ("method", "saying"),
    [
        ("fedcm(0)", "a of fedcm must be a finite number above 0"),
        ("fedcm(2)", "a of fedcm must be above 0 and at most 1, got 2"),
        ("feddyn(-1)", "a of feddyn must be a finite number above 0"),
        ("fedavg+exp(0)", "'exp(0)': eps must be a finite number above 0"),
        ("mimelite(1)", "'mimelite(1)': beta must be a number at least 0 and below 1"),
        ("dualavg(-1)", "'dualavg(-1)': l1 must be a finite number, at least 0"),
        ("fednova(2)", "'fednova(2)': too many positional arguments; it is written fednova"),
        ("feddyn+cv", "'feddyn' has its own server rule and its own correction"),
        ("feddyn+nesterov", "'feddyn' has its own server rule and its own correction"),
        ("momentum+feddyn", "'feddyn' needs a local rule with one sequence"),
        ("fednova+fedcm", "use only one of 'fednova' and 'fedcm'"),
        ("prox(0.1)+fednova", "'fednova' needs the local rule fedavg, not 'prox(0.1)'"),
        ("fedac-i+fedcm", "'fedcm' needs the local rule fedavg, not 'fedac-i'"),
        ("dualavg+nesterov", "'dualavg(0.001)' cannot have a server rule"),
        ("mimelite+reset", "'reset' does not work with 'mimelite(0.9)'"),
        ("led+cv", "'scaffnew' needs the plain average and no other memory; use 'cv'"),
    ],
)
def test_wrong_numbers_and_combinations_are_named(assert_refused, method, saying):
    assert_refused("methods", method, saying=saying)


@pytest.mark.parametrize("command", ["methods", "run"])
def test_what_cannot_be_composed_is_refused_with_what_can(assert_refused, command):
    option = ["--algorithm"] if command == "run" else []
    saying = "known: accelerated, adagrad, adam, average, cv, exp, fedcm, feddyn, fednova, local, "
    assert_refused(command, *option, "fedac-i+cvv", saying=saying)


def test_a_run_with_several_values(fedac, small):
    options = ("--dataset", small, "-M", 4, "-K", 2, "-T", 8, "--eta", "0.1,0.2")
    options += ("--algorithm", "fedavg+nesterov(0.7|1, 0.9)")
    result = json.loads(fedac("run", *options, "--json").out)
    names = ["fedavg+nesterov(0.7,0.9)", "fedavg+nesterov(1,0.9)"]
    assert [run["algorithm"] for run in result["runs"]] == [name for name in names for _ in "ab"]
    assert result["best"]["algorithm"] in names
    code, out, err = fedac("run", *options)
    assert code == 0, err
    assert all(f" {name} " in out for name in names)


def test_a_sweep_of_compositions(fedac, small, tmp_path):
    options = ("--dataset", small, "--l2", "1e-2", "--clients", 5, "-K", 2, "-T", 8)
    options += (
        "--eta",
        "0.1,0.2",
        "--algorithms",
        "scaffold, fedavg+nesterov(0.7|1,0.9),fedprox(1)",
    )
    code, out, err = fedac("sweep", *options, "--out", tmp_path)
    assert code == 0, err
    names = ["scaffold", "fedavg+nesterov(0.7,0.9)", "fedavg+nesterov(1,0.9)", "fedprox(1)"]
    assert all(f" {name} " in out for name in names)
    with Store(tmp_path) as store:
        assert sorted(store.frame()["algorithm"].unique()) == sorted(names)
    code, out, _ = fedac("sweep", *options, "--out", tmp_path)
    assert "0 runs now, 8 before" in out
    assert fedac("report", tmp_path).code == 0


def test_methods_that_are_not_linear_leave_the_others_in_the_fast_engine(fedac, small, tmp_path):
    options = ("--dataset", small, "--l2", 0.1, "--clients", 5, "-K", "2,4", "-T", 16)
    options += ("--eta", 0.1)
    losses = {}
    for names in ("fedavg,scaffold", "fedavg,dualavg,scaffold"):
        code, _, err = fedac("sweep", *options, "--algorithms", names, "--out", tmp_path / names)
        assert code == 0, err
        assert err.count("running on the reference engine") == ("dualavg" in names)
        with Store(tmp_path / names) as store:
            frame = store.frame().sort_values(["K", "algorithm"])
        linear = frame[frame["algorithm"] != "dualavg(0.001)"]
        losses[names] = linear["final_loss"].tolist()
    one, other = losses.values()
    assert one == other  # in single precision, unlike on the reference engine
