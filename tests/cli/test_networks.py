"""Networks by the command: `--model` in run and compare."""

from __future__ import annotations

import json
import re

import pytest

COMMAND = (
    "compare", "--model", "mlp(8)", "--dataset", "digits", "--clients", "8", "--local-steps", "4",
    "--rounds", "12", "--tries", "5", "--repeats", "2", "--test", "0.2", "--jobs", "1",
)  # fmt: skip


def test_the_command_compares_a_network(fedac, tmp_path):
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
        (["--model", "no_such_module:make"], "'no_such_module:make' was not found"),
        (["--model", "cnn(3)"], "the model cnn does not take 1 number"),
        (["--loss", "logistic"], "--loss is for linear models"),
        (["--intercept"], "--intercept is for linear models"),
        (["--dataset", "diabetes", "--model", "cnn"], "10 columns are not the pixels of a square"),
        (["--target", "auc 0.9"], "auc does not fit"),
    ],
)
def test_bad_options_get_one_line(fedac, options, message):
    code, out, err = fedac(*COMMAND, "--methods", "fedavg", *options)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if "10 classes" not in line]
    assert line.startswith("fedac: ")
    assert re.search(message, line), line


def test_epochs_need_a_network(fedac):
    code, _, err = fedac("run", "--epochs", "1", "--rounds", "4")
    assert (code, "--epochs is for networks: add --model" in err) == (2, True)


def test_a_run_of_a_network(fedac):
    code, out, _ = fedac(
        "run", "--model", "mlp(8)", "--dataset", "digits", "--clients", "8", "--epochs", "1",
        "--batch", "16", "--rounds", "6", "--eta", "0.5", "--algorithm", "fedavg", "--test", "0.2",
        "--json",
    )  # fmt: skip
    answer = json.loads(out)
    assert (code, answer["engine"], answer["rounds"]) == (0, "network", 6)
    assert answer["local_steps"] == 12  # 1,438 rows on 8 clients in batches of 16
    assert answer["runs"][0]["test_accuracy"] > 0.5
