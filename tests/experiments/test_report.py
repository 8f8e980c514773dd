# SPDX-License-Identifier: Apache-2.0
"""What the report holds, and the command that writes it."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from dataclasses import replace

import pytest

from fedac.algorithms import ALGORITHMS
from fedac.cli import main
from fedac.errors import InputError
from fedac.experiments.export import costs_of
from fedac.experiments.report import render, write
from fedac.experiments.reproduction.published import F_STAR, published_runs
from fedac.experiments.store import Store
from fedac.experiments.summary import A9A
from fedac.experiments.workload import Outcome
from fedac.federation.link import Link
from fedac.federation.spec import RunSpec

pytestmark = pytest.mark.slow

STEPS = (0, 2048, 4096)
OTHER = {"dataset": "mine", "data_hash": "0" * 64}
EPSILON = {"dataset": "epsilon", "data_hash": "0" * 64, "l2": 1e-4, "shape": (400_000, 2_000)}


def run(eta=0.5, seed=1, final=2e-3, losses=None, status="ok", shape=(32_561, 123), **changes):
    """Give a run of a9a at M = 64, K = 8 that ends at this suboptimality."""
    config = {
        "dataset": "a9a", "data_hash": A9A[1e-3], "l2": 1e-3, "algorithm": "fedac-i", "M": 64,
        "K": 8, "T": 4096, "eta": eta, "seed": seed, "record_every": 2048, "precision": "float32",
    } | changes  # fmt: skip
    f_star = F_STAR["a9a", 1e-3]
    names = {"K": "local_steps", "T": "steps", "objective": "loss"}
    return RunSpec(**{names.get(name, name): value for name, value in config.items()}), Outcome(
        status=status,
        steps=STEPS,
        losses=losses or (f_star + 1, f_star + 0.1, f_star + final),
        f_star=f_star,
        bytes_up=2 * 492,  # two vectors
        bytes_down=2 * 492,
        n_samples=shape[0],
        n_features=shape[1],
        seconds=0.25,
    )


@pytest.fixture
def store(tmp_path):
    """Give a function that makes a store of some runs."""
    stores = []

    def store(*runs):
        stores.append(Store(tmp_path, create=True))
        stores[-1].add(runs)
        return stores[-1]

    yield store
    for each in stores:
        each.__exit__()


def data(text):
    """Return what the page draws from."""
    (packed,) = re.findall(r'id="data-packed">([^<]+)<', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_a_cell_is_the_best_step_size_beside_the_published_one(store):
    page = data(render(store(run(eta=0.1, final=4e-3), run(eta=0.5), run(eta=2.0, final=3e-3))))
    theirs = published_runs().query(
        "dataset == 'a9a' and l2 == 0.001 and algorithm == 'fedac-i' and M == 64 and K == 8"
    )
    assert page["problems"]["dataset"] == ["a9a"]
    assert page["problems"]["f_star"] == [pytest.approx(F_STAR["a9a", 1e-3])]
    assert page["algorithms"]["label"] == ["FedAc-I"]
    cell = {name: values[0] for name, values in page["cells"].items()}
    assert len(page["cells"]["M"]) == 1
    assert (cell["M"], cell["K"], cell["step_size"], cell["seeds"]) == (64, 8, "0.5", 1)
    assert cell["middle"] == cell["low"] == cell["high"] == pytest.approx(2e-3)
    assert cell["published"] == pytest.approx(theirs["suboptimality"].item(), rel=1e-5)
    assert cell["published_eta"] == theirs["eta"].item()
    # 512 rounds, two vectors of 123 numbers up and two down.
    assert cell["megabytes"] == pytest.approx(512 * 4 * 492 / 1e6, rel=1e-5)
    # On a wide-area network: 50 ms, 1968 bytes at 200 Mbit/s and 8 steps of 2.02 ms.
    assert cell["seconds"] == pytest.approx(512 * (0.05 + 8 * 1968 / 200e6 + 8 * 0.00202), rel=1e-5)


def test_all_traces_are_there_and_the_best_is_marked(store):
    page = data(render(store(run(eta=0.1, final=4e-3), run(eta=0.5))))
    assert page["steps"] == [list(STEPS)]
    traces = page["traces"]
    assert traces["cell"] == [0, 0]
    assert traces["eta"] == [0.1, 0.5]
    assert traces["best"] == [False, True]
    assert traces["values"] == [[1.0, 0.1, 4e-3], [1.0, 0.1, 2e-3]]


def test_seeds_give_a_median_and_a_range(store):
    runs = [run(seed=seed, final=seed * 1e-3) for seed in (1, 2, 6)]
    cells = data(render(store(*runs)))["cells"]
    summary = [cells[name][0] for name in ("low", "middle", "high", "seeds")]
    assert summary == pytest.approx([1e-3, 2e-3, 6e-3, 3])


def test_seeds_may_give_a_mean_and_a_confidence_interval(store):
    runs = [run(seed=seed, final=seed * 1e-3) for seed in (1, 2, 6)]
    page = data(render(store(*runs), "confidence"))
    # The deviations from the mean, 3, are -2, -1 and 3: variance 7. t(0.975; 2) = 4.302653.
    half = 4.302652729911275 * math.sqrt(7 / 3) * 1e-3
    summary = [page["cells"][name][0] for name in ("low", "middle", "high")]
    assert summary == pytest.approx([3e-3 - half, 3e-3, 3e-3 + half], rel=1e-5)
    assert page["seeds"] == {"middle": "mean", "band": "95% confidence interval"}
    with pytest.raises(InputError, match="unknown band 'iqr'"):
        render(store(), "iqr")


LABEL = {"split": "label", "split_hash": "1" * 64}


def test_seconds_end_where_those_of_the_runs_end(store):
    home = Link.parse("home")
    runs = store(
        *(run(eta=eta, seed=seed, final=eta) for eta, seed in [(1e-3, 1), (1e-4, 1), (1e-3, 2)])
    )
    ends = {each.seed: costs_of(each, home).seconds[-1] for each in runs.frame().itertuples()}
    assert ends[1] != ends[2]
    page = data(render(runs, link=home))
    assert page["traces"]["seed"] == [1, 1, 2]
    assert page["traces"]["seconds"] == pytest.approx([ends[1], ends[1], ends[2]], rel=1e-5)
    assert page["cells"]["seconds"] == pytest.approx([(ends[1] + ends[2]) / 2], rel=1e-5)
    assert page["headlines"]["seconds"][0] == page["cells"]["seconds"][0]
    assert page["headlines"]["megabytes"][0] == page["cells"]["megabytes"][0]
    assert page["headlines"]["seconds"][-1] is None  # no rounds reach the smallest target
    assert page["link"].startswith("home: a round trip takes 30 ms")


def test_federations_are_problems_of_their_own(store):
    half = LABEL | {"participation": 0.5, "batch": 4}
    page = data(render(store(run(final=1e-3), run(**LABEL, final=2e-3), run(**half, final=3e-3))))
    assert page["problems"]["problem"] == [
        "a9a, l2 = 0.001",
        "a9a, l2 = 0.001, split label",
        "a9a, l2 = 0.001, split label, participation 0.5, batch 4",
    ]
    cells = dict(zip(page["cells"]["problem"], page["cells"]["middle"], strict=True))
    assert list(cells) == page["problems"]["problem"]
    assert list(cells.values()) == pytest.approx([1e-3, 2e-3, 3e-3], rel=1e-5)
    # Only workers that draw from all rows were published.
    assert [value is None for value in page["cells"]["published"]] == [False, True, True]
    assert page["problems"]["federation"] == ["", *(each[17:] for each in list(cells)[1:])]


def test_with_uniform_weights_there_may_be_several_minima(store):
    config, outcome = run(**LABEL, weighting="uniform")
    larger = replace(config, M=128), replace(outcome, f_star=outcome.f_star / 2)
    assert data(render(store((config, outcome))))["problems"]["f_star"] == [
        pytest.approx(outcome.f_star)
    ]
    assert data(render(store(larger)))["problems"]["f_star"] == [None]


def test_accuracies_are_there_if_there_is_a_test_set(store):
    plain = data(render(store(run())))
    assert "accuracy" not in plain["cells"]
    assert "accuracies" not in plain["traces"]
    for seed, accuracy in ((2, 0.8), (3, 0.9), (4, 0.7)):
        config, outcome = run(seed=seed, **OTHER, test="mine.t", test_hash="2" * 64)
        metrics = {"test_losses": (1.0, 0.5, 0.4), "test_accuracies": (0.5, 0.6, accuracy)}
        page = data(render(store((config, replace(outcome, **metrics)))))
    summary = [page["cells"][name] for name in ("accuracy", "accuracy_low", "accuracy_high")]
    assert summary == [[None, 0.8], [None, 0.7], [None, 0.9]]
    assert page["traces"]["accuracies"] == [
        None, [0.5, 0.6, 0.8], [0.5, 0.6, 0.9], [0.5, 0.6, 0.7],
    ]  # fmt: skip


def test_further_metrics_are_there_if_a_run_has_them(store):
    config, outcome = run(**OTHER, test="mine.t", test_hash="2" * 64)
    tested = replace(
        outcome, test_losses=(1.0, 0.5, 0.4), test_accuracies=(math.nan,) * 3,
        metrics={"r2": (-1.0, 0.5, 0.75)},
    )  # fmt: skip
    page = data(render(store(run(), (config, tested))))
    assert page["cells"]["r2"] == [None, 0.75]
    assert page["traces"]["test_r2"] == [None, [-1.0, 0.5, 0.75]]
    assert not {"accuracies", "test_auc"} & set(page["traces"])


def test_only_runs_as_long_as_the_published_ones_are_beside_them(store):
    page = data(render(store(run(), run(T=8192), run(algorithm="fedac-ii"))))
    beside = zip(page["cells"]["algorithm"], page["cells"]["problem"], strict=True)
    published = dict(zip(beside, page["cells"]["published"], strict=True))
    assert page["problems"]["T"] == [4096, 8192]
    assert [value is not None for value in published.values()] == [True, False, False]


def test_a_run_that_blew_up_is_drawn_up_to_there(store):
    losses = (1.0, math.inf, math.inf)
    page = data(render(store(run(), run(eta=10.0, losses=losses, status="diverged"))))
    assert page["traces"]["values"][1][1:] == [None, None]
    assert dict(page["made"])["runs"] == "2, of which 1 diverged"


def test_the_title_names_what_is_drawn(store):
    assert "<h1>Suboptimality against communication: a9a</h1>" in render(store(run()))


def test_hollow_markers_are_mentioned_where_there_are_some(store):
    assert "Hollow markers" not in render(store(run(**OTHER)))
    assert "Hollow markers" in render(store(run()))


def headline(page, target, M=64):
    """Return the rows of one target and number of workers: label, rounds, published, step size."""
    table = page["headlines"]
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return [
        tuple(row[name] for name in ("algorithm", "text", "published", "step_size"))
        for row in rows
        if (row["target"], row["M"]) == (target, M)
    ]


def test_the_headline_is_the_median_of_the_seeds_with_their_range(store):
    runs = [run(seed=seed, final=seed * 4e-3, K=K) for seed, K in [(1, 8), (2, 8), (3, 8), (1, 16)]]
    page = data(render(store(*runs, run(eta=2.0, final=0.5))))
    ((label, rounds, published, eta),) = headline(page, 1e-2)
    assert (label, rounds, eta) == ("FedAc-I", "512 (256 to not reached)", "0.5 (smallest tried)")
    assert published == "256"
    assert headline(page, 1e-3)[0][1:] == ("not reached", "not reached", "")


def test_diverged_runs_and_the_start_point_reach_no_target(store):
    start = F_STAR["a9a", 1e-3] + 1e-9
    diverged = run(losses=(start, 1.0, math.inf), status="diverged")
    trained = run(losses=(start, 1.0, 0.9), algorithm="fedavg")
    page = data(render(store(diverged, trained)))
    found = {(label, rounds) for label, rounds, *_ in headline(page, 1e-2)}
    assert found == {("FedAc-I", "not reached"), ("FedAvg", "not reached")}
    assert page["cells"]["middle"][0] is None
    assert page["traces"]["best"] == [False, True]


def test_a_store_in_which_all_runs_diverged(store):
    page = data(render(store(run(losses=(1.0, math.inf, math.inf), status="diverged"))))
    assert page["problems"]["view"] == ["traces"]
    assert [rounds for _, rounds, *_ in headline(page, 1e-1)] == ["not reached"]


def test_data_sets_are_told_apart_by_content(store):
    hashes = ("1" * 64, "2" * 64)
    page = data(render(store(*(run(dataset="train", data_hash=each) for each in hashes))))
    assert page["problems"]["dataset"] == ["train (111111)", "train (222222)"]
    own = data(render(store(run(data_hash="3" * 64))))
    assert "a9a (333333)" in own["problems"]["dataset"]
    assert own["cells"]["published"][own["problems"]["dataset"].index("a9a (333333)")] is None


@pytest.mark.parametrize(
    ("runs", "view"),
    [
        ([run(), run(M=128)], "M"),
        ([run(), run(K=16)], "rounds"),
        ([run(), run(K=16), run(M=128)], "M"),
        ([run(), run(eta=0.1)], "traces"),
    ],
)
def test_the_page_opens_on_an_axis_with_more_than_one_value(store, runs, view):
    assert data(render(store(*runs)))["problems"]["view"] == [view]


@pytest.mark.parametrize(
    ("runs", "target"),
    [
        # The paper's own, where it speaks of this problem and M.
        ([run(M=8192, final=0.5)], 1e-3),
        ([run(**EPSILON, M=2048, final=0.5)], 1e-4),
        # Otherwise what every algorithm reaches with the most workers.
        ([run(final=2e-3)], 1e-2),
        ([run(**OTHER, final=0.99e-3)], 1e-3),
        ([run(**OTHER, final=2e-4), run(**OTHER, final=2e-3, K=16)], 1e-3),
        ([run(**OTHER, final=2e-4), run(**OTHER, M=4, final=0.09)], 1e-3),
        ([run(**OTHER, final=2e-4), run(**OTHER, algorithm="fedavg")], 1e-2),
        ([run(**OTHER, losses=(9e3, 8e3, 7e3))], 1e4),
        ([run(**OTHER, final=3e-9)], 1e-8),
        ([run(**OTHER, final=-1e-17)], 1e-5),
    ],
)
def test_the_headline_starts_with_a_target_that_makes_sense(store, runs, target):
    page = data(render(store(*runs)))
    assert page["problems"]["target"] == [target]
    assert target in page["targets"]
    assert page["targets"] == sorted(page["targets"], reverse=True)
    assert {1e-1, 1e-2, 1e-3, 1e-4, 1e-5} <= set(page["targets"])


def test_names_cannot_break_the_page(store):
    hostile = "</script><script>alert('$data')</script>&amp;"
    text = render(store(run(dataset=hostile)))
    assert "alert" not in text.replace("&lt;script&gt;alert(", "")
    assert "&lt;/script&gt;&lt;script&gt;alert(&#x27;$data&#x27;)&lt;/script&gt;&amp;amp;" in text
    assert text.count("<script") == text.count("</script>") == 3
    assert data(text)["problems"]["dataset"] == [hostile]


def test_one_file_that_asks_nobody(store):
    text = render(store(run()))
    assert "default-src 'none'" in text
    assert not re.findall(r"""(?:src|href)=["']?(?!data:)[a-z/.]""", text)
    assert not re.findall(r"url\(|@import|\bon[a-z]+=", text)
    assert text == render(store(run())), "the same runs give the same bytes"


