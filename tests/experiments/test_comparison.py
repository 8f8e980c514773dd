# SPDX-License-Identifier: Apache-2.0
"""Comparisons: everybody gets as many tries, and figures come from fresh seeds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedac import LeastSquares, Link, LogisticRegression, compare, load, simulate, split
from fedac.algorithms import FEDAVG
from fedac.data import Dataset
from fedac.errors import InputError
from fedac.experiments import workload
from fedac.experiments.comparison import Budget, Question, Study, open_store
from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.comparison.calibration import PLANNER
from fedac.experiments.comparison.question import AXES, DEFAULT_METHODS, Target, default_methods
from fedac.experiments.comparison.report import to_latex
from fedac.experiments.comparison.study import Tuner
from fedac.experiments.comparison.table import (
    Curve,
    find_costs,
    find_ratio,
    proposed_target,
    sentences,
    to_json,
)
from fedac.experiments.summary import predict, predict_ratio

LINK = Link(latency=0.05, up=20e6, down=100e6, gradient=0.002, stragglers="lognormal(0.5)")
METHODS = ("fedavg", "fedac-i", "diloco", "mb-ac-sgd")
TARGET = 0.3
DOCS = Path(__file__).parents[2] / "docs"


def ask(**changes):
    """Return a question that takes a second or two."""
    values = {
        "dataset": "synthetic", "l2": 1e-2, "clients": 10, "split": "dirichlet(0.5)",
        "participation": 0.5, "methods": METHODS, "local_steps": (4, 16), "rounds": 20,
        "link": LINK, "target": TARGET, "tries": 9, "repeats": 3,
    }  # fmt: skip
    return Question.ask(values | changes)


def answer_in_memory(question):
    with open_store(None) as store:
        return Study(question).answer(store)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with open_store(folder) as store:
        found = Study(ask()).answer(store)
        runs = store.frame()
    return found, runs, folder


def search(tuner, method, score, K=8):
    """Return all settings tried for a method, with a function of a setting as score."""
    tried = []
    for count in tuner.stages:
        tried += tuner.propose(method, K, tried, min(tried, key=score, default=None), count)
    return tried


@pytest.mark.parametrize("tries", [4, 7, 13, 20])
def test_every_method_gets_as_many_tries(tries):
    tuner = Tuner(tries=tries, smoothness=4.0, mu=1e-3, distance=1.0)
    assert sum(tuner.stages) == tries
    for method in (*DEFAULT_METHODS, "fedavg+step(2)"):
        for score in (lambda one: one.eta, lambda one: -one.eta, lambda one: abs(one.eta - 0.1)):
            found = search(tuner, method, score)
            assert len(set(found)) == tries, method
            assert {one.method for one in found} == {method}


@pytest.mark.parametrize(
    ("method", "eta", "step", "beta", "mu"),
    [
        ("fedavg", 0.003, None, None, 1.0),
        ("fedavg", 40.0, None, None, 1.0),  # beyond the coarse grid
        ("diloco", 0.02, 5.0, 0.9, 1.0),  # server steps far from the usual ones
        ("diloco", 0.1, 1.4, 0.6, 1.0),
        ("fedadam", 0.1, 30.0, None, 1.0),  # the grid ends at 4
        ("fedac-i", 0.05, None, None, 100.0),
        ("fedac-i+cv+nesterov(1,0.3)", 0.05, 0.5, 0.6, 10.0),
    ],
)
def test_the_search_finds_the_best_setting(method, eta, step, beta, mu):
    """With a bowl in the logarithms of all numbers as score, within a factor of 2 of the best."""
    tuner = Tuner(tries=20, smoothness=1.0, mu=1e-6, distance=1.0)

    def score(found):
        far = math.log(found.eta / eta) ** 2 + math.log(found.mu_factor / mu) ** 2 / 4
        far += 0 if step is None else math.log(found.server_step / step) ** 2
        return far + (0 if beta is None else 4 * math.log((1 - found.momentum) / (1 - beta)) ** 2)

    best = min(search(tuner, method, score), key=score)
    assert eta / 2 <= best.eta <= 2 * eta
    assert best.mu_factor == mu
    assert beta is None or best.momentum == beta
    assert step is None or step / 2 <= best.server_step <= 2 * step


def test_step_sizes_that_a_method_refuses_are_not_tried():
    # FedAc-II needs eta mu < 1.
    tuner = Tuner(tries=20, smoothness=1.0, mu=1.0, distance=1.0)
    assert len(tuner.propose("fedac-ii", K=1)) == 5
    assert max(one.eta for one in search(tuner, "fedac-ii", lambda one: -one.eta, K=1)) < 1.0


def test_runs_of_the_store(found):
    _, runs, _ = found
    cells = Counter(zip(runs["algorithm"], runs["K"], runs["seed"], strict=True))
    by_seed = {
        seed: Counter(
            ("diloco" if "nesterov" in name else name.partition(",")[0], K)
            for name, K, of in cells.elements()
            if of == seed
        )
        for seed in runs["seed"].unique()
    }
    each = [(name, K) for name in METHODS for K in (4, 16)]
    # All tries, then the best three on two seeds more, then the winners on the fresh ones.
    assert by_seed[1] == dict.fromkeys(each, 9)
    assert by_seed[5] == by_seed[6] == dict.fromkeys(each, 3)
    assert by_seed[2] == by_seed[3] == by_seed[4] == dict.fromkeys(each, 1)
    assert set(by_seed) == {1, 2, 3, 4, 5, 6}


@pytest.mark.filterwarnings("ignore::fedac.errors.StepSizeWarning")  # 1/L is no limit
def test_the_winner_by_hand(found):
    """The figures of the best row are those of `simulate` on the fresh seeds."""
    comparison, _, _ = found
    best = comparison.rows[0]
    assert best.reached
    data = load("synthetic")
    F = LogisticRegression(data.X, data.y, l2=1e-2)
    clients = split(data, clients=10, by="dirichlet(0.5)")
    rounds, seconds = [], []
    for seed in (2, 3, 4):
        result = simulate(F, best.algorithm, clients=clients, participation=0.5, K=best.K,
                          T=20 * best.K, eta=best.eta, mu=best.mu, seed=seed,
                          record_every=best.K)  # fmt: skip
        (run,) = result.runs
        first = np.flatnonzero(result.suboptimality(run) <= TARGET)[0]
        rounds.append(result.rounds_of(run)[first])
        seconds.append(result.seconds_of(run, LINK)[first])
        sent = result.megabytes_of(run)[1]
    assert best.rounds.middle == pytest.approx(stats.gmean(rounds))
    assert best.seconds.middle == pytest.approx(stats.gmean(seconds))
    assert best.megabytes.middle == pytest.approx(stats.gmean(rounds) * sent)
    assert best.rounds.low < best.rounds.middle < best.rounds.high


def test_rows_are_in_order(found):
    comparison, _, _ = found
    assert len(comparison.rows) == len(METHODS) * 2
    assert list(comparison.rows) == sorted(comparison.rows, key=lambda row: row.rank)
    assert [row.method for row in comparison.best_rows] == list(
        dict.fromkeys(row.method for row in comparison.rows)
    )


def test_without_a_target_tries_are_scored_within_the_budget():
    """Every row is tuned for the time in which all runs end, which is early in those with large K.

    Before, tries were scored by the end of their own run: rows of large K were many times worse.
    """
    question = ask(target=None, local_steps=(1, 64), methods=("fedavg", "diloco"), rounds=40)
    with open_store(None) as store:
        found = Study(question).answer(store)
        runs = store.frame()
        traces = store.curves(runs["key"])
    ends = [curve.seconds[-1] for row in found.rows for curve in row.curves]
    assert found.budget == Budget(min(ends), "seconds")
    for row in found.rows:
        curves = row.curves
        counts = [int((curve.seconds <= min(ends)).sum()) for curve in curves]
        last = [max(1, round(0.05 * n)) for n in counts]
        values = [
            c.suboptimality[n - few : n].mean()
            for c, n, few in zip(curves, counts, last, strict=True)
        ]
        assert row.suboptimality.middle == pytest.approx(stats.gmean(values))
        # On the tuning seed no try of the row was much better within the budget.
        own = (runs["algorithm"] == "fedavg") == (row.method == "fedavg")
        tried = runs[(runs["seed"] == 1) & (runs["K"] == row.K) & own]
        at_budget = {
            run.key: traces[run.key].suboptimality[min(counts) - 1]
            for run in tried[tried["status"] == "ok"].itertuples()
        }
        mine = tried[(tried["algorithm"] == row.algorithm) & np.isclose(tried["eta"], row.eta)]
        assert at_budget[mine["key"].iloc[0]] <= 1.5 * min(at_budget.values())


def test_with_a_target_and_no_budget_what_was_reached_is_that_of_the_whole_run(found):
    comparison, _, _ = found
    assert math.isinf(comparison.budget.amount)
    assert to_json(comparison)["budget"] == {"amount": None, "axis": "rounds"}


def test_an_adaptive_server_finds_its_step_at_any_scale_of_the_features():
    """Features a hundred times smaller and the optimum a hundred times farther: the same problem.

    Before, FedAdam's step stayed near its default, and FedAdam 60 times worse.
    """
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 8))
    y = np.where(X @ rng.standard_normal(8) + rng.standard_normal(400) > 0, 1.0, -1.0)
    reached = []
    for scale in (1.0, 0.01):
        rows = compare(
            Dataset("mine", sp.csr_array(scale * X), y), ["fedadam"], K=8, rounds=60, clients=10,
            l2=1e-2 * scale**2, repeats=2,
        ).frame  # fmt: skip
        reached.append(rows["suboptimality"].iloc[0])
        assert not rows["server_edge"].iloc[0]
    assert reached[1] < 3 * reached[0]


def test_a_server_step_at_an_edge_is_flagged():
    asked = ask(target=None, methods=("fedavg+step(1e-9)",), tries=4, rounds=5)
    frame = answer_in_memory(asked).frame
    assert (frame["server_edge"] == "largest").all()


def test_differences_are_paired_by_seed(found):
    """The interval is that of SciPy's paired t test of the logarithms, for another mean."""
    comparison, _, _ = found
    rows = [row for row in comparison.rows if row.reached]
    first, *others = ([c.cost_of(Target.parse(TARGET), "seconds") for c in row.curves]
                      for row in rows)  # fmt: skip
    assert comparison.rows[0].ratio == (1.0, 1.0, 1.0)
    assert others
    for row, costs in zip(rows[1:], others, strict=True):
        interval = stats.ttest_rel(np.log(costs), np.log(first)).confidence_interval(0.9)
        middle, half = np.mean(interval), np.ptp(interval) / 2 * math.sqrt(2)
        assert row.ratio == pytest.approx(np.exp([middle, middle - half, middle + half]))
        assert row.level == (middle - half <= math.log(1.001))


