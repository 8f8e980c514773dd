# SPDX-License-Identifier: Apache-2.0
"""`fedac sweep`: files and options, what it prints, and what it refuses."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

from fedac.algorithms import ALGORITHMS
from fedac.cli import console
from fedac.experiments import sweep as experiment
from fedac.experiments import workload
from fedac.experiments.grid import read_grid
from fedac.experiments.store import FILE, Store
from fedac.federation.spec import SWEEP
from fedac.objectives import LOSSES

OPTIONS = {
    "--l2": "1e-2",
    "--algorithms": "fedac-i,mb-sgd",
    "--workers": "4,8",
    "--local-steps": "1,4",
    "--steps": "16",
    "--eta": "0.1,0.5",
}


@pytest.fixture
def options(small):
    """Give a function that makes a command line, with some options changed or left out."""

    def options(**changes):
        values = {"--dataset": small, **OPTIONS}
        values |= {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
        return [part for pair in values.items() if pair[1] is not None for part in pair]

    return options


@pytest.fixture
def grid(small, write):
    """Give a file that says the same as the options."""
    text = f"""
name = "small sweep"
dataset = "{small}"
l2 = 1e-2
algorithms = ["fedac-i", "mb-sgd"]
workers = [4, 8]
local_steps = [1, 4]
steps = 16
eta = [0.1, 0.5]
"""
    return write(text.encode(), "grid.toml")


def test_a_file_and_its_options_are_the_same_runs(fedac, grid, options, tmp_path):
    code, out, err = fedac("sweep", grid, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "small sweep: 16 runs now, 0 before, 16 in all" in out
    assert "fedac-i" in out
    code, out, err = fedac("sweep", *options(), "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "0 runs now, 16 before, 16 in all" in out
    code, out, err = fedac("sweep", *options(seeds="1,2"), "--out", tmp_path / "out")
    assert "16 runs now, 16 before, 32 in all" in out


def test_short_options(fedac, options, tmp_path):
    long = fedac("sweep", *options(), "--out", tmp_path / "long")
    short = {"--workers": "-M", "--local-steps": "-K", "--steps": "-T"}
    line = [short.get(part, part) for part in options()]
    assert fedac("sweep", *line, "--out", tmp_path / "short") == long


def test_every_option(fedac, options, small, write, tmp_path):
    """The options and the keys of a file mean the same, with spaces after commas too."""
    changes = {"algorithms": "fedac-i, mb-sgd", "workers": "4, 8", "local_steps": "1, 4",
               "eta": "0.1, 0.5", "seeds": "1, 2", "loss": "squared-hinge", "mu": 0.05,
               "record_every": 4, "precision": "float64"}  # fmt: skip
    code, out, _ = fedac("sweep", *options(**changes), "--intercept", "--out", tmp_path / "out")
    assert code == 0
    assert "32 runs now" in out
    text = f"""
name = "all"
dataset = "{small}"
loss = "squared-hinge"
l2 = 1e-2
intercept = true
mu = 0.05
algorithms = ["fedac-i", "mb-sgd"]
steps = 16
workers = [4, 8]
local_steps = [1, 4]
eta = [0.1, 0.5]
seeds = [1, 2]
record_every = 4
precision = "float64"
"""
    code, out, _ = fedac("sweep", write(text.encode(), "all.toml"), "--out", tmp_path / "out")
    assert "0 runs now, 32 before, 32 in all" in " ".join(out.split())
    header, line, *_ = fedac("export", tmp_path / "out", "--csv", "-").out.splitlines()
    assert header.endswith(
        "final_suboptimality,objective,intercept,mu,precision,rounds,megabytes,link_seconds"
    )
    assert line.rsplit(",", 3)[0].endswith(",squared-hinge,True,0.05,float64")
    assert line.startswith('"small, squared-hinge, intercept",0.01,"fedac-i, mu=0.05",4,1,16,')


def test_every_option_about_clients(fedac, options, small, write, tmp_path):
    changes = {"workers": None, "clients": "6, 3", "split": "iid, label", "split_seed": 2,
               "participation": "0.5, 1", "batch": "4, full", "weighting": "uniform",
               "decay": "1/sqrt(r)", "test": 0.25, "local_steps": 4, "eta": 0.1}  # fmt: skip
    code, out, err = fedac("sweep", *options(**changes), "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "32 runs now" in out
    text = f"""
