# SPDX-License-Identifier: Apache-2.0
"""`fedac compare`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pandas as pd
import pytest

SMALL = (
    "compare", "--dataset", "synthetic", "--l2", "1e-2", "--clients", 10, "-K", "4,16",
    "--rounds", 20, "--tries", 6, "--repeats", 2, "--methods", "fedavg,fedac-i,diloco",
)  # fmt: skip
BANDS = ("rounds", "megabytes", "seconds", "suboptimality", "smallest", "ratio")
ROW = [
    "method", "K", "wire", "mode", "algorithm", "eta", "server_step", "momentum", "mu", "edge",
    "server_edge", "all_clients", "reached", "seeds_reached",
    *(name + end for name in BANDS for end in ("", "_low", "_high")), "level",
]  # fmt: skip


def test_json_is_the_contract(fedac):
    code, out, err = fedac(*SMALL, "--target", 0.1, "--link", "home", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == [
        "rows", "best", "dataset", "loss", "l2", "workers", "clients", "split", "participation",
        "batch", "weighting", "f_star", "rounds", "target", "budget", "link", "tries",
        "tuning_seed", "tuning_seeds", "methods", "fresh_seeds", "runs",
    ]  # fmt: skip
    assert len(found["rows"]) == 6
    for row in found["rows"]:
        assert list(row) == ROW
        assert (row["rounds"] is None) == (not row["reached"])
    assert found["best"] == found["rows"][0]
    assert found["runs"] == 6 * (6 + 3 + 3 + 2)
    assert found["tuning_seeds"] == [1, 4, 5]
    assert found["fresh_seeds"] == [2, 3]
    assert found["link"].endswith("stragglers=lognormal(0.5)")


def test_metrics_of_a_test_set(fedac):
    small = (*SMALL, "-K", 4, "--tries", 4, "--methods", "fedavg,lbfgs", "--test", 0.2)
    code, out, err = fedac(*small, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["test"] == 0.2
    tests = ["test_loss", "test_accuracy", "test_auc", "test_log_loss"]
    assert [list(row) for row in found["rows"]] == [[*ROW[:-1], *tests, "level"]] * 2
    code, out, _ = fedac(*small, "--target", "auc 0.7")
    assert code == 0
    assert "target auc 0.7" in out
    assert "test accuracy" in out
    assert "Test set: 20% of synthetic" in " ".join(out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "accuracy 0.8"), "needs a test set: add --test, a share of the rows"),
        (("--target", "mse 1", "--test", 0.2), "such as 'accuracy 0.85' (also auc, log-loss, r2,"),
        (("--target", "r2 0.5", "--test", 0.2), "use accuracy or auc or log-loss"),
        (("--test", 0.2, "--test-clients", 0.2), "use either of them, not both"),
        (("--l1", 0.1), "there is no option --l1: an L1 penalty belongs to a method"),
        (("--loss", "lasso"), "there is no loss lasso: an L1 penalty belongs to a method"),
    ],
)
def test_one_line_for_a_target_or_penalty_that_cannot_be(fedac, options, message):
    code, out, err = fedac(*SMALL, *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_is_asked_again(fedac, tmp_path):
    """The loss follows from the data, and is the same as that in the folder."""
    small = (*SMALL, "-K", 4, "--tries", 4, "--out", tmp_path)
    assert fedac(*small, "--methods", "fedavg").code == 0
    code, _, err = fedac(*small, "--methods", "diloco")
    assert (code, "already compares fedavg" in err) == (0, True)
    code, _, err = fedac(*small, "--methods", "fedavg", "--test", 0.2)
    assert (code, "with test = None, but this one has 0.2" in err) == (2, True)


def test_a_split_needs_no_number_of_clients(fedac):
    small = [word for word in SMALL if word not in ("--clients", 10)]
    options = ("-K", 4, "--tries", 4, "--methods", "fedavg", "--split", "dirichlet(0.1)", "--json")
    code, out, err = fedac(*small, *options)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["clients"], found["split"]) == (100, "dirichlet(0.1)")


def test_fedavg_in_disguise_is_mentioned_once(fedac):
    small = ("--l2", 1, "-K", 16, "--tries", 4, "--methods", "fedavg,fedac-i")
    code, out, err = fedac(*SMALL, *small, "--json")
    assert code == 0
    assert json.loads(out)["runs"] == 2 * (4 + 3 + 3 + 2)
    said = r"fedac: \d+ of 24 runs are FedAvg in disguise: with eta mu K >= 1 FedAc does not .*\n"
    assert re.fullmatch(said, err)


@pytest.mark.slow
def test_table_and_files(fedac, tmp_path):
    out = tmp_path / "out"
    code, text, err = fedac(*SMALL, "--target", 0.1, "--out", out)
    assert (code, err) == (0, "")
    lines = [line for line in text.splitlines() if line.startswith("│")]
    assert len(lines) == 3  # the best K of each
    assert "it reached a suboptimality of 0.1 in " in text
    assert "Runner-up: " in text
    names = {path.name for path in out.iterdir()}
    kinds = ("html", "json", "csv", "tex", "png", "pdf")
    assert names >= {"runs.sqlite", *(f"comparison.{kind}" for kind in kinds)}
    assert list(pd.read_csv(out / "comparison.csv")) == ROW
    kept = json.loads((out / "comparison.json").read_text())
    code, text, _ = fedac(*SMALL, "--target", 0.1, "--out", out, "--json")
    assert json.loads(text) == kept


def test_nothing_reaches_the_target(fedac):
    code, out, _ = fedac(*SMALL, "--target", 1e-9, "-K", 4, "--tries", 4)
    assert code == 0
    assert "No method reached a suboptimality of 1e-09 on all seeds in 20 rounds." in out
    assert "MB: sent and received by a client that is present in every round." in " ".join(
        out.split()
    )
    assert "not reached" in out


@pytest.mark.slow
def test_without_a_target(fedac):
    code, out, _ = fedac(*SMALL, "--budget", "5 rounds")
    assert code == 0
    assert "F - F* within 5 rounds" in out
    assert "came closest to the optimum within 5 rounds: " in out or " are level: " in out
    (proposed,) = re.findall(r"To see what that costs: fedac (compare .*)\n", out)
    assert " --budget '5 rounds' " in proposed
    code, out, _ = fedac(*shlex.split(proposed))
    assert code == 0
    assert "it reached a suboptimality of" in out


@pytest.mark.slow
def test_further_methods_are_added_to_a_folder(fedac, assert_refused, tmp_path):
    small = [*SMALL[:-1], "fedavg", "--tries", 4, "--target", 0.1, "-K", 4]
    assert fedac(*small, "--out", tmp_path / "out").code == 0
    more = ("--methods", "fedac-i,lbfgs", "--out", tmp_path / "out")
    code, _, err = fedac(*small, *more)
    assert code == 0
    assert "already compares fedavg: they stay in the table" in err
    kept = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert {row["method"] for row in kept["rows"]} == {"fedavg", "fedac-i", "lbfgs"}
    saying = "has a comparison with clients = 10, but this one has 5; use another folder"
    assert_refused(*small, *more, "--clients", 5, saying=saying)
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == kept


def test_progress_does_not_name_a_winner(fedac, monkeypatch):
    """The best run while tuning may be a lucky one, which the verdict then contradicts."""
    shown = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("rich.progress.Progress.update", lambda *_, **now: shown.append(now))
    assert fedac(*SMALL, "--tries", 4, "-K", 4).code == 0
    notes = [now["note"] for now in shown if "note" in now]
    assert notes
    assert not any("best" in note for note in notes)


@pytest.mark.slow
def test_wires_have_rows_of_their_own(fedac):
    code, out, _ = fedac(*SMALL, "--wire", "float32,int8", "--target", 0.3, "--json")
    assert code == 0
    assert {row["wire"] for row in json.loads(out)["rows"]} == {"float32", "int8"}


def test_all_diverge(fedac, tmp_path, monkeypatch):
    monkeypatch.setattr("fedac.experiments.comparison.study.SMALLEST", 1e8)
    monkeypatch.setattr("fedac.experiments.comparison.study.LARGEST", 1e9)
    out = tmp_path / "out"
    code, text, err = fedac(*SMALL, "--methods", "fedavg", "--target", 0.1, "--out", out)
    assert (code, err) == (0, "")
    assert "Every method diverged." in text
    assert (out / "comparison.html").exists()
    assert not (out / "comparison.png").exists()


@pytest.mark.slow
def test_jobs_do_not_change_the_answer(fedac):
    one, two = (fedac(*SMALL, "--target", 0.1, "--json", "--jobs", jobs).out for jobs in (1, 2))
    assert one == two


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_and_continued(fedac, tmp_path, kill):
    command = [*SMALL[:-1], "fedavg,fedac-i,diloco,scaffold,fedavgm", "--rounds", 400, "--target",
               0.1, "--json"]  # fmt: skip
    line = [sys.executable, "-m", "fedac", *map(str, command), "--out", str(tmp_path / "killed")]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "killed" / "runs.sqlite-wal"
    # It has stored a group when the log has more than the tables.
    while process.poll() is None and not (log.exists() and log.stat().st_size > 2**17):
        time.sleep(0.02)
    process.send_signal(kill)
    out, err = process.communicate()
    if process.returncode != 0:  # it may have been over
        assert process.returncode == (-kill if kill == signal.SIGKILL else 130)
        assert out == ""
        if kill != signal.SIGKILL:
            assert "the same command continues from there" in err
    again = fedac(*command, "--out", tmp_path / "killed")
    quiet = fedac(*command, "--out", tmp_path / "quiet")
    assert again.code == quiet.code == 0
    assert again.out == quiet.out


def test_dry_run(fedac, tmp_path, monkeypatch):
    monkeypatch.delattr("fedac.experiments.comparison.study.run_groups")  # runs nothing
    code, out, err = fedac(*SMALL, "--dry-run", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.startswith(
        "methods: fedavg, fedac-i, diloco\nlocal steps: 4, 16\nmodes: rounds\nwire: float32\n"
        "runs: 84, of 20 rounds each\nexpected time: "
    )
    assert not (tmp_path / "out").exists()
    code, out, _ = fedac(*SMALL, "--dry-run", "--json", "--target", 0.1)
    found = json.loads(out)
    assert (code, found["runs"], found["local_steps"]) == (0, 84, [4, 16])  # as in the contract
    assert 0 < found["seconds"] < 60


def test_dry_run_on_a_cluster(assert_refused):
    assert_refused(*SMALL, "--dry-run", "--on", "ray", saying="on this machine only: omit --on")


def test_a_long_comparison_is_announced(fedac, monkeypatch):
    monkeypatch.setattr("fedac.cli.console.LONG", 0.0)
    code, out, err = fedac(*SMALL, "-K", 4, "--tries", 4, "--json")
    assert (code, next(iter(json.loads(out)))) == (0, "rows")
    first, *stages = [line for line in err.splitlines() if "%" not in line]
    assert re.fullmatch("fedac: this takes up to .* s: --quick, fewer .* --dry-run .*", first)
    assert stages[0] == "fedac: search 1 of 2"
    assert stages[-1] == "fedac: winners on fresh seeds"


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--workers", 8, "--wire", "int8"),
        ("--mode", "rounds,buffer(3)", "--methods", "fedavg", "--participation", 6),
        ("--methods", "lbfgs,diloco", "--split", "dirichlet(0.3)", "--batch", 2),
    ],
)
def test_the_line_that_runs_the_winner_does(fedac, more):
    small = [*SMALL, "-K", 4, "--tries", 4, *more]
    if "--workers" in more:
        small = [word for word in small if word not in ("--clients", 10)]
    code, out, _ = fedac(*small)
    assert ("at its best K and mode" in " ".join(out.split())) == ("--mode" in more)
    (line,) = re.findall("^To run it: fedac (.*)$", out, re.MULTILINE)
    assert ("--participation 6 " in line) == ("--participation" in more)
    found = json.loads(fedac(*small, "--json").out)["rows"]
    row = next(row for row in found if row["method"] != "lbfgs")
    code, out, _ = fedac(*shlex.split(line), "--json")
    assert code == 0
    answer = json.loads(out)
    (run,) = answer["runs"]
    assert (answer["local_steps"], answer["wire"]) == (row["K"], row["wire"])
    assert run["algorithm"] == row["algorithm"]
    assert run["eta"] == pytest.approx(row["eta"], rel=1e-3)
    assert answer["batch"] == (2 if "--batch" in more else 1)
    # Another seed, and the end instead of the mean of the last records.
    ratio = run["final_suboptimality"] / row["suboptimality"]
    assert 0.1 < ratio < 10


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        (("--link", "wam"), "unknown link 'wam'; did you mean 'wan'"),
        (("--link", "latency=50"), "latency is a number with a unit"),
        (("--budget", "60"), "a budget is a positive number with a unit"),
        (("--budget", "1e400s"), "a budget is a positive number with a unit"),
        (("--target", "50"), "the target 50 is already reached at the start, where F - F* is"),
        (("--methods", "scaffold,fedavg+cv"), "--methods: scaffold and fedavg+cv are the same"),
        (("--link", "stragglers=lognormal(1)"), "latency, gradient or row"),
        (("--target", "0"), "target must be a finite number above 0"),
        (("--tries", "2"), "tries must be a whole number, at least 4, got 2"),
        (("--repeats", "1"), "repeats must be a whole number, at least 2, got 1"),
        (("--rounds", "0"), "rounds must be a whole number, at least 1, got 0"),
        (("--methods", "fedavg,fedack"), "--methods: unknown algorithm 'fedack'"),
        (("--methods", "fedavg,,"), "--methods takes names separated by commas"),
        (("-K", "4,x"), "--local-steps takes whole numbers separated by commas"),
        (("-K", "0"), "--local-steps"),
        (("--wire", "int4"), "unknown wire format 'int4'"),
        (("--split", "random"), "unknown split 'random'"),
        (("--workers", "4"), "use either --workers or --clients"),
        (("--participation", "0"), "--participation"),
        (("--participation", "0.5", "--methods", "scaffnew"), "needs all clients in every round"),
        (("--dataset", "nowhere"), "nowhere"),
        (("--clients", "100000"), "100000"),
        (("--l2", "0"), "--l2"),
        (("--jobs", "0"), "jobs must be a whole number"),
    ],
)
def test_bad_input(assert_refused, options, saying, tmp_path):
    assert_refused(*SMALL, "--out", tmp_path / "out", *options, saying=saying)
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_a_folder(assert_refused, write):
    assert_refused(*SMALL, "--out", write(b"x"), saying="--out takes a writable folder")


@pytest.mark.parametrize(
    ("few", "said"), [(20, "sooner, 20 of 50 rounds, about"), (50, "sooner, about")]
)
def test_what_a_quick_comparison_leaves_out(few, said):
    from fedac.cli.compare import _left_out

    quick = SimpleNamespace(spec=SimpleNamespace(rounds=few))
    usual = SimpleNamespace(spec=SimpleNamespace(rounds=50), tuning_seeds=(1, 2, 3))
    assert said in _left_out(quick, usual)
    assert _left_out(quick, usual).endswith("one seed instead of 3; --rounds 50 turns this off")