def test_common_noise_cancels():
    """Seeds vary by a factor of ten, methods by a tenth: only pairs tell them apart."""
    rng = np.random.default_rng(0)
    seeds = np.exp(rng.standard_normal(5))
    band = predict_ratio(1.1 * seeds * np.exp(0.01 * rng.standard_normal(5)), seeds)
    assert 1.05 < band.low < band.middle < band.high < 1.15
    assert predict(1.1 * seeds).low < predict(seeds).high  # their intervals overlap


def test_the_verdict_says_fastest_only_of_what_can_be_told(found):
    comparison, _, _ = found
    level = {row.method for row in comparison.best_rows if row.level}
    said = comparison.verdict
    assert (" is the fastest on this link" in said) == (len(level) == 1)
    assert (" are level: 3 seeds cannot separate them." in said) == (len(level) > 1)


def test_the_verdict_warns_if_the_winner_leaves_the_target(found):
    comparison, _, _ = found
    best = comparison.rows[0]
    for end, warned in [(0.5, True), (1e-9, False)]:
        row = replace(best, suboptimality=best.suboptimality._replace(middle=end))
        said = replace(comparison, rows=(row, *comparison.rows[1:])).verdict
        assert ("does not stay there (mean suboptimality at the end: 0.5)" in said) == warned


