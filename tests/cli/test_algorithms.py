"""`fedac algorithms`, and compositions wherever a name is typed."""

from __future__ import annotations

import json

import pytest

from fedac.algorithms import ALGORITHMS
from fedac.algorithms.catalog import LOCAL_RULES, MEMORIES, SERVER_RULES, WELL_KNOWN
from fedac.experiments.store import Store


def test_everything_is_listed(fedac):
    code, out, err = fedac("algorithms")
    assert (code, err) == (0, "")
    for name in (*LOCAL_RULES, *MEMORIES, *SERVER_RULES, *WELL_KNOWN, *ALGORITHMS):
        assert f"\n  {name}" in out
    for piece in (*LOCAL_RULES.values(), *MEMORIES.values(), *SERVER_RULES.values()):
        assert f"\n      {piece.rule}\n" in out
    assert "with constant eta the same as momentum(alpha, beta)" in out  # said of SlowMo
    assert "\n  adagrad(gamma=0.1, b1=0, tau=0.001)\n" in out
    listed = json.loads(fedac("algorithms", "--json").out)
    sizes = {kind: len(entries) for kind, entries in listed.items()}
    assert sizes == {"local_rules": 8, "memories": 5, "server_rules": 8, "methods": 13}


def test_a_method_is_described(fedac):
    code, out, err = fedac("algorithms", "fedac-i+cv+nesterov(1|0.5,0.3)", "mb-sgd")
    assert (code, err) == (0, "")
    assert "fedac-i+cv+nesterov(1,0.3)\n      sends w_ag, w, c up and down; the client" in out
    assert "fedac-i+cv+nesterov(0.5,0.3)" in out
    assert "sends gradient up, query point down" in out
    described = json.loads(fedac("algorithms", "fedac-i+local+adam", "--json").out)
    assert described["methods"] == [
        {
            "name": "fedac-i+local+adam(0.1,0.9,0.99,0.001)",
            "up": ["w_ag"],
            "down": ["w_ag"],
            "client_keeps": ["kept_w"],
            "server_keeps": ["w_ag_m", "w_ag_v"],
        }
    ]


@pytest.mark.parametrize("command", ["algorithms", "run"])
def test_what_cannot_be_composed_is_refused_with_what_can(assert_refused, command):
    option = ["--algorithm"] if command == "run" else []
    saying = "known: accelerated, adagrad, adam, average, cv, local, momentum, nesterov, reset, "
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