def test_algorithms_of_your_own_look_different(store):
    runs = [run(algorithm=name) for name in ("fedac-i", "mine", "yours")]
    looks = data(render(store(*runs)))["algorithms"]
    assert looks["label"] == ["FedAc-I", "mine", "yours"]
    assert len(set(looks["colour"])) == len(set(looks["symbol"])) == 3


def test_two_algorithms_with_one_label_are_told_apart(store, monkeypatch):
    twin = replace(ALGORITHMS["fedavg"], name="twin")
    monkeypatch.setitem(ALGORITHMS, "twin", twin)
    looks = data(render(store(run(algorithm="fedavg"), run(algorithm="twin"))))["algorithms"]
    assert looks["label"] == ["FedAvg (fedavg)", "FedAvg (twin)"]


def test_an_empty_store_is_refused(store, tmp_path):
    with pytest.raises(InputError, match="has no runs to report"):
        write(store(), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.fixture
def fedac(capsys):
    """Give a function that runs the command and returns its code and what it printed."""

    def fedac(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        return stop.value.code, *capsys.readouterr()

    return fedac


def test_the_command_writes_beside_the_store(store, fedac, tmp_path):
    store(run())
    code, out, err = fedac("report", tmp_path)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"Report: {tmp_path}/report\.html \(\d\.\d MB\)\n", out)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_command_writes_where_it_is_told(store, fedac, tmp_path):
    store(run())
    path = tmp_path / "mine.html"
    assert fedac("report", tmp_path, "--out", path)[0] == 0
    assert path.exists()


def test_the_command_takes_a_link(store, fedac, tmp_path):
    store(run())
    assert fedac("report", tmp_path, "--link", "wan latency=1s")[0] == 0
    page = data((tmp_path / "report.html").read_text())
    assert page["link"].startswith("a round trip takes 1 s")
    assert page["cells"]["seconds"][0] > 512
    code, out, err = fedac("report", tmp_path, "--link", "wam")
    assert (code, out) == (2, "")
    assert "unknown link 'wam'; did you mean 'wan'?" in err


def test_the_command_says_what_is_wrong(store, fedac, tmp_path):
    code, out, err = fedac("report", tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert "no sweep in" in err
    store(run())
    code, out, err = fedac("report", tmp_path, "--out", tmp_path)
    assert (code, out) == (2, "")
    assert err == f"fedac: '{tmp_path}' is a folder; give the path of a file\n"