def test_the_smallest_record_stands_beside_the_last():
    axis = np.arange(101.0)
    values = np.full(101, 0.2)
    values[50], values[-5:] = 0.01, 0.3
    curve = Curve(axis, axis, axis, values)
    assert curve.within(Budget(100.0, "rounds")) == pytest.approx(0.3)
    assert curve.within(Budget(60.0, "rounds")) == pytest.approx(0.2)
    assert curve.smallest_within(Budget(100.0, "rounds")) == 0.01
    one_record = Budget(0.5, "rounds")
    assert curve.within(one_record) == curve.smallest_within(one_record) == 0.2


def test_baselines_beside_methods():
    """L-BFGS and accelerated gradient descent wait for all clients, and cost a full gradient."""
    link = Link(latency=1.0, row=0.001)
    question = ask(methods=("fedavg", "lbfgs", "agd"), target=0.2, link=link, local_steps=(4,))
    assert question.baselines == ("lbfgs", "agd")
    rows = {row.method: row for row in answer_in_memory(question).rows}
    data = load("synthetic")
    largest = split(data, clients=10, by="dirichlet(0.5)").sizes.max()
    for name in BASELINES:
        row = rows[name]
        assert (row.K, row.all_clients, row.reached) == (1, True, True)
        assert row.seconds.middle == pytest.approx(row.rounds.middle * (1 + 0.001 * largest))
        d = data.X.shape[1]
        assert row.megabytes.middle == pytest.approx(row.rounds.middle * 8 * d / 1e6)
    assert rows["lbfgs"].eta is None
    assert rows["agd"].eta > 0
    assert not rows["fedavg"].all_clients
    with pytest.raises(InputError, match="add a method to compare lbfgs and agd with"):
        ask(methods=("lbfgs", "agd"))