name = "all"
dataset = "{small}"
l2 = 1e-2
algorithms = ["fedac-i", "mb-sgd"]
steps = 16
split = ["iid", "label"]
clients = [6, 3]
split_seed = 2
participation = [0.5, 1]
batch = [4, "full"]
weighting = "uniform"
local_steps = [4]
eta = [0.1]
decay = "1/sqrt(r)"
test = 0.25
"""
    code, out, _ = fedac("sweep", write(text.encode(), "all.toml"), "--out", tmp_path / "out")
    assert "0 runs now, 32 before, 32 in all" in " ".join(out.split())
    header, line, *_ = fedac("export", tmp_path / "out", "--csv", "-").out.splitlines()
    used = "split,split_seed,participation,batch,weighting,decay,test,test_loss,test_accuracy"
    used += ",test_auc,test_log_loss"
    assert header.endswith(f"final_suboptimality,{used},rounds,megabytes,link_seconds")
    assert ",iid,2,0.5,4,uniform,1/sqrt(r),25% of small," in line


def test_the_summary_shows_the_metrics_that_fit(fedac, options, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    real = options(dataset="diabetes", test=0.2, eta="0.001,0.01")
    code, out, _ = fedac("sweep", *real, "--standardize", "--out", tmp_path)
    assert code == 0
    assert all(title in out for title in ("test R2", "test MAE"))
    assert not any(title in out for title in ("accuracy", "AUC", "nan"))


def test_the_summary_tells_federations_apart(fedac, options, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    changes = {"workers": None, "clients": 6, "split": "iid,label", "participation": "0.5,1",
               "seeds": "1,2,3", "test": 0.25, "local_steps": 4}  # fmt: skip
    line = options(**changes)
    code, out, _ = fedac("sweep", *line, "--out", tmp_path)
    assert code == 0
    rows = [
        [cell.strip() for cell in row.split("│")[1:-1]] for row in out.splitlines() if "│" in row
    ]
    assert [row[:4] for row in rows] == [
        [algorithm, f"split {split}{share}", "6", "0"]
        for split in ("iid", "label")
        for share in (", participation 0.5", "")
        for algorithm in ("fedac-i", "mb-sgd")
    ]
    assert "test accuracy" in out
    assert "Median of 3 seeds, range in brackets." in out
    for row in rows:
        middle, low, high = map(
            float, row[4].replace("(", "").replace(" to ", " ").strip(")").split()
        )
        assert low <= middle <= high
    _, other, _ = fedac("sweep", *line, "--out", tmp_path, "--band", "confidence")
    assert "Mean of 3 seeds, 95% confidence interval in brackets." in other


def test_one_seed_has_no_band(fedac, options, tmp_path):
    _, out, _ = fedac("sweep", *options(), "--out", tmp_path)
    assert "seeds" not in out
    assert " to " not in out


@pytest.mark.parametrize(
    ("changes", "saying"),
    [
        ({"clients": 6}, "use either --workers or --clients"),
        ({"workers": None}, "give the number of --workers, or of --clients"),
        ({"workers": None, "clients": "6,"}, "--clients takes whole numbers separated by commas"),
        ({"workers": None, "clients": 6, "split": "lable"}, "unknown split 'lable'"),
        ({"participation": "0.5,a"}, "--participation takes numbers separated by commas"),
        ({"participation": "5"}, "participation=5 is more than the 4 clients"),
        ({"batch": "4,half"}, "--batch must be a whole number or 'full', got 'half'"),
        ({"batch": "4,4"}, "--batch: 4 is listed twice"),
        ({"weighting": "uniform"}, "--weighting needs --clients"),
        ({"weighting": "rows"}, "unknown weighting 'rows'; known: examples, uniform"),
        ({"decay": "1/t"}, "unknown decay '1/t'"),
        ({"test": "2"}, "a share to hold out must be between 0 and 1, got 2"),
        ({"test": "gone.t"}, "gone.t cannot be read"),
        ({"band": "iqr"}, "unknown band 'iqr'; known: confidence, quartiles, range"),
    ],
)
def test_mistakes_about_clients(assert_refused, options, tmp_path, changes, saying):
    assert_refused("sweep", *options(**changes), "--out", tmp_path / "out", saying=saying)
    assert not (tmp_path / "out").exists()


def test_an_algorithm_of_ones_own(fedac, assert_refused, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    (tmp_path / "own_command.py").write_text(
        "from dataclasses import replace; from fedac.algorithms import FEDAVG\n"
        "mine = replace(FEDAVG, name='mine')\n"
    )
    line = options(algorithms="own_command:mine, fedavg")
    code, out, _ = fedac("sweep", *line, "--out", tmp_path / "out")
    assert code == 0
    assert out.index(" mine ") < out.index(" fedavg ")
    line = options(algorithms="own_command:yours")
    assert_refused(
        "sweep",
        *line,
        "--out",
        "out",
        saying="unknown algorithm in module own_command, 'yo",
    )


def test_the_best_step_size_at_an_edge(fedac, options, tmp_path):
    code, out, _ = fedac("sweep", *options(), "--out", tmp_path)
    assert code == 0
    assert "0.5 (largest tried)" in out
    last = "Best step size at an edge of the grid, try a wider one: fedac-i, mb-sgd."
    assert out.splitlines()[-1] == last
    wider = options(eta="1e-3, 0.5, 1e3")
    assert "edge" not in fedac("sweep", *wider, "--out", tmp_path).out


def test_diverged_runs_are_no_result(fedac, options, tmp_path):
    hopeless = options(algorithms="fedavg", eta="1e8,1e9", l2="1", local_steps="4")
    code, out, _ = fedac("sweep", *hopeless, "--out", tmp_path)
    assert code == 0
    row = next(line for line in out.splitlines() if "fedavg" in line)
    assert row.replace("│", "").split() == ["fedavg", "4", "4", "-", "-", "-", "-"]
    assert "edge" not in out


def test_help_lists_algorithms_and_keys(fedac):
    out = fedac("sweep", "--help").out.replace("-\n", "-")
    text = " ".join(out.split()).replace("- ", "-")
    for name in (*ALGORITHMS, *LOSSES):
        assert name in text
    keys = text.partition("Keys of FILE.toml: ")[2].partition(". ")[0]
    assert keys.split(", ") == [SWEEP.name_of(name) for name in SWEEP.fields()]


def test_a_name_is_printed_as_it_is(fedac, grid, tmp_path):
    grid.write_text(grid.read_text().replace("small sweep", "[red]hi[/] [/foo]"))
    code, out, _ = fedac("sweep", grid, "--out", tmp_path)
    assert code == 0
    assert "[red]hi[/] [/foo]: 16 runs now" in " ".join(out.split())


def test_large_step_sizes_are_mentioned_once(fedac, options, tmp_path):
    code, _, err = fedac("sweep", *options(eta="0.1,1e3,1e4"), "--out", tmp_path / "out")
    assert code == 0
    assert err == (
        "fedac: 2 of 3 step sizes exceed 1/L; the theory covers eta <= 1/L only\n"
        "fedac: 8 of 24 runs are FedAvg in disguise: with eta mu K >= 1 FedAc does not accelerate\n"
    )


def test_dry_run(fedac, grid, tmp_path, monkeypatch):
    monkeypatch.delattr(workload, "run_problem")  # a small sweep is predicted without running any
    code, out, err = fedac("sweep", grid, "--dry-run", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.startswith("cells: 16, missing: 16\ngradient queries: 1.536e+03\nexpected time: ")
    assert out.endswith(" s on a typical machine\n")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    fedac("sweep", grid, "--out", tmp_path / "out")
    code, out, err = fedac("sweep", grid, "--dry-run", "--out", tmp_path / "out")
    assert out == "cells: 16, missing: 0\ngradient queries: 0.000e+00\nexpected time: 0 s\n"
    monkeypatch.setattr(experiment, "WORTH_MEASURING", 0.0)
    code, out, err = fedac("sweep", grid, "--dry-run")
    assert (code, err) == (0, "")
    assert out.endswith(" s\n")


def test_a_sweep_that_comes_with_fedac(fedac, assert_refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = fedac("sweep", "a9a-clients", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("cells: 2600, missing: 2600\n")
    assert_refused("sweep", "a9a", "--dry-run", saying="unknown sweep 'a9a'")


def test_what_is_missing(assert_refused, options, grid, tmp_path):
    assert_refused("sweep", saying="no grid given: pass FILE.toml, or --dataset, --l2")
    assert_refused("sweep", grid, saying="--out is missing")
    assert_refused("sweep", *options(eta=None), "--out", tmp_path, saying="--eta is missing")
    assert_refused(
        "sweep",
        grid,
        "--l2",
        "1",
        "--out",
        tmp_path,
        saying="grid.toml defines the grid: remove --l2",
    )
    assert_refused("sweep", tmp_path / "gone", "--out", tmp_path, saying="No such file")


@pytest.mark.parametrize(
    ("option", "value", "saying"),
    [
        ("workers", "4,8.5", "--workers takes whole numbers separated by commas, got '4,8.5'"),
        ("local_steps", "", "--local-steps takes whole numbers separated by commas, got ''"),
        ("local_steps", "3", "K=3 does not divide T=16"),
        ("seeds", "-1", "--seeds must be a whole number, at least 0, got -1"),
        ("eta", "x", "--eta takes numbers separated by commas, got 'x'"),
        ("eta", "0", "--eta must be a finite number above 0, got 0.0"),
        ("l2", "0", "--l2 must be a finite number above 0, got 0.0"),
        ("algorithms", "fedag", "unknown algorithm 'fedag'; did you mean 'fedavg'?"),
        ("workers", "4,8,4", "--workers: 4 is listed twice"),
        ("local_steps", "1,1", "--local-steps: 1 is listed twice"),
        ("eta", "0.5,.5", "--eta: 0.5 is listed twice"),
        ("seeds", "1,1", "--seeds: 1 is listed twice"),
        ("algorithms", "fedavg,fedavg", "--algorithms: fedavg is listed twice"),
        ("dataset", "a10a", "unknown data set 'a10a'"),
    ],
)
def test_bad_options(assert_refused, options, tmp_path, option, value, saying):
    out = tmp_path / "out"
    assert_refused("sweep", *options(**{option: value}), "--out", out, saying=saying)
    assert not out.exists()


def test_stores_that_cannot_be_used(assert_refused, grid, tmp_path):
    assert_refused("sweep", grid, "--out", grid, saying="is a file")
    (tmp_path / FILE).write_bytes(b"garbage" * 1000)
    assert_refused("sweep", grid, "--out", tmp_path, saying="is damaged")
    assert_refused("sweep", grid, "--out", tmp_path, "--dry-run", saying="is damaged")


def test_an_interrupt(fedac, grid, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run_groups", interrupted)
    code, out, err = fedac("sweep", grid, "--out", tmp_path / "out")
    assert (code, out) == (130, "")
    kept, last = err.splitlines()
    assert "finished runs are kept in" in kept
    assert last == "fedac: interrupted"


def test_an_interrupt_says_what_is_kept(fedac, grid, tmp_path, monkeypatch):
    whole = workload.run_problem
    calls = []

    def third_time(*arguments, **how):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments, **how)

    monkeypatch.setattr(workload, "run_problem", third_time)
    out = tmp_path / "out"
    code, said, err = fedac("sweep", grid, "--out", out)
    assert (code, said) == (130, "")
    assert err.splitlines() == [
        f"fedac: small sweep: 8 of 16 runs are kept in '{out}'; "
        "the same command continues from there",
        "fedac: interrupted",
    ]
    assert "8 runs now, 8 before, 16 in all" in fedac("sweep", grid, "--out", out).out


def test_runs_that_another_sweep_made_meanwhile_are_counted(fedac, grid, tmp_path, monkeypatch):
    choose = experiment.choose_runner
    out = tmp_path / "out"

    def overtaken(*given, **where):
        """Before anything that is planned is run, let another sweep have half of the grid."""
        monkeypatch.setattr(experiment, "choose_runner", choose)
        half = replace(read_grid(grid), workers=4)
        with Store(out, create=True) as store:
            experiment.run(half, store)
        return choose(*given, **where)

    monkeypatch.setattr(experiment, "choose_runner", overtaken)
    code, said, _ = fedac("sweep", grid, "--out", out)
    assert code == 0
    assert "8 runs now, 0 before, 8 by another sweep, 16 in all" in " ".join(said.split())


def test_the_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    best = (1.5e-3, "fedac-i", 0.5)
    with console.sweep_bar("small") as show:
        show(experiment.Progress(cells=16, done=0, queries=0, work=0.0, best=None))
        time.sleep(0.15)  # no rate is shown before
        show(experiment.Progress(cells=16, done=8, queries=10**6, work=0.5, best=best))
    shown = capsys.readouterr().err
    for part in ("small", "8/16", "M gradients/s", "best 1.50e-03, fedac-i, eta=0.5"):
        assert part in shown


def test_shards_and_jobs(fedac, grid, tmp_path):
    parts = [fedac("sweep", grid, "--out", tmp_path / part, "--shard", f"{part}/5")
             for part in "12345"]  # fmt: skip
    assert [code for code, _, _ in parts] == [0] * 5
    assert [out.split(" runs now")[0].split()[-1] for _, out, _ in parts[:4]] == ["4"] * 4
    assert (
        parts[4].out
        == "small sweep: nothing to do for shard 5/5: there are fewer groups than shards\n"
    )
    out = fedac("sweep", grid, "--out", tmp_path / "out", "--dry-run", "--shard", "1/5").out
    assert out.startswith("cells: 4, missing: 4\n")


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        (["--jobs", 0], "jobs must be a whole number, at least 1"),
        (["--jobs", 2, "--on", "ray"], "omit it on Ray"),
        (["--on", "slurm"], "on must be 'ray', or omitted to run on this machine; got 'slurm'"),
        (["--ray-address", "127.0.0.1:1"], "needs on='ray'"),
        (["--on", "ray", "--ray-address", ""], "the address of the Ray cluster is empty"),
        (["--shard", "0/3"], "there is no shard 0/3"),
        (["--dry-run", "--on", "ray"], "omit --on"),
    ],
)
def test_where_a_sweep_cannot_run(assert_refused, grid, tmp_path, options, saying):
    assert_refused("sweep", grid, "--out", tmp_path / "out", *options, saying=saying)
    assert not (tmp_path / "out").exists()
