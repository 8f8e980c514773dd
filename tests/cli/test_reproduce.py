# SPDX-License-Identifier: Apache-2.0
"""`fedac reproduce`, on grids that take a moment."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

import pandas as pd
import pytest

from fedac.cli import paper as command
from fedac.experiments import grid, report, workload
from fedac.experiments.store import Store
from fedac.experiments.summary import A9A, tuned

pytestmark = pytest.mark.slow

TINY = """
name = "{name}"
dataset = "{dataset}"
l2 = {l2}
algorithms = {algorithms}
steps = 16
record_every = 8
workers = [4, 512]
local_steps = [1, 8]
eta = [0.1, 0.5]
"""
FOUR = '["fedac-i", "fedavg", "mb-sgd", "mb-ac-sgd"]'
THREE = '["fedac-vanilla", "fedac-i", "mb-ac-sgd"]'


@pytest.fixture(autouse=True)
def _tiny_grids(monkeypatch, tmp_path_factory, small):
    """Ship tiny sweeps, on the small file where the paper has a9a."""
    folder = tmp_path_factory.mktemp("sweeps")
    for name, dataset, algorithms in [
        ("a9a-l2-1e-2", small, FOUR),
        ("a9a-l2-1e-3", small, FOUR),
        ("a9a-l2-1e-4", small, THREE),
        ("epsilon-l2-1e-4", "epsilon", FOUR),
    ]:
        text = TINY.format(name=name, dataset=dataset, l2=name[-4:], algorithms=algorithms)
        (folder / f"{name}.toml").write_text(text)
    monkeypatch.setattr(grid, "SHIPPED", (folder,))


@pytest.fixture(autouse=True)
def _no_epsilon(monkeypatch):
    monkeypatch.delenv("FEDAC_DATA", raising=False)


def pictures(folder):
    return sorted(path.name for path in (folder / "figures").iterdir())


def test_two_figures_of_one_sweep(fedac, tmp_path):
    out = tmp_path / "new" / "földer [red]"
    code, said, err = fedac("reproduce", "figure-3", "figure-1", "figure-3", "--out", out)
    assert code == 0
    assert err.startswith("a9a-l2-1e-3: 32 runs in ")
    assert err.count("\n") == 1
    one, three, page, last = said.splitlines()
    title = "Figure 1: small in place of a9a, l2 = 0.001, over the workers M"
    assert one == f"{title}: {out / 'figures' / 'figure-1.png'}, figure-1.pdf"
    assert three.startswith("Figure 3: small in place of a9a")
    assert page == f"Everything in one file: {out / 'report.html'}"
    assert (out / "report.html").stat().st_size > 1_000_000
    assert last == "There are no published runs to compare these with."
    names = ["figure-1.pdf", "figure-1.png", "figure-3.pdf", "figure-3.png"]
    assert pictures(out) == names
    with Store(out) as store:
        assert len(store.frame()) == 32


def test_a_second_run_redoes_nothing_and_draws_the_same(fedac, monkeypatch, tmp_path):
    def forbidden(*_, **__):
        raise AssertionError("a run was made again")

    assert fedac("reproduce", "figure-2", "--out", tmp_path).code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    monkeypatch.setattr(workload, "run_problem", forbidden)
    code, _, err = fedac("reproduce", "figure-2", "--out", tmp_path)
    assert code == 0
    assert "0 runs in" in err
    assert "24 before" in err
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}


def test_more_seeds_add_their_runs_only(fedac, tmp_path):
    fedac("reproduce", "figure-1", "--out", tmp_path)
    _, _, err = fedac("reproduce", "figure-1", "--out", tmp_path, "--seeds", "1,2,3")
    assert "64 runs in" in err
    assert "32 before" in err


def test_all_without_epsilon(fedac, tmp_path):
    code, said, err = fedac("reproduce", "all", "--out", tmp_path)
    assert code == 0
    assert [line.split(":")[0] for line in said.splitlines()[:-2]] == [
        f"Figure {number}" for number in range(1, 6)
    ]
    first = err.splitlines()[0]
    assert first.startswith("fedac: skipping figures 6 and 7: epsilon is not on this machine")
    assert "'fedac data fetch epsilon'" in first
    assert "--dataset synthetic-dense" in first


@pytest.mark.parametrize("names", [["figure-6"], ["figure-1", "figure-7"]])
def test_epsilon_is_not_downloaded_unasked(assert_refused, tmp_path, names):
    assert_refused(
        "reproduce", *names, "--out", tmp_path / "out", saying="epsilon is not on this machine"
    )
    assert_refused(
        "reproduce", *names, "--out", tmp_path / "out", saying="--dataset synthetic-dense"
    )
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_and_format_of_epsilon(fedac, monkeypatch, tmp_path):
    """The loading path, with a registry that expects three rows."""
    from dataclasses import replace

    from fedac.data import registry

    rows = ["1 1:-1.2e-02 2:3.0e-02 3:0.5", "-1 1:1.0e-02 2:-3.0e-02 3:0.1", "1 1:0.3 2:0.2 3:0.1"]
    (tmp_path / "epsilon_normalized").write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("FEDAC_DATA", str(tmp_path))
    here = replace(registry.SOURCES["epsilon"], n_samples=3, n_features=3)
    monkeypatch.setitem(registry.SOURCES, "epsilon", here)
    code, said, _ = fedac("reproduce", "figure-6", "--out", tmp_path / "out")
    assert code == 0
    assert said.startswith("Figure 6: epsilon, l2 = 0.0001, over the workers M")


def test_the_dense_stand_in(fedac, monkeypatch, tmp_path):
    from fedac.data import dense, registry

    monkeypatch.setitem(registry.GENERATED, "synthetic-dense", lambda: dense(40, 10))
    code, said, err = fedac(
        "reproduce", "figure-6", "--dataset", "synthetic-dense", "--out", tmp_path
    )
    assert code == 0
    title, _, last = said.splitlines()
    assert title.startswith("Figure 6: synthetic-dense in place of epsilon, l2 = 0.0001")
    assert last == "There are no published runs to compare these with."
    assert "16 runs in" in err  # without the 512 workers


def test_comparison_tables(fedac, monkeypatch, tmp_path):
    values = {1: 0.3333647456 + 2e-5, 8: 0.334, 128: 0.3343814553}
    f_star = 0.3333407520687
    row = {"dataset": "a9a", "l2": 1e-3, "algorithm": "fedac-i", "M": 8192, "T": 4096, "seed": 1}
    row |= {
        "data_hash": A9A[1e-3],
        "n_samples": 32_561,
        "n_features": 123,
        "f_star": f_star,
        "federation": "",
    }
    rows = [row | {"key": str(K), "K": K, "eta": 0.1, "trained_loss": v} for K, v in values.items()]
    best = tuned(pd.DataFrame(rows))
    monkeypatch.setattr(command, "_tuned_runs", lambda *_: best)
    paper = grid.read_grid(grid.shipped("a9a-l2-1e-3"))
    paper = replace(paper, workers=8192, local_steps=tuple(values), steps=4096)
    monkeypatch.setattr(command, "_grid", lambda *_: paper)
    monkeypatch.setattr(report, "write", lambda store, path, band: path)
    code, said, _ = fedac("reproduce", "figure-3", "--out", tmp_path)
    assert code == 0
    table = [line.split("│") for line in said.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line[1:-1]] for line in table]
    assert cells[0][:3] == ["a9a, l2 = 0.001", "3", "3"]
    assert [line[1] for line in cells[1:4]] == ["FedAc-I"] * 3
    assert cells[3][4:] == ["0.1 (only one tried)", "1.04e-03", "1.04e-03", "+0.00"]
    # At most 1e-3: not the 32 rounds, which end at 1.04e-3.
    target = "0.001 on a9a, l2 = 0.001, M = 8192"
    assert cells[4] == [target, "FedAc-I", "512", "0.1 (only one tried)", "512", "32"]
    assert "edge of those tried in 3 of 3 cells: the only one in 3." in said


def test_help_lists_the_figures(fedac):
    from fedac.experiments.reproduction.figures import FIGURES

    said = fedac("reproduce", "--help").out
    for figure in FIGURES.values():
        (line,) = (line for line in said.splitlines() if line.strip().startswith(figure.name))
        over = "workers M" if figure.over == "M" else "local steps K"
        assert f"{figure.dataset}, l2 = {figure.l2:g}, " in line
        assert over in line
    assert "figure-1 to figure-7, or all." in said


def test_a_file_of_ones_own_called_a9a_is_not_the_papers(fedac, tmp_path, small):
    own = tmp_path / "a9a"
    own.write_bytes(small.read_bytes())
    code, said, _ = fedac("reproduce", "figure-1", "--dataset", own, "--out", tmp_path / "out")
    assert code == 0
    assert re.match(r"Figure 1: a9a \([0-9a-f]{6}\) in place of a9a, l2 = 0.001", said)
    assert said.endswith("There are no published runs to compare these with.\n")


def test_bad_input(assert_refused, tmp_path, write):
    assert_refused(
        "reproduce", "figure-8", saying="unknown figure 'figure-8'; did you mean 'figure-"
    )
    assert_refused("reproduce", "al", saying="did you mean 'all'?")
    assert_refused("reproduce", saying="FIGURE")
    assert_refused(
        "reproduce",
        "figure-1",
        "--out",
        write(b"", "taken"),
        saying="--out takes a writable folder",
    )
    assert_refused(
        "reproduce", "figure-1", "--seeds", "a", "--out", tmp_path, saying="--seeds takes"
    )
    assert_refused("reproduce", "figure-1", "--seeds", "-1", "--out", tmp_path, saying="--seeds")
    assert_refused(
        "reproduce", "figure-1", "--seeds", "1,1", "--out", tmp_path, saying="1 is listed twice"
    )


@pytest.mark.parametrize(
    ("content", "saying"),
    [(None, "unknown data set 'nope'"), (b"+1 1:x\n", "the value is not a finite number")],
)
def test_data_that_cannot_be_used_leave_nothing_behind(
    assert_refused, write, tmp_path, monkeypatch, content, saying
):
    monkeypatch.chdir(tmp_path)
    dataset = "nope" if content is None else write(content)
    assert_refused("reproduce", "figure-1", "--dataset", dataset, "--out", "nope", saying=saying)
    assert not (tmp_path / "nope").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_what_is_kept(fedac, monkeypatch, tmp_path, number):
    def interrupted(*_, **__):
        signal.raise_signal(number)

    monkeypatch.setattr(workload, "run_problem", interrupted)
    code, said, err = fedac("reproduce", "figure-1", "--out", tmp_path)
    assert (code, said) == (130, "")
    first, last = err.splitlines()
    assert first.startswith(f"fedac: a9a-l2-1e-3: 0 of 32 runs are kept in '{tmp_path}'; the same")
    assert last == "fedac: interrupted"
