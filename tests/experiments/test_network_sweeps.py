# SPDX-License-Identifier: Apache-2.0
"""Sweeps of networks: resumed, in several processes, exported and reported."""

from __future__ import annotations

import pandas as pd
import pytest

from fedac.errors import InputError
from fedac.experiments import sweep, workload
from fedac.experiments.export import write_csv, write_traces
from fedac.experiments.grid import make_grid
from fedac.experiments.merge import Shard
from fedac.experiments.report import render
from fedac.experiments.store import Store
from fedac.experiments.workload import Workload, prepare

USUAL = {
    "dataset": "digits", "model": "mlp(8)", "algorithms": ("fedavg", "scaffold"), "clients": 8,
    "split": "dirichlet(0.3)", "participation": 0.5, "local_steps": (2, 4), "rounds": 6,
    "batch": 8, "eta": (0.1, 0.5), "test": 0.2, "record_every": 4,
}  # fmt: skip


def run(folder, *, where=None, **values):
    """Run a grid; return what `fedac export` writes."""
    with Store(folder, create=True) as store:
        sweep.run(make_grid(**USUAL | values), store, **where or {"jobs": 1})
        write_csv(store, folder / "runs.csv")
        write_traces(store, folder / "traces.csv")
    return (folder / "runs.csv").read_bytes(), (folder / "traces.csv").read_bytes()


@pytest.fixture
def choose(monkeypatch):
    """Give a function that makes the timing prefer a back end, and the list of its choices."""

    def choose(name):
        made = []
        monkeypatch.setattr(Workload, "faster_backend", lambda *_: made.append(name) or name)
        return made

    return choose


def test_the_export_has_losses_and_metrics_but_no_suboptimality(tmp_path):
    run(tmp_path, backend="batched")
    runs, traces = pd.read_csv(tmp_path / "runs.csv"), pd.read_csv(tmp_path / "traces.csv")
    assert list(runs) == [
        "dataset", "l2", "algorithm", "M", "K", "T", "eta", "seed", "status", "best_loss",
        "final_loss", "model", "objective", "backend", "split", "participation", "batch", "test",
        "test_loss", "test_accuracy", "client_loss_spread", "client_loss_worst", "rounds",
        "megabytes", "link_seconds",
    ]  # fmt: skip
    assert set(runs["dataset"]) == {"digits, 80% of its rows, mlp(8)"}
    assert (len(runs), set(runs["l2"]), set(runs["backend"])) == (8, {0.0}, {"batched"})
    bytes_of_w = 4 * (64 * 8 + 8 + 8 * 10 + 10)
    once = runs["algorithm"].map({"fedavg": 1, "scaffold": 2})  # with c, which travels too
    assert runs["megabytes"].tolist() == pytest.approx(2 * 6 * bytes_of_w * once / 1e6)
    assert traces.groupby("key")["step"].agg(list).map(tuple).nunique() == 2
    assert "suboptimality" not in traces
    assert traces["client_loss_worst"].notna().all()


def test_jobs_do_not_change_a_byte(tmp_path):
    alone = run(tmp_path / "1", backend="batched")
    assert run(tmp_path / "2", backend="batched", where={"jobs": 2}) == alone


def test_the_back_end_is_chosen_once_and_stored(tmp_path, choose):
    made = choose("loop")
    # Worker processes would choose by their own timing.
    run(tmp_path / "resumed", where={"jobs": 2})
    assert made == ["loop"]
    made = choose("batched")
    found = run(tmp_path / "resumed", seeds=(1, 2))
    assert made == []
    assert found == run(tmp_path / "fixed", seeds=(1, 2), backend="loop")
    run(tmp_path / "other", where={"jobs": 1})
    assert made == ["batched"]


def test_shards_do_not_depend_on_the_speed_of_the_machine(monkeypatch):
    task, groups = prepare(make_grid(**USUAL | {"local_steps": (2, 4, 8), "seeds": (1, 2)}))
    found = []
    for part in (1, 2):  # on two machines, the second of which is slow at random
        speed = iter(range(part, 1000, part**2))
        monkeypatch.setattr(workload, "_step_seconds", lambda *_, speed=speed: next(speed))
        found += sweep.select(task, groups, Shard(part, 2))
    assert sorted(group[0].key for group in found) == sorted(group[0].key for group in groups)


def test_another_network_in_the_store_chooses_for_itself(tmp_path, choose):
    choose("loop")
    run(tmp_path)
    assert choose("batched") == []
    run(tmp_path, model="mlp(4)")
    runs = pd.read_csv(tmp_path / "runs.csv")
    chosen = runs.groupby("dataset")["backend"].unique().map(list).to_dict()
    name = "digits, 80% of its rows"
    assert chosen == {f"{name}, mlp(4)": ["batched"], f"{name}, mlp(8)": ["loop"]}


def test_epochs_instead_of_local_steps(tmp_path):
    values = {name: value for name, value in USUAL.items() if name != "local_steps"}
    with Store(tmp_path, create=True) as store:
        grid = make_grid(**values | {"split": "iid", "epochs": (1, 2)})
        sweep.run(grid, store, jobs=1)
        runs = store.frame()
    assert dict(zip(runs["epochs"], runs["K"], strict=True)) == {1: 23, 2: 46}  # 180 rows by 8
    with pytest.raises(InputError, match="epochs and local_steps both give the steps"):
        make_grid(**USUAL | {"epochs": 1})


def test_the_report_speaks_of_losses(tmp_path):
    run(tmp_path)
    with Store(tmp_path) as store:
        page = render(store)
    assert "<title>Training loss against communication" in page
    assert "with a training loss of at most the target" in page
    assert "F&nbsp;&minus;&nbsp;F*" not in page