def test_a_round_of_minibatch_sgd_is_one_batch():
    link = Link(latency=1.0, gradient=0.1, row=0.01)
    question = ask(methods=("mb-sgd", "fedavg"), link=link, target=None, local_steps=(16,))
    found = answer_in_memory(question)
    ends = {row.method: row.curves[0].seconds[-1] for row in found.rows}
    assert ends == pytest.approx({"mb-sgd": 20 * (1 + 0.1 + 0.16), "fedavg": 20 * (1 + 16 * 0.11)})


def test_the_same_question_is_answered_from_the_store(found, monkeypatch):
    comparison, runs, folder = found
    monkeypatch.setattr(workload.Workload, "run", None)
    with open_store(folder) as store:
        again = Study(ask()).answer(store)
        # Another target or link needs no new run if the same settings win.
        other = Study(ask(link=Link(latency=1.0))).answer(store)
        assert len(store.frame()) == len(runs)
    assert to_json(again) == to_json(comparison)
    assert other.rows[0].seconds.middle == pytest.approx(other.rows[0].rounds.middle)


def test_a_comparison_that_was_stopped_continues(tmp_path):
    question = ask(methods=("fedavg", "diloco"), local_steps=(4,))
    stops = 0

    def stop(progress):
        nonlocal stops
        if progress.work > 0.5 and stops < 3:
            stops += 1
            raise KeyboardInterrupt

    while True:
        try:
            with open_store(tmp_path) as store:
                again = Study(question).answer(store, on_progress=stop)
            break
        except KeyboardInterrupt:
            continue
    assert stops == 3
    assert to_json(again) == to_json(answer_in_memory(question))


def test_a_target_that_is_not_reached():
    with open_store(None) as store:
        found = Study(ask(target=1e-9, local_steps=(4,), methods=("fedavg",))).answer(store)
    (row,) = to_json(found)["rows"]
    assert row["reached"] is False
    assert row["seeds_reached"] == 0
    for axis in ("rounds", "megabytes", "seconds"):
        assert row[axis] is row[f"{axis}_low"] is row[f"{axis}_high"] is None
    assert row["suboptimality"] > 1e-9
    assert row["eta"] > 0
    assert "-- & -- & --" in to_latex(found)


