"""`fedac sweep`: files and options, what it prints, and what it refuses."""

from __future__ import annotations

import pytest

from fedac.cli import sweep as command
from fedac.experiments import sweep as experiment
from fedac.experiments.store import FILE

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


def test_a_name_is_printed_as_it_is(fedac, grid, tmp_path):
    grid.write_text(grid.read_text().replace("small sweep", "[red]hi[/] [/foo]"))
    code, out, _ = fedac("sweep", grid, "--out", tmp_path)
    assert code == 0
    assert "[red]hi[/] [/foo]: 16 runs now" in " ".join(out.split())


def test_large_step_sizes_are_mentioned_once(fedac, options, tmp_path):
    code, _, err = fedac("sweep", *options(eta="0.1,1e3,1e4"), "--out", tmp_path / "out")
    assert code == 0
    assert err == "fedac: 2 of 3 step sizes exceed 1/L; the theory covers eta <= 1/L only\n"


def test_dry_run(fedac, grid, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "CALIBRATION_SECONDS", 0.0)
    code, out, err = fedac("sweep", grid, "--dry-run", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.startswith("cells: 16, missing: 16\ngradient queries: 1.536e+03\nexpected time: ")
    assert not (tmp_path / "out").exists()
    fedac("sweep", grid, "--out", tmp_path / "out")
    code, out, err = fedac("sweep", grid, "--dry-run", "--out", tmp_path / "out")
    assert out == "cells: 16, missing: 0\ngradient queries: 0.000e+00\nexpected time: 0 s\n"
    assert fedac("sweep", grid, "--dry-run").code == 0


def test_what_is_missing(refuses, options, grid, tmp_path):
    refuses("sweep", saying="give a grid as FILE.toml, or --dataset, --l2")
    refuses("sweep", grid, saying="--out is missing")
    refuses("sweep", *options(eta=None), "--out", tmp_path, saying="--eta is missing")
    refuses("sweep", grid, "--l2", "1", "--out", tmp_path, saying="grid.toml says what to run")
    refuses("sweep", tmp_path / "gone", "--out", tmp_path, saying="No such file")


@pytest.mark.parametrize(
    ("option", "value", "saying"),
    [
        ("workers", "4,8.5", "--workers takes whole numbers separated by commas, got '4,8.5'"),
        ("local_steps", "", "--local-steps takes whole numbers separated by commas, got ''"),
        ("local_steps", "3", "--local-steps: K=3 does not divide T=16"),
        ("seeds", "-1", "--seeds should be greater than or equal to 0, got -1"),
        ("eta", "x", "--eta takes numbers separated by commas, got 'x'"),
        ("eta", "0", "--eta should be greater than 0, got 0.0"),
        ("l2", "0", "--l2 should be greater than 0, got 0.0"),
        ("algorithms", "fedag", "--algorithms: unknown algorithm 'fedag'; did you mean 'fedavg'?"),
        ("dataset", "a10a", "unknown data set 'a10a'"),
    ],
)
def test_bad_options(refuses, options, tmp_path, option, value, saying):
    refuses("sweep", *options(**{option: value}), "--out", tmp_path, saying=saying)


def test_stores_that_cannot_be_used(refuses, grid, tmp_path):
    refuses("sweep", grid, "--out", grid, saying="is a file")
    (tmp_path / FILE).write_bytes(b"garbage" * 1000)
    refuses("sweep", grid, "--out", tmp_path, saying="is damaged")
    refuses("sweep", grid, "--out", tmp_path, "--dry-run", saying="is damaged")


def test_an_interrupt(fedac, grid, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run", interrupted)
    assert fedac("sweep", grid, "--out", tmp_path / "out") == (130, "", "fedac: interrupted\n")


def test_the_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    best = experiment.Best(1.5e-3, "fedac-i", 0.5)
    with command.sweep_bar("small") as show:
        show(experiment.Event(cells=16, done=0, queries=0, work=0.0, best=None))
        show(experiment.Event(cells=16, done=8, queries=10**6, work=0.5, best=best))
    shown = capsys.readouterr().err
    for part in ("small", "8/16", "M gradients/s", "best 1.50e-03: fedac-i, eta=0.5"):
        assert part in shown
