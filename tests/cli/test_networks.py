# SPDX-License-Identifier: Apache-2.0
"""Networks by the command: `--model` in run and compare."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedac.cli import console
from fedac.experiments.comparison import Question, Study, quick
from fedac.experiments.store import FILE, Store

COMMAND = (
    "compare", "--model", "mlp(8)", "--dataset", "digits", "--clients", "8", "--local-steps", "4",
    "--rounds", "12", "--tries", "5", "--repeats", "2", "--test", "0.2", "--jobs", "1",
)  # fmt: skip


def test_the_command_compares_a_network(fedac, tmp_path, monkeypatch):
    monkeypatch.setattr(console, "LONG", 0.0)
    arguments = (*COMMAND, "--methods", "fedavg,fedavgm", "--target", "accuracy 0.3")
    code, out, err = fedac(*arguments, "--out", str(tmp_path), "--json")
    assert (code, "this takes up to" in err) == (0, True)
    answer = json.loads(out)
    assert answer["model"] == "mlp(8)"
    assert {row["method"] for row in answer["rows"]} == {"fedavg", "fedavgm"}
    assert answer["best"]["test_accuracy"] > 0.3
    assert json.loads(fedac(*arguments, "--out", str(tmp_path), "--json").out) == answer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "lbfgs,fedavg"], "the baseline lbfgs is for linear models"),
        (["--model", "mpl(8)"], "unknown model 'mpl.*did you mean 'mlp'"),
        (["--model", "mlp(a)"], "'a' is not a number"),
        (["--model", "no_such_module:make"], "cannot import the module of 'no_such_module:make'"),
        (["--model", "cnn(3)"], "the model cnn does not take 1 number"),
        (["--model", "mlp(0)"], "a width of mlp must be a whole number, at least 1, got 0"),
        (["--model", "mlp(2.5)"], "a width of mlp must be a whole number, .*got 2.5"),
        (["--model", "char_gpt(0,16,64)"], "layers of char_gpt must be a whole number"),
        (["--loss", "logistic"], "--loss is for linear models"),
        (["--intercept"], "--intercept is for linear models"),
        (["--dataset", "diabetes", "--model", "cnn"], "10 columns are not the pixels of a square"),
        (["--target", "auc 0.9"], "auc does not fit"),
        (["--epochs", "1"], "--epochs and --local-steps both give the steps of a round"),
    ],
)
def test_bad_options_get_one_line(fedac, options, message):
    code, out, err = fedac(*COMMAND, "--methods", "fedavg", *options)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if "10 classes" not in line]
    assert line.startswith("fedac: ")
    assert re.search(message, line), line


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_killed_and_continued(fedac, tmp_path):
    command = [*COMMAND, "--methods", "fedavg,scaffold,fedac-i,adamw", "--rounds", "40", "--json"]
    folder = tmp_path / "killed"
    line = [sys.executable, "-m", "fedac", *command, "--out", str(folder)]

    def stored():
        if not (folder / FILE).exists():
            return 0
        with Store(folder, create=True) as store:  # waits until its tables are there
            return store.info()["runs"]

    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and stored() <= 11:
            time.sleep(0.02)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with Store(folder) as store:
        assert len(store.frame()) > 11  # the short runs for a first step size, and more
        (backend,) = set(store.frame()["backend"])
    again = fedac(*command, "--out", folder)
    # The fastest back end may be another one by now, on a busy machine.
    quiet = fedac(*command, "--backend", backend, "--out", tmp_path / "quiet")
    assert again.code == quiet.code == 0
    assert again.out == quiet.out
    with Store(folder) as store:
        assert set(store.frame()["backend"]) == {backend}


def test_an_own_model_of_this_folder(fedac, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = (
        "from torch import nn\ndef make(shape, outputs):\n    return nn.Linear(*shape, outputs)"
    )
    (tmp_path / "model_of_this_folder.py").write_text(source)
    code, out, _ = fedac(
        "sweep", "--model", "model_of_this_folder:make", "--dataset", "digits", "--clients", "8",
        "--algorithms", "fedavg", "--local-steps", "2", "--rounds", "2", "--eta", "0.1",
        "--out", "runs", "--jobs", "1",
    )  # fmt: skip
    assert (code, "best loss" in out, "suboptimality" in out) == (0, True, False)


def test_epochs_and_local_steps_are_one_too_many(fedac):
    code, _, err = fedac("run", "--epochs", "1", "-K", "2", "--rounds", "4")
    assert (code, "--epochs and --local-steps both give the steps of a round" in err) == (2, True)


def test_text_and_back_ends_need_a_network(fedac, tmp_path):
    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 10)
    code, _, err = fedac("compare", "--dataset", tmp_path / "book.txt")
    assert (code, "is text, which needs a network: --model" in err) == (2, True)
    code, _, err = fedac("compare", "--dataset", "digits", "--backend", "loop")
    assert (code, "--backend is for networks: add --model" in err) == (2, True)


def test_a_run_of_a_network(fedac):
    code, out, _ = fedac(
        "run", "--model", "mlp(8)", "--dataset", "digits", "--clients", "8", "--epochs", "1",
        "--batch", "16", "--rounds", "6", "--eta", "0.5", "--algorithm", "fedavg", "--test", "0.2",
        "--json",
    )  # fmt: skip
    answer = json.loads(out)
    assert (code, answer["engine"], answer["rounds"]) == (0, "network", 6)
    assert (answer["model"], "backend" in answer) == ("mlp(8)", True)
    assert answer["local_steps"] == 12  # 1,438 rows on 8 clients in batches of 16
    assert answer["runs"][0]["test_accuracy"] > 0.5


def test_a_text_whose_next_characters_are_predicted(fedac, tmp_path):
    speech = "to be or not to be that is the question " * 8
    (tmp_path / "play.txt").write_text(f"HAMLET:\n{speech}\n\nYORICK:\n{speech[::-1]}\n")
    code, out, _ = fedac(
        "run", "--model", "char_gpt(1,16,64)", "--dataset", tmp_path / "play.txt", "--batch", "2",
        "--local-steps", "2", "--rounds", "2", "--eta", "0.1", "--algorithm", "fedavg", "--test",
        "0.3", "--json",
    )  # fmt: skip
    answer = json.loads(out)
    assert (code, answer["loss"], answer["clients"]) == (0, "next-token", 2)
    assert answer["runs"][0]["metrics"]["perplexity"]["last"] > 1


def test_a_target_on_a_metric_holds_out_rows(fedac, tmp_path):
    command = [word for word in COMMAND if word not in ("--test", "0.2")]
    arguments = (*command, "--methods", "fedavg", "--target", "accuracy 0.3", "--out", tmp_path)
    code, out, _ = fedac(*arguments)
    assert code == 0
    assert "Test set: 20% of digits" in out


def test_a_quick_answer_is_shorter_if_steps_are_slow_and_keeps_its_length(tmp_path, monkeypatch):
    question = Question.ask({
        "model": "softmax", "dataset": "digits", "clients": 100, "methods": ["fedavg", "scaffold"],
        "local_steps": (8,), "rounds": 50, "tries": 6, "repeats": 2,
    })  # fmt: skip
    study = Study(question)

    def shortened(slower: float, folder: Path | None = None) -> Question:
        monkeypatch.setattr(quick, "_slower", lambda study: slower)
        return quick.shortened(study, 2, folder)

    seconds = study.estimate(2) / quick.SECONDS  # of the whole question, if it took that long
    assert shortened(0.5 / seconds) == study.question
    some = shortened(2 / seconds, tmp_path)
    assert some.rough
    assert 8 < some.spec.rounds < 50
    assert len(some.tuning_seeds) == 1
    assert shortened(1e9 / seconds).spec.rounds == 8  # the fewest
    assert shortened(1e9 / seconds, tmp_path) == some  # resumes