def test_without_a_target_methods_are_ranked_by_what_they_reach():
    with open_store(None) as store:
        found = Study(ask(target=None, budget="10 rounds", local_steps=(4,))).answer(store)
    reached = [row.suboptimality.middle for row in found.rows]
    assert reached == sorted(reached)
    assert all(row["reached"] is None for row in to_json(found)["rows"])
    assert found.frame["reached"].isna().all()
    assert reached[0] * 2 <= proposed_target(found) <= reached[0] * 4


@pytest.mark.slow
def test_rounded_messages_are_part_of_a_comparison():
    with open_store(None) as store:
        question = ask(wire=("float32", "int8"), methods=("fedavg", "fedac-i"), target=0.3)
        found = Study(question).answer(store)
    frame = found.frame.set_index(["method", "K", "wire"])
    for method in ("fedavg", "fedac-i"):
        plain, small = (frame.loc[method, 16, wire] for wire in ("float32", "int8"))
        assert small["reached"]
        a_round = [row["megabytes"] / row["rounds"] for row in (plain, small)]
        # 4 + 4 bytes a number, and 1 + 4, with a scale for all of them.
        dim = found.dim
        assert a_round[1] / a_round[0] == pytest.approx((dim + 4 + 4 * dim) / (8 * dim))


def test_a_number_of_steps_in_place_of_rounds():
    values = {"steps": 64, "methods": "fedavg", "local_steps": (4, 16), "l2": 1e-2, "clients": 10}
    found = answer_in_memory(Question.ask(values | {"tries": 4, "repeats": 2}, PLANNER))
    lengths = {row.K: row.curves[0].rounds[-1] for row in found.rows}
    assert lengths == {4: 16, 16: 4}
    assert math.isinf(found.budget.amount)
    assert to_json(found)["budget"]["amount"] is None


def test_data_of_ones_own():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5))
    y = np.where(X @ np.ones(5) + rng.standard_normal(200) > 0, 1.0, -1.0)
    import scipy.sparse as sp

    frame = compare(Dataset("mine", sp.csr_array(X), y), ["fedavg", "fedac-i"], K=4, rounds=10,
                    clients=5, tries=4, repeats=2).frame  # fmt: skip
    assert set(frame["method"]) == {"fedavg", "fedac-i"}
    assert np.isfinite(frame["suboptimality"]).all()


def test_a_method_that_always_diverges_has_a_row(monkeypatch):
    monkeypatch.setattr("fedac.experiments.comparison.study.SMALLEST", 1e8)
    monkeypatch.setattr("fedac.experiments.comparison.study.LARGEST", 1e9)
    with open_store(None) as store:
        found = Study(ask(methods=("fedavg",), local_steps=(16,))).answer(store)
    (row,) = found.rows
    assert (row.eta, row.reached, row.algorithm) == (None, False, "fedavg")
    assert to_json(found)["best"] is None


def test_latex_has_a_line_per_method(found):
    comparison, _, _ = found
    text = to_latex(comparison)
    body = text.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
    assert len(body) == len(METHODS)
    assert all(line.count("&") == 8 and line.endswith(" \\\\") for line in body)


def test_costs_by_hand():
    axis = np.arange(5.0)
    falls = [[1, 0.5, 0.2, 0.1, 0.05], [1, 0.2, 0.1, 0.05, 0.01]]
    curves = [Curve(axis, 2 * axis, 3 * axis, np.array(values)) for values in falls]
    costs = find_costs(curves, Target.parse(0.1), every=1)
    assert costs["rounds"].middle == pytest.approx(math.sqrt(3 * 2))
    assert costs["seconds"].middle == pytest.approx(3 * math.sqrt(3 * 2))
    logs = np.log([3.0, 2.0])
    half = stats.t.ppf(0.95, 1) * logs.std(ddof=1) * math.sqrt(1 / 2 + 1 / 2)
    half += math.log1p(0.5 / 3)  # known to half a round
    assert costs["rounds"].high == pytest.approx(math.sqrt(6) * math.exp(half))
    assert math.isnan(find_costs(curves, Target.parse(0.02), every=1)["rounds"].middle)
    ratio = find_ratio(curves, curves[::-1], Target.parse(0.1), Budget(4.0, "rounds"))
    assert ratio.middle == pytest.approx(1.0)


