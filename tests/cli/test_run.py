# SPDX-License-Identifier: Apache-2.0
"""`fedac run`: its table and JSON, divergence, interrupts and unusual but valid input."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from contextlib import contextmanager

import pytest

from fedac.cli import console
from fedac.data import load, split
from fedac.data.registry import hold_out
from fedac.federation.schedule import Decay
from fedac.objectives import LOSSES, optimum
from fedac.simulation import simulate


def number(value):
    return isinstance(value, float)


def count(value):
    return isinstance(value, int) and not isinstance(value, bool)


def nothing(value):
    return value is None


KEYS = {
    "dataset": lambda value: isinstance(value, dict),
    "loss": lambda value: isinstance(value, str),
    "l2": number,
    "algorithm": lambda value: isinstance(value, str),
    "workers": count,
    "local_steps": count,
    "steps": count,
    "steps_made": count,
    "rounds": count,
    "seed": count,
    "engine": lambda value: value in ("fast", "reference"),
    "f_star": number,
    "wire": lambda value: value == "float32",
    "link": lambda value: value == "latency=50ms up=200Mbit down=200Mbit gradient=2ms row=20us",
    "runs": lambda value: isinstance(value, list),
    "best": lambda value: isinstance(value, dict),
    "gradient_queries": count,
    "seconds": number,
    "interrupted": lambda value: isinstance(value, bool),
    "clients": nothing,
    "split": nothing,
    "split_seed": nothing,
    "participation": number,
    "batch": count,
    "weighting": lambda value: value == "examples",
    "decay": nothing,
    "test": nothing,
}
RUN_KEYS = {
    "algorithm": lambda value: value == "fedac-i",
    "eta": number,
    "hyperparameters": lambda value: isinstance(value, dict),
    "status": lambda value: value in ("ok", "diverged"),
    "best_loss": number,
    "best_suboptimality": number,
    "trained_loss": number,
    "final_loss": number,
    "final_suboptimality": number,
    "megabytes_per_worker": number,
    "trace": lambda value: isinstance(value, list),
    "test_loss": nothing,
    "test_accuracy": nothing,
    "test_trace": nothing,
    "metrics": nothing,
    "rounds": count,
    "megabytes": number,
    "link_seconds": number,
    "expenses": lambda value: isinstance(value, list),
}


def check(keys, record):
    assert list(record) == list(keys)
    for key, holds in keys.items():
        assert holds(record[key]), (key, record[key])


def read(text):
    """Parse a text that must be one JSON object."""

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    assert text.endswith("}\n")
    assert text.count("\n") == 1
    return json.loads(text, parse_constant=refuse)


def test_json_is_the_contract(run):
    code, out, err = run("--json", "--eta", "0.1,0.2", "--seed", 7)
    assert (code, err) == (0, "")
    result = read(out)
    check(KEYS, result)
    assert result["dataset"] == {"name": "small", "n_samples": 60, "n_features": 12}
    assert (result["l2"], result["algorithm"], result["seed"]) == (1e-3, "fedac-i", 7)
    sizes = [result[key] for key in ("workers", "local_steps", "steps", "rounds")]
    assert sizes == [4, 2, 8, 4]
    assert result["gradient_queries"] == 4 * 8 * 2
    assert result["seconds"] > 0
    for record, eta in zip(result["runs"], (0.1, 0.2), strict=True):
        check(RUN_KEYS, record)
        assert (record["eta"], record["status"]) == (eta, "ok")
        assert list(record["hyperparameters"]) == ["gamma", "alpha", "beta"]
        assert all(map(number, record["hyperparameters"].values()))
        steps, losses = zip(*record["trace"], strict=True)
        assert steps == (0, 4, 8)
        assert all(map(count, steps))
        assert all(map(number, losses))
        assert (record["best_loss"], record["final_loss"]) == (min(losses), losses[-1])
        assert record["best_suboptimality"] == min(losses) - result["f_star"] > 0
        assert record["final_suboptimality"] == losses[-1] - result["f_star"]
        # 4 bytes a number, 12 numbers a vector, 2 vectors a round, 4 rounds.
        assert record["megabytes_per_worker"] == pytest.approx(4 * 12 * 2 * 4 / 1e6)
        # Both directions, and a link of 50 ms, 200 Mbit/s, 2 ms a step and 20 us a row.
        rounds, megabytes, seconds = zip(*record["expenses"], strict=True)
        assert rounds == (0, 2, 4)
        assert megabytes == pytest.approx([0, 2 * 192 / 1e6, 4 * 192 / 1e6])
        a_round = 0.05 + 192 * 8 / 200e6 + 2 * (0.002 + 2e-5)
        assert seconds == pytest.approx([0, 2 * a_round, 4 * a_round])
        ends = (record["rounds"], record["megabytes"], record["link_seconds"])
        assert ends == (rounds[-1], megabytes[-1], seconds[-1])
    best = min(result["runs"], key=lambda record: record["best_loss"])
    edge = {0.1: "smallest", 0.2: "largest"}[best["eta"]]
    assert result["best"] == {
        "algorithm": "fedac-i",
        "eta": best["eta"],
        "suboptimality": best["best_suboptimality"],
        "edge": edge,
    }
    assert (result["loss"], result["interrupted"], result["steps_made"]) == ("logistic", False, 8)


def test_json_on_a9a(fedac, a9a):
    code, out, err = fedac("run", "--dataset", "a9a", "-M", 4, "-K", 2, "-T", 8, "--json")
    assert (code, err) == (0, "")
    assert read(out)["dataset"] == {"name": "a9a", "n_samples": 32561, "n_features": 123}


def test_table_on_stdout_and_timing_on_stderr(run):
    code, out, err = run("--eta", "0.1,0.2")
    assert code == 0
    assert "small: M=4, K=2, T=8, 4 rounds, F*=" in out
    assert [line.split()[1] for line in out.splitlines() if " ok " in line] == ["0.1", "0.2"]
    notice, timing = err.splitlines()
    assert re.match(r"fedac: the best step size is the (smallest|largest) one tried; ", notice)
    assert "gradients/s" in timing


def test_an_edge_is_mentioned_only_if_there_is_one(run):
    etas = "0.0001,0.1,100"
    best = read(run("--json", "--eta", etas).out)["best"]
    assert (best["eta"], best["edge"]) == (0.1, None)
    assert "tried" not in run("--eta", etas).err
    assert read(run("--json", "--eta", "0.1").out)["best"]["edge"] is None


@pytest.fixture
def run_clients(fedac, small):
    """Return a function that runs `fedac run` with six clients of the small file."""

    def run_clients(*arguments):
        sizes = ("-K", 2, "-T", 8, "--record-every", 4, "--eta", "0.1,0.2")
        return fedac("run", "--dataset", small, "--clients", 6, *sizes, *arguments)

    return run_clients


def test_clients_are_those_of_simulate(run_clients, small):
    options = ("--split", "power(1)", "--split-seed", 3, "--participation", 0.5, "--batch", 4,
               "--weighting", "uniform", "--decay", "1/sqrt(r)", "--test", 0.25)  # fmt: skip
    code, out, err = run_clients(*options, "--json")
    assert (code, err) == (0, "")
    found = read(out)
    train, test = hold_out(load(small), 0.25)
    expected = simulate(
        LOSSES["logistic"](train.X, train.y, l2=1e-3), "fedac-i", K=2, T=8, record_every=4,
        eta=[Decay(eta, "1/sqrt(r)") for eta in (0.1, 0.2)], clients=split(train, 6, "power(1)", 3),
        participation=0.5, batch=4, weighting="uniform", test=test,
    )  # fmt: skip
    assert {name: found[name] for name in list(KEYS)[-8:]} == {
        "clients": 6, "split": "power(1)", "split_seed": 3, "participation": 0.5, "batch": 4,
        "weighting": "uniform", "decay": "1/sqrt(r)",
        "test": {"name": "25% of small", "n_samples": 15},
    }  # fmt: skip
    assert found["dataset"] == {"name": "small, 75% of its rows", "n_samples": 45, "n_features": 12}
    assert (found["workers"], found["gradient_queries"]) == (6, 3 * 4 * 8 * 2)
    assert found["f_star"] == pytest.approx(expected.f_star, abs=1e-12)
    for record, one in zip(found["runs"], expected.runs, strict=True):
        assert record["trace"] == [list(pair) for pair in zip(one.steps, one.loss, strict=True)]
        metrics = zip(one.steps, one.test_loss, one.test_accuracy, strict=True)
        assert record["test_trace"] == [list(point) for point in metrics]
        assert record["test_trace"][-1][1:] == [record["test_loss"], record["test_accuracy"]]
        assert record["metrics"] == {
            name: {"last": trace[-1], "trace": list(trace)} for name, trace in one.metrics.items()
        }


def test_the_table_says_what_the_federation_is(run_clients, small):
    _, out, _ = run_clients("--participation", 3, "--batch", "full")
    title = "small: 6 clients, split iid, participation 3, batch full, K=2, T=8, 4 rounds, F*="
    assert title in " ".join(out.split())
    assert "test" not in out
    _, out, _ = run_clients("--test", small)
    assert "test loss" in out
    assert "test accuracy" in out
    assert "test AUC" in out


@pytest.mark.parametrize(
    ("dataset", "shown", "others"),
    [
        ("diabetes", ["test R2", "test MAE"], ["accuracy", "AUC", "nan"]),
        ("digits", ["test accuracy"], ["R2", "AUC", "nan"]),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_table_shows_the_metrics_that_fit(fedac, dataset, shown, others):
    options = ("-M", 2, "-K", 2, "-T", 4, "--eta", 1e-3, "--test", 0.2)
    code, out, _ = fedac("run", "--dataset", dataset, "--standardize", *options)
    assert code == 0
    assert all(title in out for title in ["test loss", *shown])
    assert not any(title in out for title in others)


def test_full_gradients_do_not_depend_on_the_seed(run_clients):
    first, other = (
        read(run_clients("--json", "--batch", "full", "--seed", seed).out)["runs"]
        for seed in (1, 2)
    )
    assert first == other


def test_a_diverged_run_has_no_test_results(run_clients, small):
    options = ("--algorithm", "fedavg", "--l2", 0.5, "-T", 64, "--eta", 8, "--test", small)
    (record,) = read(run_clients(*options, "--json").out)["runs"]
    assert record["status"] == "diverged"
    assert record["test_loss"] is record["test_accuracy"] is None
    assert len(record["test_trace"]) == len(record["trace"])
    assert record["metrics"]["auc"]["last"] is None
    assert len(record["metrics"]["auc"]["trace"]) == len(record["trace"])
    assert "diverged │                  - │" in run_clients(*options).out


def test_clients_from_a_file(fedac, small, write):
    names = write(b"".join(b"user-%d\n" % (row % 5) for row in range(60)), "users.txt")
    code, out, _ = fedac(
        "run", "--dataset", small, "--split", names, "-K", 2, "-T", 8, "--json", "--eta", 0.1
    )
    assert code == 0
    assert [read(out)[key] for key in ("clients", "split", "workers")] == [5, "users.txt", 5]


@pytest.mark.parametrize("loss", ["least-squares", "squared-hinge", "fedac:SquaredHinge"])
def test_other_losses(run, small, loss):
    result = read(run("--json", "--loss", loss).out)
    data = load(small)
    objective = LOSSES[loss.replace("fedac:SquaredHinge", "squared-hinge")](data.X, data.y, l2=1e-3)
    assert result["loss"] == loss
    assert result["engine"] == "fast"
    assert result["f_star"] == optimum(objective).value


def test_own_algorithm_and_spaces_in_lists(run):
    own, built_in = (
        read(run("--json", "--eta", "0.1, 0.2", "--algorithm", name).out)["runs"]
        for name in ("fedac.algorithms:FEDAVG", "fedavg")
    )
    assert own == built_in
    assert [record["eta"] for record in own] == [0.1, 0.2]


def test_hyperparameters_of_other_algorithms_come_last(run):
    (record,) = read(run("--json", "--algorithm", "fedavg-weighted").out)["runs"]
    assert list(record["hyperparameters"]) == ["gamma", "alpha", "beta", "rho"]


def test_without_a_minimum_losses_are_shown(fedac, write):
    separable = write(b"+1 1:1\n-1 1:-1\n+1 1:2\n")
    options = (
        "--dataset",
        separable,
        "-M",
        4,
        "-K",
        2,
        "-T",
        8,
        "--l2",
        0,
        "--algorithm",
        "fedavg",
    )
    code, out, err = fedac("run", *options, "--json")
    assert (code, err.count("\n")) == (0, 1)
    assert "no F* can be found" in err
    result = read(out)
    assert result["f_star"] is None
    best = {"algorithm": "fedavg", "eta": 0.5, "suboptimality": None, "edge": None}
    assert result["best"] == best
    assert number(result["runs"][0]["final_loss"])
    assert result["runs"][0]["final_suboptimality"] is None
    code, out, _ = fedac("run", *options)
    assert code == 0
    assert "no F*" in out
    assert "final loss" in out
    assert f"{result['runs'][0]['final_loss']:.4e}" in out


def test_intercept_adds_a_weight_but_no_column_of_the_data(run):
    plain, more = (read(run("--json", *extra).out) for extra in ([], ["--intercept"]))
    assert more["dataset"] == plain["dataset"]
    sent, sent_more = (result["runs"][0]["megabytes_per_worker"] for result in (plain, more))
    assert sent_more == pytest.approx(sent * 13 / 12)


def test_same_seed_same_numbers(run):
    first, again, other = (read(run("--json", "--seed", seed).out) for seed in (3, 3, 4))
    assert first["runs"] == again["runs"]
    assert first["runs"] != other["runs"]


def test_one_warning_for_all_runs_that_are_fedavg(run):
    code, out, err = run("--json", "--eta", "0.1,0.5,0.7", "--mu", 2)
    assert code == 0
    assert [row["eta"] for row in read(out)["runs"]] == [0.1, 0.5, 0.7]
    assert err == (
        "fedac: warning: FedAc-I degenerates to FedAvg with eta=0.5, 0.7, mu=2, K=2, because "
        "eta mu K >= 1; to accelerate, use mu < 1/(eta K) = 0.714\n"
    )


def test_one_warning_for_all_large_step_sizes(run):
    code, out, err = run("--json", "--algorithm", "mb-sgd", "--eta", "0.1,50,60")
    assert code == 0
    read(out)
    assert err.count("\n") == 1
    assert err.startswith("fedac: warning: 2 of 3 step sizes exceed 1/L = ")
    assert "largest: 60" in err
    # Once per command, not once per process.
    assert run("--json", "--eta", "50").err.startswith("fedac: warning: 1 of 1 step sizes")


@pytest.fixture
def diverging(run):
    """Return a function for runs where eta=8 diverges: with l2=1/2 every step triples w."""

    def diverging(etas):
        arguments = ("--algorithm", "fedavg", "--l2", 0.5, "-T", 64, "--json", "--eta", etas)
        code, out, _ = run(*arguments)
        assert code == 0
        return read(out)

    return diverging


def test_a_diverged_run_does_not_affect_the_others(diverging):
    together = diverging("8,0.1")
    assert [record["status"] for record in together["runs"]] == ["diverged", "ok"]
    assert together["runs"] == [diverging(eta)["runs"][0] for eta in ("8", "0.1")]
    assert together["best"]["eta"] == 0.1


def test_a_diverged_run_keeps_its_trace(diverging):
    (record,) = diverging("8")["runs"]
    steps, losses = zip(*record["trace"], strict=True)
    assert steps == tuple(range(0, 4 * len(steps), 4))
    assert 0 < steps[-1] < 64
    assert list(losses) == sorted(losses)
    assert record["best_loss"] == losses[0]


def test_a_diverged_run_has_no_final_loss(diverging, run):
    ended, diverged = diverging("0.1,8")["runs"]
    assert number(ended["final_loss"])
    assert number(ended["final_suboptimality"])
    assert diverged["final_loss"] is diverged["final_suboptimality"] is None
    _, out, _ = run("--algorithm", "fedavg", "--l2", 0.5, "-T", 64, "--eta", "0.1,8")
    rows = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    status, final = zip(*((row[2].strip(), row[4].strip()) for row in rows), strict=True)
    assert status == ("ok", "diverged")
    assert float(final[0]) == pytest.approx(ended["final_suboptimality"], rel=1e-4)
    assert final[1] == "-"


@pytest.mark.parametrize("algorithm", ["fedavg", "mb-sgd", "mb-ac-sgd"])
@pytest.mark.parametrize("extra", [("--eta", "1e300"), ("--l2", "1e300")])
def test_absurd_numbers_diverge_quietly(run, algorithm, extra):
    code, out, err = run("--json", "--algorithm", algorithm, *extra)
    assert code == 0
    assert read(out)["runs"][0]["status"] == "diverged"
    assert err.count("\n") == 1  # the warning that eta exceeds 1/L, and no warnings from NumPy


def test_an_infinite_start_loss_is_refused(run):
    code, out, err = run("--json", "--l2", "1e308", "--algorithm", "fedavg")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("fedac: the loss at the start point is not finite")


@contextmanager
def interrupting_bar(what, total):
    """Send an interrupt, as Ctrl-C does, after a third of the work."""
    done = 0

    def advance(queries):
        nonlocal done
        done += queries
        if done >= total / 3:
            signal.raise_signal(signal.SIGINT)

    yield advance


@pytest.mark.parametrize("form", [["--json"], []])
def test_an_interrupt_prints_the_recorded_steps(run, monkeypatch, form):
    monkeypatch.setattr(console, "progress_bar", interrupting_bar)
    code, out, err = run("-T", 64, "--eta", "0.1", *form)
    assert code == 130
    assert err.splitlines()[-1] == "fedac: interrupted"
    assert "Traceback" not in err
    if form:
        result = read(out)
        check(KEYS, result)
        (record,) = result["runs"]
        steps = [step for step, _ in record["trace"]]
        assert steps[:3] == [0, 4, 8]
        assert steps[-1] < 64
        assert (result["interrupted"], result["steps_made"]) == (True, steps[-1])
    else:
        assert "│ 0.1 │ ok " in out


@pytest.mark.parametrize(
    "content",
    [
        b"+1 1:0.5 3:1\r\n-1 2:1\r\n",
        b"+1\t1:0.5\t3:1\n-1\t2:1\n",
        b"+1 1:0.5 3:1\n-1 2:1",
        b"\n# head\n+1 1:0.5 3:1 # note\n\n-1 2:1 3:0\n",
        b"2 1:0.5 3:1\n1 2:1\n",
        b"1 1:0.5 3:1\n0 2:1\n",
    ],
    ids=["crlf", "tabs", "no-newline-at-end", "comments", "labels-1-2", "labels-0-1"],
)
def test_variants_of_the_file_format(fedac, write, content):
    file = write(content)
    code, out, err = fedac("run", "--dataset", file, "-M", 4, "-K", 2, "-T", 8, "--json")
    assert code == 0
    assert not err or err.endswith(" classes: 1, 2; logistic regression\n") or "0, 1;" in err
    assert read(out)["dataset"] == {"name": "file", "n_samples": 2, "n_features": 3}


@pytest.mark.parametrize(
    "name", ["dätä ★ 数据.txt", "[bold]x", "[red", "a b", "new\nline", "\udcff"]
)
def test_odd_file_names(fedac, small, tmp_path, name):
    file = tmp_path / name
    try:
        file.write_bytes(small.read_bytes())
    except OSError:
        pytest.skip("this file system has no such names")
    arguments = ("run", "--dataset", file, "-M", 4, "-K", 2, "-T", 8)
    _, out, _ = fedac(*arguments, "--json")
    assert read(out)["dataset"]["name"] == name
    code, out, _ = fedac(*arguments)
    assert code == 0
    if name.isprintable():
        assert f"{name}: M=4" in out


def test_extremely_long_line(fedac, write):
    long = (b" " * 1000).join(b"%d:1" % index for index in range(1, 801))
    file = write(b"+1 " + long + b"\n-1 1:1\n" + b"-1 2:1\n" * 5)
    code, out, _ = fedac("run", "--dataset", file, "-M", 4, "-K", 2, "-T", 8, "--json")
    assert code == 0
    assert read(out)["dataset"]["n_features"] == 800


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipe(fedac, small, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[small.read_bytes()])
    writer.start()
    code, out, err = fedac("run", "--dataset", pipe, "-M", 4, "-K", 2, "-T", 8, "--json")
    writer.join()
    assert (code, err) == (0, "")
    assert read(out)["dataset"]["n_samples"] == 60


def test_dev_null(assert_refused):
    assert_refused("run", "--dataset", os.devnull, saying="this is a device; give a LIBSVM file")


def test_out_of_memory(fedac, monkeypatch):
    def simulate(*_, **__):
        raise MemoryError

    monkeypatch.setattr("fedac.experiments.workload.run_problem", simulate)
    code, out, err = fedac("run", "--dataset", "synthetic")
    assert (code, out) == (1, "")
    assert err.startswith("fedac: out of memory; ")


@pytest.mark.slow
def test_tables_have_one_kind_of_megabytes(fedac, small):
    saying = "MB: sent and received by a client that is present in every round."
    half = ("--clients", 4, "--participation", 0.5, "-K", 2, "-T", 8, "--algorithm", "scaffold")
    table = fedac("run", "--dataset", small, *half).out
    assert saying in table
    # Two vectors of 12 numbers each way in 4 rounds, whoever is present in all of them.
    assert "0.000768" in table
    json_run = json.loads(fedac("run", "--dataset", small, *half, "--json").out)["runs"][0]
    assert json_run["megabytes"] == pytest.approx(2 * 2 * 12 * 4 * 4 / 1e6)
    assert json_run["megabytes_per_worker"] == pytest.approx(2 * 12 * 4 * 4 / 2 / 1e6)
    problem = ("--dataset", small, "--l2", 0.1, "-M", 2)
    planned = fedac("plan", *problem, "-T", 64).out
    assert saying in " ".join(planned.split())
    measured = fedac("plan", *problem, "--target", 0.05, "--calibrate").out
    assert "MB: sent and received by a client that is present in every round." in " ".join(
        measured.split()
    )
