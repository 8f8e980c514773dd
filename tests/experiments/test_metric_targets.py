# SPDX-License-Identifier: Apache-2.0
"""Comparisons with a test set: metrics in every table, and targets on them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

import fedac
from fedac import Dataset, compare
from fedac.errors import InputError
from fedac.experiments.comparison import Question, Study, open_store
from fedac.experiments.comparison.question import Target
from fedac.experiments.comparison.report import page_data, to_latex, with_earlier_methods
from fedac.experiments.comparison.table import sentences, to_json
from fedac.experiments.workload import load_data

RNG = np.random.default_rng(3)
X = RNG.standard_normal((400, 6))
WORDS = np.where(X @ RNG.standard_normal(6) + RNG.standard_normal(400) > 0, "ill", "well")
DATA = Dataset("clinic", X, WORDS)
REAL = Dataset("dose", X, X @ RNG.standard_normal(6) + 0.1 * RNG.standard_normal(400))
ASKED = {
    "methods": ("fedavg", "fedac-i", "lbfgs", "agd"), "local_steps": (4,), "rounds": 12,
    "clients": 4, "l2": 1e-2, "tries": 4, "repeats": 2,
}  # fmt: skip


def answer(data=DATA, folder=None, **options):
    question = Question.ask(ASKED | options)
    study = Study(question, *load_data(question.spec, source=data))
    with open_store(folder) as store:
        return study, study.answer(store, jobs=1)


@pytest.fixture(scope="module")
def reached():
    return answer(test=0.25, target="accuracy 0.8")[1]


@pytest.mark.filterwarnings("ignore")  # of step sizes above 1/L
def test_the_cost_of_a_target_metric_is_that_of_the_first_record_that_reaches_it(reached):
    """Against a simulation of the chosen setting, evaluated with scikit-learn."""
    row = next(row for row in reached.rows if row.method == "fedavg")
    train, test = fedac.data.registry.hold_out(DATA, 0.25)
    F = fedac.LogisticRegression(train.X, train.y, l2=1e-2)
    rounds, areas = [], []
    for seed in reached.question.fresh_seeds:
        models = []
        fedac.simulate(
            F, row.algorithm, clients=fedac.split(train, 4, "iid", 0), K=4, T=48, eta=row.eta,
            seed=seed, record_every=4, callbacks=[lambda record: models.append(record.w)],  # noqa: B023
        )  # fmt: skip
        margins = [test.X @ w for w in models]
        shares = [accuracy_score(test.y > 0, z > 0) for z in margins]
        rounds.append(next(r for r, share in enumerate(shares) if share >= 0.8))
        areas.append(roc_auc_score(test.y > 0, margins[-1]))
    assert row.reached
    assert row.rounds.middle == pytest.approx(np.exp(np.log(rounds).mean()))
    assert row.metrics["auc"] == pytest.approx(np.mean(areas), abs=1e-6)


def test_a_reached_target_metric_ranks_by_its_seconds(reached):
    seconds = [row.seconds.middle for row in reached.rows if row.reached]
    assert len(seconds) > 2
    assert seconds == sorted(seconds)
    assert "reached an accuracy of 0.8 on the test set in" in " ".join(sentences(reached))


def test_all_tables_have_the_metrics(reached):
    frame = reached.frame
    assert frame["test_accuracy"].between(0.5, 1).all()  # baselines too
    assert {"test_loss", "test_auc", "test_log_loss"} <= set(frame)
    assert not {"test_r2", "test_mae"} & set(frame)
    found = json.loads(json.dumps(to_json(reached), allow_nan=False))
    assert (found["target"], found["test"]) == ("accuracy 0.8", 0.25)
    assert [row["test_auc"] for row in found["rows"]] == list(frame["test_auc"])
    assert "test accuracy & test AUC" in to_latex(reached)
    page = page_data(reached)
    assert page["target"] == "accuracy 0.8"
    assert page["rows"]["test_accuracy"] == pytest.approx(list(frame["test_accuracy"]), abs=1e-5)
    assert set(page["rows"]["test_mae"]) == {None}
    assert ("test set", "25% of clinic") in page["notes"]


def test_without_a_test_set_nothing_changes():
    _, found = answer(methods=("fedavg",))
    assert not [name for name in (*found.frame, *to_json(found)) if "test" in name]


def test_a_target_that_no_method_reaches(tmp_path):
    _, found = answer(
        data=REAL, folder=tmp_path, test=0.25, target="r2 1", methods=("fedavg", "agd")
    )
    assert [row.reached for row in found.rows] == [False, False]
    assert sentences(found)[0] == (
        "No method reached an R2 of 1 on the test set on all seeds in 12 rounds."
    )
    assert {"test_r2", "test_mae"} <= set(found.frame)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (DATA, {"target": "accuracy 0.7"}, "'?accuracy 0.7'? needs a test set: add test, a share"),
        (DATA, {"target": "r2 0.5", "test": 0.2}, "r2 does not fit .*: use accuracy or auc or log"),
        (REAL, {"target": "auc 0.5", "test": 0.2}, "auc does not fit .*: use r2 or mae"),
        (REAL, {"target": "mae 1e9", "test": 0.2}, "mae 1e.09 is already reached .* smaller one"),
        (DATA, {"target": "auc 0.2", "test": 0.2}, r"it is 0\.\d+; use a larger one"),
        (DATA, {"target": "f1 0.4", "test": 0.2}, "a target is .*'accuracy 0.85'.* got 'f1 0.4'"),
        (DATA, {"target": "accuracy", "test": 0.2}, "got 'accuracy'"),
        (DATA, {"target": "auc nan", "test": 0.2}, "got 'auc nan'"),
        (DATA, {"target": "accuracy 85", "test": 0.2}, "accuracy is at most 1, got 85"),
        (DATA, {"target": "log-loss 0", "test": 0.2}, "log-loss must be above 0, got 0"),
        (DATA, {"test": 1.5}, "between 0 and 1, got 1.5"),
    ],
)
def test_targets_that_are_refused(data, options, message):
    with pytest.raises(InputError, match=message):
        answer(data=data, **options)


def test_a_number_alone_is_a_suboptimality():
    assert Target.parse(0.5) == Target.parse("0.5") == Target("suboptimality", 0.5)
    assert Target.parse("Log loss 0.3") == Target.parse("log_loss 0.3") == Target("log-loss", 0.3)


def test_compare_with_a_test_set():
    options = {"K": 4, "rounds": 8, "clients": 4, "l2": 1e-2, "tries": 4, "repeats": 2}
    found = compare(REAL, "fedavg", test=0.2, target="mae 1", **options)
    assert found.frame["test_mae"].notna().all()
    found = compare(DATA, "fedavg", test_clients=0.25, **options)
    assert found.frame["test_accuracy"].notna().all()
    assert found.spec.clients == 3
    own = replace(DATA, clients=fedac.Clients(np.arange(400) % 5))
    found = compare(own, "fedavg", test_clients=0.4, **(options | {"clients": None}))
    assert found.spec.clients == 3
    assert list(found.table)[10:] == ["test_accuracy", "test_auc", "test_log_loss"]


def test_a_folder_keeps_one_test_set(tmp_path):
    (tmp_path / "comparison.json").write_text(
        json.dumps(to_json(answer(methods=("fedavg",), test=0.25)[1]))
    )
    asked = Question.ask(ASKED | {"loss": "logistic"})
    with pytest.raises(
        InputError, match=r"has a comparison with test = 0\.25, but this one has None"
    ):
        with_earlier_methods(asked, tmp_path)