@pytest.mark.slow
def test_predictions_hold():
    # 20,000 cases: 90% of further means are inside, give or take 5 standard deviations of 0.2%.
    rng = np.random.default_rng(0)
    seeds, further = np.exp(rng.standard_normal((2, 20_000, 5)))
    inside = 0
    for one, other in zip(seeds, further, strict=True):
        band = predict(one)
        inside += band.low <= stats.gmean(other) <= band.high
    assert abs(inside / 20_000 - 0.9) < 5 * math.sqrt(0.9 * 0.1 / 20_000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedac.errors.StepSizeWarning")
def test_the_winners_figure_on_further_seeds():
    """20 comparisons: five further seeds fall into the interval printed for the winner.

    Each does with probability 90%; fewer than 14 of 20 have a probability of 0.24%, for these
    seeds once and for all.
    """
    data = load("synthetic")
    F = LogisticRegression(data.X, data.y, l2=1e-2)
    inside = 0
    for case in range(20):
        by = ("iid", "dirichlet(0.5)", "label", "power(1)")[case % 4]
        question = ask(split=by, seed=1 + 100 * case, repeats=5, tries=6)
        with open_store(None) as store:
            best = Study(question).answer(store).rows[0]
        clients = split(data, clients=10, by=by)
        rounds = []
        for seed in range(50 + 100 * case, 55 + 100 * case):
            result = simulate(
                F, best.algorithm, clients=clients, participation=0.5, K=best.K, T=60 * best.K,
                eta=best.eta, mu=best.mu, seed=seed, record_every=best.K,
            )  # fmt: skip
            (run,) = result.runs
            reached = np.flatnonzero(result.suboptimality(run) <= TARGET)
            rounds.append(reached[0] if reached.size else math.inf)
        inside += best.rounds.low <= stats.gmean(rounds) <= best.rounds.high
    assert inside >= 14


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rounds": 10**8}, "runs of 1600000000 steps are too long"),
        ({"methods": ("fedavg", "fedavg")}, "fedavg is listed twice"),
        ({"methods": ("slowmo", "fedavgm")}, "slowmo and fedavgm are the same method at a"),
        ({"link": Link()}, "the link has zero cost: set latency, gradient or row"),
        ({"methods": ("scaffnew",)}, "'scaffnew' needs all clients in every round"),
        ({"participation": (0.5, 0.1)}, "participation takes one value"),
    ],
)
def test_bad_questions(changes, error):
    with pytest.raises(InputError, match=error):
        ask(**changes)


@pytest.mark.parametrize(
    ("dataset", "methods", "error"),
    [
        (np.ones((3, 2)), [], "the rows have no column names: give the targets as an array"),
        (3, [], "int is not a data set: a file, a table, a pair"),
        (LeastSquares([[1.0]], [1.0]), [], "LeastSquares is not a data set: a file, a table"),
        (
            "synthetic",
            [FEDAVG],
            r"methods must be names, or 'module:name' for yours; got \(<Algorithm fedavg>",
        ),
    ],
)
def test_bad_arguments_of_compare(dataset, methods, error):
    with pytest.raises(InputError, match=error):
        compare(dataset, methods)


