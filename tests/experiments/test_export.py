# SPDX-License-Identifier: Apache-2.0
"""Exports: equal runs give equal bytes, and no export leaves half a file."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedac.errors import InputError
from fedac.experiments.export import with_costs, write_csv, write_parquet, write_traces
from fedac.experiments.store import TRAFFIC, Store
from fedac.experiments.workload import Outcome
from fedac.federation.link import DEFAULT_LINK, Link
from fedac.federation.spec import RunSpec

HEADER = (
    "dataset,l2,algorithm,M,K,T,eta,seed,status,best_loss,final_loss,"
    "best_suboptimality,final_suboptimality"
)
CONFIG = RunSpec(
    dataset="tiny",
    data_hash="0" * 64,
    l2=1e-3,
    algorithm="fedavg",
    M=4,
    local_steps=2,
    steps=8,
    eta=0.1,
    seed=1,
    record_every=4,
    precision="float32",
)
OUTCOME = Outcome(
    status="ok",
    steps=(0, 4, 8),
    losses=(0.7, 0.1, 0.3),
    f_star=0.05,
    bytes_up=48,
    bytes_down=48,
    n_samples=60,
    n_features=12,
    seconds=0.01,
)
GROUP = [(replace(CONFIG, eta=eta), OUTCOME) for eta in (10.0, 0.2, 0.1)]
NEXT_GROUP = [(replace(config, local_steps=4), outcome) for config, outcome in GROUP]


@pytest.fixture
def lines(tmp_path):
    """Give a function that stores some runs and returns the lines of an export."""

    def lines(runs, write=write_csv):
        with Store(tmp_path / "store", create=True) as store:
            store.add(runs)
            assert write(store, tmp_path / "runs.csv") >= 0
        text = (tmp_path / "runs.csv").read_bytes().decode()
        assert text.endswith("\n")
        return text[:-1].split("\n")

    return lines


@pytest.fixture
def before(lines):
    """Give the same lines without what runs cost, which comes last."""

    def before(*given):
        first, *others = (line.rsplit(",", 3) for line in lines(*given))
        assert first[1:] == ["rounds", "megabytes", "link_seconds"]
        return [line[0] for line in (first, *others)]

    return before


def test_csv(before):
    first, *others = before(GROUP)
    assert first == HEADER
    assert others[0] == "tiny,0.001,fedavg,4,2,8,0.1,1,ok,0.1,0.3,0.05,0.25"
    assert len(others) == 3


def test_numbers_have_the_digits_that_python_prints(before):
    losses = np.random.default_rng(0).lognormal(0, 20, size=200).tolist()
    runs = [
        (replace(CONFIG, seed=seed), replace(OUTCOME, losses=(1e300, 1e300, loss), f_star=loss / 3))
        for seed, loss in enumerate(losses)
    ]
    written = [line.split(",")[9:12] for line in before(runs)[1:]]
    assert written == [[repr(loss), repr(loss), repr(loss - loss / 3)] for loss in losses]


def test_a_diverged_run_has_no_final_loss(before):
    diverged = replace(OUTCOME, status="diverged", steps=(0, 4), losses=(0.7, 9.0))
    (_, line) = before([(CONFIG, diverged)])
    assert line.startswith("tiny,0.001,fedavg,4,2,8,0.1,1,diverged,0.7,,0.6")
    assert line.endswith(",")


def test_the_order_of_writing_does_not_matter(tmp_path):
    texts = []
    for name, order in (("a", [GROUP, NEXT_GROUP]), ("b", [NEXT_GROUP[::-1], GROUP[::-1]])):
        with Store(tmp_path / name, create=True) as store:
            for group in order:
                store.add(group)
            write_csv(store, tmp_path / f"{name}.csv")
        texts.append((tmp_path / f"{name}.csv").read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("changes", "columns", "values"),
    [
        ({"mu": 0.5}, "mu", ["0.001", "0.5"]),
        ({"loss": "least-squares", "data_hash": "1"}, "objective", ["logistic"]),
        ({"intercept": True, "data_hash": "1"}, "intercept", ["False", "True"]),
        ({"precision": "float64"}, "precision", ["float32", "float64"]),
        ({"record_every": 8}, "record_every", ["4", "8"]),
        ({"split": "label", "split_hash": "1"}, "split", ["", "label"]),
        ({"participation": 0.5}, "participation", ["1.0", "0.5"]),
        ({"batch": 4}, "batch", ["1", "4"]),
        ({"batch": "full"}, "batch", ["1", "full"]),
        ({"decay": "1/r"}, "decay", ["", "1/r"]),
    ],
)
def test_an_option_that_is_used_has_a_column(before, changes, columns, values):
    first, *others = before([(CONFIG, OUTCOME), (replace(CONFIG, **changes), OUTCOME)])
    assert first == f"{HEADER},{columns}"
    assert {line.split(",")[-1] for line in others} >= set(values)


def test_all_options_of_clients(before):
    clients = replace(
        CONFIG, split="iid", split_seed=2, split_hash="1", participation=0.5, batch=4,
        weighting="uniform", decay="1/r",
    )  # fmt: skip
    first, line = before([(clients, OUTCOME)])
    assert first == f"{HEADER},split,split_seed,participation,batch,weighting,decay"
    assert line.endswith(",iid,2,0.5,4,uniform,1/r")


TESTED = replace(OUTCOME, test_losses=(0.9, 0.2, 0.4), test_accuracies=(0.5, 0.75, 0.625))


def test_results_on_a_test_set(before):
    tested = replace(CONFIG, test="tiny.t", test_hash="1")
    first, *others = before([(tested, TESTED), (CONFIG, OUTCOME)])
    assert first == f"{HEADER},test,test_loss,test_accuracy"
    assert {line.split(",", 13)[-1] for line in others} == {"tiny.t,0.4,0.625", ",,"}


def test_traces_on_a_test_set(before):
    tested = replace(CONFIG, test="tiny.t", test_hash="1")
    first, *others = before([(tested, TESTED)], write_traces)
    assert first.endswith(",seed,test,status,step,loss,suboptimality,test_loss,test_accuracy")
    assert [line.rsplit(",", 2)[1:] for line in others] == [
        ["0.9", "0.5"], ["0.2", "0.75"], ["0.4", "0.625"],
    ]  # fmt: skip


def test_further_metrics_have_columns_where_there_are_values(before):
    tested = replace(CONFIG, test="tiny.t", test_hash="1")
    classes = replace(TESTED, metrics={"log-loss": (0.9, 0.2, 0.4), "auc": (0.5, 0.75, 0.875)})
    first, *others = before([(tested, classes), (CONFIG, OUTCOME)])
    assert first == f"{HEADER},test,test_loss,test_accuracy,test_auc,test_log_loss"
    expected = {"tiny.t,0.4,0.625,0.875,0.4", ",,,,"}
    assert {line.split(",", 13)[-1] for line in others} == expected
    nan = (math.nan,) * 3
    real = replace(TESTED, test_accuracies=nan, metrics={"mae": (3.0, 2.0, 1.5)})
    first, *others = before([(replace(tested, test_hash="2"), real)], write_traces)
    real_too = ",test_loss,test_accuracy,test_auc,test_log_loss,test_mae"
    assert first.endswith(real_too)  # one store may have both


def test_real_targets_have_no_accuracy(before):
    tested = replace(CONFIG, test="tiny.t", test_hash="1")
    outcome = replace(TESTED, test_accuracies=(math.nan,) * 3, metrics={"mae": (3.0, 2.0, 1.5)})
    first, line = before([(tested, outcome)])
    assert first == f"{HEADER},test,test_loss,test_mae"
    assert line.endswith(",tiny.t,0.4,1.5")


def test_data_sets_of_one_name_are_told_apart(before):
    other = replace(CONFIG, data_hash="1" * 64)
    first, *others = before([(CONFIG, OUTCOME), (other, OUTCOME)])
    assert first == HEADER
    assert {line.split(",")[0] for line in others} == {"tiny (000000)", "tiny (111111)"}


def test_traces(before):
    first, *others = before(GROUP, write_traces)
    assert first == "key,dataset,l2,algorithm,M,K,T,eta,seed,status,step,loss,suboptimality"
    assert len(others) == 3 * 3
    assert others[:3] == [
        f"{CONFIG.key},tiny,0.001,fedavg,4,2,8,0.1,1,ok,{step},{loss},{loss - 0.05}"
        for step, loss in zip(OUTCOME.steps, OUTCOME.losses, strict=True)
    ]


def test_what_runs_cost(lines):
    """The numbers by hand: 12 numbers of 4 bytes, which one vector is made of."""
    sent = 4 * 12 * 4 / 1e6  # in 4 rounds
    first, whole = lines([(CONFIG, OUTCOME)])
    assert whole.endswith(f",4,{2 * sent},{4 * (0.05 + 2 * 48 * 8 / 200e6 + 2 * 0.00202)!r}")
    int8 = replace(CONFIG, wire="int8", participation=0.5)
    first, one, _ = lines([(int8, replace(OUTCOME, bytes_up=12 + 4))])
    assert first.endswith(",participation,wire,rounds,megabytes,link_seconds")
    assert float(one.split(",")[-2]) == pytest.approx(4 * (16 + 48) / 1e6)
    traces = lines([], write_traces)
    assert [line.split(",")[-3] for line in traces[-3:]] == ["0", "2", "4"]


@pytest.mark.parametrize(
    ("batch", "split", "rows"), [(8, "", 8), ("full", "", 61), ("full", "label", 16)]
)
def test_seconds_of_stored_batches(tmp_path, batch, split, rows):
    """Full batches of a split count as equal parts of all rows, rounded up."""
    config = replace(CONFIG, batch=batch, split=split, split_hash="1" * 64 if split else "")
    with Store(tmp_path / "store", create=True) as store:
        store.add([(config, replace(OUTCOME, n_samples=61))])
        runs = with_costs(store.frame(), Link(row=1.0))
    assert runs["link_seconds"].tolist() == [8.0 * rows]


def test_seconds_follow_the_link(store, tmp_path):
    for link, seconds in ((Link(gradient=1.0), 8.0), (Link(latency=3.0), 12.0)):
        write_csv(store, tmp_path / "runs.csv", link)
        assert set(pd.read_csv(tmp_path / "runs.csv")["link_seconds"]) == {seconds}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store", create=True) as store:
        store.add(GROUP)
        yield store


def test_a_failed_export_leaves_the_old_file(store, tmp_path, monkeypatch):
    path = tmp_path / "runs.csv"
    path.write_text("old")

    def full(self, file, **_):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_csv", full)
        with pytest.raises(InputError, match=r"cannot write '.*': No space left on device"):
            write_csv(store, path)
    assert path.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [path, store.path.parent]
    with pytest.raises(InputError, match=r"cannot write '.*': there is no folder '.*gone'"):
        write_csv(store, tmp_path / "gone" / "runs.csv")
    with pytest.raises(InputError, match="is a folder"):
        write_csv(store, tmp_path)


def test_parquet(store, tmp_path):
    pytest.importorskip("pyarrow")
    write_parquet(store, tmp_path / "runs.parquet")
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "runs.parquet"),
        with_costs(store.frame(), DEFAULT_LINK).drop(columns=TRAFFIC),
    )


def test_parquet_without_pyarrow(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        write_parquet(store, tmp_path / "runs.parquet")