@pytest.mark.parametrize("more", [{"clients": 10}, {"split": "label"}])
def test_workers_have_no_rows_of_their_own(more):
    with pytest.raises(InputError, match="use either workers or clients"):
        compare("synthetic", ["fedavg"], workers=4, **more)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"methods": "fedavgg"}, "methods: unknown algorithm 'fedavgg'; did you mean 'fedavg'"),
        ({"K": 2.0}, "K must be a whole number"),
        ({"link": 5}, "link must be text, got 5"),
        ({"budget": 5}, "budget must be text, got 5"),
        ({"seed": 2**63 - 5}, r"seed must be at most 2\^63 - 8"),
        ({"workers": 4, "split_seed": 3}, "split_seed needs a random split"),
    ],
)
def test_values_that_cannot_be(changes, error):
    with pytest.raises(InputError, match=error):
        compare(**{"dataset": "synthetic", "methods": "fedavg"} | changes)


def test_a_hundred_clients_unless_a_file_names_them(tmp_path):
    assert Question.ask({}).spec.clients == 100
    assert Question.ask({"workers": 4}).spec.clients is None
    assert ask(clients=None, split="dirichlet(0.1)").spec.clients == 100
    names = tmp_path / "names.txt"
    names.write_text("rome\nrome\noslo\noslo\n")
    assert ask(clients=None, split=str(names)).spec.clients is None
    data = Dataset("four", np.array([[1.0], [2.0], [-1.0], [0.5]]), np.array([1.0, -1, 1, -1]))
    small = {"K": 1, "rounds": 2, "tries": 4, "repeats": 2, "l2": 0.1}
    found = compare(data, ["fedavg"], split=str(names), **small)  # without "contradicts"
    assert len(found.frame) == 1


def test_a_budget_ends_with_the_longest_run(found):
    comparison, _, folder = found
    with open_store(folder) as store:
        again = Study(ask(budget="1000 rounds")).answer(store)
    assert again.budget == Budget(20.0, "rounds")
    assert math.isinf(comparison.budget.amount)


def test_a_budget_has_a_round():
    with pytest.raises(InputError, match=r"budget of 0\.5 rounds ends before the first round"):
        answer_in_memory(ask(target=None, budget="0.5 rounds"))


def test_the_proposed_target_is_one_that_methods_with_local_steps_reach():
    methods = ("fedavg", "lbfgs")
    found = answer_in_memory(ask(target=None, methods=methods, local_steps=(4,)))
    rows = {row.method: row.suboptimality.middle for row in found.rows}
    assert rows["lbfgs"] < rows["fedavg"] / 10
    assert 2 * rows["fedavg"] <= proposed_target(found) <= 4 * rows["fedavg"]
    said = sentences(answer_in_memory(ask(target=1e-3, methods=methods, local_steps=(4,))))
    assert said[0].startswith("L-BFGS with all clients is the fastest on this link")
    assert said[1] == "No other method reached it on all seeds."
    assert said[2].startswith("Best with local steps: FedAvg (K = 4, step size ")


@pytest.mark.parametrize("text", ["", "60", "s", "-1s", "0 rounds", "3 bytes", "1e99x"])
def test_bad_budgets(text):
    with pytest.raises(InputError, match="a budget is a positive number with a unit"):
        Budget.parse(text)


def test_default_methods():
    """They won somewhere in the benchmark, or are there to compare with; at most 14."""
    assert default_methods() == (*DEFAULT_METHODS, *BASELINES)
    rows = pd.read_csv(DOCS / "benchmark.csv")
    rows = rows[rows["reached"].astype(bool) & ~rows["method"].isin([*BASELINES])]
    best: set[str] = set()
    for _, case in rows.groupby(["problem", "clients"]):
        for axis in AXES:
            costs = case.groupby("method")[axis].min()
            best |= {*costs.index[costs == costs.min()]}
    assert best | {"fedavg", "fedac-i"} == {*DEFAULT_METHODS}
    assert max(len(DEFAULT_METHODS), len(default_methods(network=True))) <= 14


rng = np.random.default_rng(0)
HOSPITALS = pd.DataFrame({"age": rng.normal(size=60), "hospital": ["oslo", "rome", "rome"] * 20})
HOSPITALS["state"] = np.where(HOSPITALS.age + rng.normal(size=60) > 0, "well", "sick")
OWNERS = HOSPITALS["hospital"].to_numpy(str)
PAIR = (HOSPITALS[["age"]].to_numpy(), HOSPITALS["state"].to_numpy(str))
SMALL = {"methods": "fedavg", "K": 1, "rounds": 2, "tries": 4, "repeats": 2, "l2": 0.1}


def asked(monkeypatch, *args, **options):
    """Return the study that a call of `compare` makes, without running it."""
    made = []

    def answer(study, store, **how):
        made.append(study)
        raise InterruptedError

    monkeypatch.setattr(Study, "answer", answer)
    with pytest.raises(InterruptedError):
        compare(*args, **SMALL | options)
    return made[0]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (load(HOSPITALS, client="hospital"), {}),
        (load(HOSPITALS, client="hospital"), {"clients": "hospital"}),
        (HOSPITALS, {"client": "hospital"}),
        (HOSPITALS, {"clients": "hospital"}),
        (HOSPITALS, {"client": "hospital", "label": "state"}),
        (PAIR, {"client": OWNERS}),
        (PAIR, {"clients": OWNERS}),
        (PAIR, {"clients": split(OWNERS, by=OWNERS)}),
    ],
)
def test_clients_of_the_data(monkeypatch, data, options):
    study = asked(monkeypatch, data, **options)
    (clients,) = study.task.clients.values()
    assert clients.fingerprint() == split(OWNERS, by=OWNERS).fingerprint()
    assert study.task.objective.X.tolist() == PAIR[0].tolist()
    assert study.question.spec.clients == 2


@pytest.mark.parametrize(
    ("options", "number", "how"),
    [
        ({"clients": 7}, 7, "iid"),
        ({"clients": "label", "workers": 4}, 4, "label"),
        ({"split": "label", "clients": 4}, 4, "label"),
        ({"split": "power(1)", "clients": 6}, 6, "power(1)"),
    ],
)
def test_other_clients_than_those_of_the_data(monkeypatch, options, number, how):
    study = asked(monkeypatch, load(HOSPITALS, client="hospital"), **options)
    (clients,) = study.task.clients.values()
    assert clients.fingerprint() == split(PAIR[1], number, how).fingerprint()
    assert (study.question.spec.clients, study.question.spec.split or "iid") == (number, how)


def test_workers_instead_of_the_clients_of_the_data(monkeypatch):
    study = asked(monkeypatch, load(HOSPITALS, client="hospital"), workers=3)
    assert not study.task.clients
    assert asked(monkeypatch, "synthetic", clients="label").question.spec.clients == 100


@pytest.mark.parametrize(
    ("y", "loss"),
    [([1, 2, 3] * 20, "softmax"), (PAIR[0][:, 0], "least-squares"), (OWNERS, "logistic")],
)
def test_the_loss_follows_from_the_targets(monkeypatch, y, loss):
    assert asked(monkeypatch, (PAIR[0], y), workers=2).question.spec.loss == loss


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        ({"lr": 0.1}, "compare has no keyword lr: step sizes are tuned"),
        ({"T": 10}, "compare has no keyword T: use rounds"),
        ({"num_rounds": 10}, "compare has no keyword num_rounds: use rounds"),
        ({"local_steps": 8}, "compare has no keyword local_steps: use K"),
        ({"batch_size": 8}, "compare has no keyword batch_size: use batch"),
        ({"M": 8}, "compare has no keyword M: use workers"),
        ({"clients": "hospitl"}, "did you mean 'hospital'.*; nor is it a split or a file"),
        ({"clients": "label", "split": "iid"}, "clients='label' is a split already: omit split"),
        ({"clients": OWNERS, "workers": 3}, "client names the clients already: omit workers"),
        ({"clients": OWNERS, "client": "hospital"}, "names the clients already: omit clients"),
        ({"clients": 3, "client": "hospital"}, "client names the clients already: omit clients"),
        ({"client": "hospital", "split_seed": 3}, "split_seed needs a random split"),
        ({"label": "stat"}, "unknown target column 'stat'; did you mean 'state'"),
    ],
)
def test_keywords_that_cannot_be(options, saying):
    with pytest.raises(InputError, match=saying):
        compare(HOSPITALS, **SMALL | options)
