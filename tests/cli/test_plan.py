# SPDX-License-Identifier: Apache-2.0
"""`fedac plan`: by constants, by data, by measurement; the paper's tables."""

import json
import re

import pytest
from rich.console import Console

from fedac.data import load
from fedac.objectives import LOSSES
from fedac.theory import theorem
from fedac.theory.constants import estimate

pytestmark = pytest.mark.slow

CONSTANTS = ("--smoothness", 1, "--strong-convexity", 0.01, "--noise", 1, "--distance", 2)


def test_by_constants(fedac) -> None:
    code, out, err = fedac("plan", *CONSTANTS, "--workers", 64, "--steps", 4096)
    assert (code, err) == (0, "")
    for word in ("fedaci:full", "fedacii:a1:full", "mb-ac-sgd", "ac-sgd", "worst"):
        assert word in out
    assert "constants unknown" not in out
    assert "FedAvg, averaged iterate" in out
    assert "MB-SGD, averaged iterate" in out
    said = " ".join(out.split())
    assert "average of the iterates, and says nothing about the last one" in said
    assert "for workers that draw from one distribution; real runs" in said
    [minibatch] = [line.split() for line in out.splitlines() if "mb-ac-sgd  " in line]
    K, rounds, bound = minibatch[3], minibatch[5], minibatch[9]
    assert (
        "If clients hold different data, only the bounds of minibatch methods hold, for M equally "
        "weighted clients that are present in every round: "
        f"use mb-ac-sgd, K={K}, {rounds} rounds, bound {bound}."
    ) in out
    assert "Left out: fedacii:a2:full, fedavg:a2:full: needs Q, which is not known." in out
    assert "FedAc-I's potential" in out
    assert "FedAc-II's potential" in out
    assert max(len(line) for line in out.splitlines() if "\u2502" in line) <= 100


def test_by_data(fedac, small) -> None:
    code, out, err = fedac("plan", "--dataset", small, "--l2", 0.1, "-M", 8, "-T", 64)
    assert code == 0
    assert "measured: the larger of the gradient noise" in out
    assert "one distribution, and hold if the measured sigma holds everywhere;" in " ".join(
        out.split()
    )
    bounded = fedac("plan", "--dataset", small, "--l2", 0.1, "-T", 64, "--bounded-noise").out
    assert "holds everywhere" not in bounded
    assert "FedAc-I's potential at the start" in out
    assert max(len(line) for line in out.splitlines() if "\u2502" in line) <= 100
    assert "fedacii:a2:full" in out
    assert err == "fedac: --calibrate measures on the data\n"


def test_json(fedac, small) -> None:
    how = ("--dataset", small, "--l2", 0.1, "-M", 8, "-T", 64, "--json")
    code, out, err = fedac("plan", *how)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    letters = {"L", "mu", "sigma", "sigma4", "D0", "Q", "Psi0", "Phi0"}
    assert set(answer["constants"]) == set(answer["how"]) == letters
    assert answer["how"]["sigma4"].startswith("measured: ")
    assert (answer["already_reached"], answer["left_out"]) == (False, {})
    for row in answer["bounds"]:
        assert row["rounds"] * row["local_steps"] == row["steps"] == 64
        assert row["bound"] == pytest.approx(sum(row["terms"].values()))
        assert row["terms"][row["dominant"]] == max(row["terms"].values())
        assert row["megabytes_per_worker"] > 0
        assert row["bound"] <= row["closed_form"]
        assert row["floor"] is None
        # Fields of before the algorithms had hyperparameters of their own.
        assert {"eta", "gamma", "alpha", "beta", "rho"} <= set(row["hyperparameters"])
    assert answer["bounds"][0]["theorem"] == "fedac_i_a1"
    assert answer["bounds"][0]["label"] == "fedaci:full"
    assert "recommended" not in answer


@pytest.mark.parametrize("loss", ["logistic", "least-squares", "squared-hinge"])
def test_losses(fedac, small, loss) -> None:
    data = load(str(small))
    F = LOSSES[loss](data.X, data.y, l2=0.1)
    how = ("--dataset", small, "--loss", loss, "--l2", 0.1, "-M", 8, "-T", 64, "--json")
    answer = json.loads(fedac("plan", *how).out)
    assert answer["constants"]["L"] == F.smoothness
    assert answer["constants"]["D0"] == estimate(F).D0


def test_calibrate(fedac, small) -> None:
    how = ("--dataset", small, "--l2", 0.1, "-M", 8, "-T", 64, "--calibrate")
    code, out, _ = fedac("plan", *how)
    assert code == 0
    assert "Measured on the data" in out
    assert "Recommended: " in out
    answer = json.loads(fedac("plan", *how, "--json").out)
    assert answer["recommended"] in answer["measured"]
    assert answer["recommended"]["suboptimality"] > 0
    # What was tuned is said: without mu, the recommended FedAc would be another method.
    best = answer["recommended"]
    assert f"eta={best['eta']:.3g}" + (f", mu={best['mu']:.3g}" if best["mu"] else "") in out
    for row in answer["measured"]:
        assert row["edge"] in (None, "smallest", "largest")


def test_a_best_step_size_at_an_edge_is_marked(fedac, small, monkeypatch) -> None:
    # If all step sizes are tiny, the largest is the best, and the next tries end below it too.
    monkeypatch.setattr("fedac.experiments.comparison.study.SMALLEST", 2.0**-40)
    monkeypatch.setattr("fedac.experiments.comparison.study.LARGEST", 2.0**-36)
    how = ("--dataset", small, "--l2", 0.1, "-M", 8, "-T", 64, "--calibrate")
    out = fedac("plan", *how).out
    assert "* the smallest or largest step size tried; a better one" in " ".join(out.split())
    measured = out.partition("Measured on the data")[2]
    [row] = [line for line in measured.splitlines() if "FedAvg" in line and "\u2502" in line][:1]
    assert re.search(r"\d\*", row)
    answer = json.loads(fedac("plan", *how, "--json").out)
    assert {row["edge"] for row in answer["measured"]} == {"largest"}


def test_target(fedac, small) -> None:
    how = ("--dataset", small, "--l2", 0.1, "-M", 8, "--target", 0.02, "--calibrate", "--json")
    answer = json.loads(fedac("plan", *how).out)
    assert answer["recommended"]["reached"]
    # A round costs 1000 gradients, and K more.
    best = answer["recommended"]
    assert best["cost"] == pytest.approx(best["rounds"] * (1000 + best["local_steps"]), rel=0.2)
    assert all(row["bound"] <= 0.02 for row in answer["bounds"])


def test_a_target_no_bound_reaches(fedac) -> None:
    code, out, _ = fedac("plan", *CONSTANTS, "--target", 1e-30)
    assert code == 0
    assert "No bound reaches target 1e-30" in out


def test_general_convex(fedac) -> None:
    constants = ("--smoothness", 1, "--noise", 1, "--distance", 2, "--third-order", 1)
    answer = json.loads(fedac("plan", *constants, "-T", 4096, "--dim", 10, "--json").out)
    assert len(answer["bounds"]) == 8
    assert all(row["hyperparameters"]["lam"] >= 0 for row in answer["bounds"])
    for row in answer["bounds"]:
        assert (row["floor"] is None) == (":a2:" in row["label"])
    out = fedac("plan", *constants, "-T", 4096, "--dim", 10).out
    assert "lam" in out
    for row in answer["bounds"]:
        assert f"{row['hyperparameters']['lam']:.2g}" in out
    # Beside the least bound under asm1
    least = min(
        (row for row in answer["bounds"] if row["floor"] and row["algorithm"] != "fedac-vanilla"),
        key=lambda row: row["bound"],
    )
    assert f"floor for K={least['local_steps']} and {least['rounds']} rounds" in out
    assert f"): {least['floor']:.2g}. Up to a constant factor" in out
    assert "no method does better on every problem of asm1 (arXiv 2102.01583)" in out
    assert "Rows under asm2 assume more and may be below it." in out
    assert max(len(line) for line in out.splitlines() if "\u2502" in line) <= 100


def test_the_noise_can_be_bounded(fedac, small) -> None:
    how = ("plan", "--dataset", small, "--l2", 0.1, "-M", 8, "-T", 64, "--json")
    measured, bounded = (json.loads(fedac(*how, *more).out) for more in ((), ("--bounded-noise",)))
    assert bounded["constants"]["sigma"] > measured["constants"]["sigma"]
    assert bounded["how"]["sigma"].startswith("bounded at every w")
    data = load(str(small))
    squares = data.X.multiply(data.X).sum(axis=1)
    assert bounded["constants"]["sigma"] ** 2 == pytest.approx(squares.mean())


def test_the_fourth_moment_counts_under_asm2_only(fedac) -> None:
    how = ("plan", *CONSTANTS, "--third-order", 1, "-T", 4096, "--json")
    one, two = (
        {row["label"]: row["closed_form"] for row in json.loads(fedac(*how, *more).out)["bounds"]}
        for more in ((), ("--fourth-moment", 2))
    )
    changed = {label for label in one if two[label] > one[label]}
    assert changed == {"fedacii:a2:full", "fedavg:a2:full"}


def test_a_target_above_the_start_is_already_reached(fedac) -> None:
    code, out, _ = fedac("plan", *CONSTANTS, "--target", 3)
    assert code == 0
    assert "Already reached: F(w_0) - F* is at most 2 at the start" in out
    answer = json.loads(fedac("plan", *CONSTANTS, "--target", 3, "--json").out)
    assert (answer["already_reached"], answer["start"], answer["bounds"]) == (True, 2.0, [])


def test_without_noise_or_other_workers_there_is_no_speedup(fedac) -> None:
    quiet = ("--smoothness", 1, "--strong-convexity", 0.01, "--noise", 0, "--distance", 2)
    out = fedac("plan", *quiet, "-T", 64).out
    assert "Speedup: none without noise" in out
    assert "never" not in out
    out = fedac("plan", *CONSTANTS, "-T", 64, "-M", 1).out
    assert "Speedup: not applicable with one worker." in out
    assert "never" not in out


def test_one_local_step_is_not_a_thousand_times_worse(fedac) -> None:
    # 4099 is prime: FedAc-I has K = 1 there, and is accelerated minibatch SGD.
    how = ("--smoothness", 1, "--strong-convexity", 0.1, "--noise", 1, "--distance", 1)
    answer = json.loads(fedac("plan", *how, "-T", 4099, "--json").out)
    rows = {row["label"]: row for row in answer["bounds"]}
    assert rows["fedaci:full"]["local_steps"] == 1
    assert rows["fedaci:full"]["bound"] == rows["mb-ac-sgd"]["bound"]


def test_one_local_step_everywhere_is_explained(fedac, small) -> None:
    quiet = ("--smoothness", 1, "--strong-convexity", 0.01, "--noise", 1, "--distance", 1)
    out = fedac("plan", *quiet, "-T", 4096).out
    assert "K = 1 wherever local steps are possible" in out
    assert "measure how large K can be with --dataset and --calibrate." in out
    out = fedac("plan", "--dataset", small, "--l2", 0.1, "-M", 4096, "-T", 64).out
    assert "Real data is rarely that bad: measure how large K can be with --calibrate." in out
    noisy = ("--smoothness", 1, "--strong-convexity", 0.01, "--noise", 10, "--distance", 1)
    assert "wherever local steps" not in fedac("plan", *noisy, "-T", 4096).out


@pytest.mark.parametrize("width", [30, 50, 80, 120])
def test_a_narrow_terminal_cuts_no_number(fedac, monkeypatch, width) -> None:
    how = ("plan", *CONSTANTS, "--third-order", 1, "-T", 4096, "--dim", 1000)
    answer = json.loads(fedac(*how, "--json").out)
    monkeypatch.setattr("fedac.cli.console.results_console", lambda: Console(width=width))
    out = fedac(*how).out
    assert "\u2026" not in out
    if width >= 80:  # a narrower terminal wraps the table itself
        assert max(map(len, out.splitlines())) <= width
    for row in answer["bounds"]:
        for word in (theorem(row["label"]).title or row["label"]).split():
            assert word in out
        for number in (row["bound"], row["hyperparameters"]["eta"], row["megabytes"]):
            assert f"{number:.2g}" in out


def test_bounds_that_say_nothing_are_marked(fedac) -> None:
    quiet = ("--smoothness", 1, "--strong-convexity", 0.01, "--noise", 0.1, "--distance", 2)
    answer = json.loads(fedac("plan", *quiet, "-M", 4, "-T", 16, "--json").out)
    # F(w_0) - F* <= L D0^2/2 = 2, half of the potential's bound
    assert all(row["vacuous"] == (row["bound"] >= 2.0) for row in answer["bounds"])
    assert any(2.0 <= row["bound"] < 4.0 for row in answer["bounds"])
    assert any(row["vacuous"] for row in answer["bounds"])


def test_a_T_with_few_divisors_is_mentioned(fedac) -> None:
    assert (
        "T=4099, which has only 2 divisors; a power of two has more"
        in fedac("plan", *CONSTANTS, "-T", 4099).err
    )


def test_fedac_ii_is_left_out_where_it_has_no_meaning(fedac) -> None:
    equal = ("--smoothness", 1, "--strong-convexity", 1, "--noise", 0, "--distance", 1)
    answer = json.loads(fedac("plan", *equal, "-T", 4096, "--json").out)
    assert "fedac_ii_a1" not in [row["theorem"] for row in answer["bounds"]]
    assert "needs alpha > 1" in answer["left_out"]["fedacii:a1:full"]
    assert all(row["speedup_rounds"] is None for row in answer["bounds"])


def test_tables(fedac) -> None:
    code, out, err = fedac("plan", "--tables")
    assert (code, err) == (0, "")
    assert "M^(1/3)" in out
    answer = json.loads(fedac("plan", "--tables", "--json").out)
    assert (len(answer["table_1"]), len(answer["table_2"])) == (7, 8)


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        ((), "pass a --dataset, or the constants: --smoothness, --noise, --distance missing"),
        (("--smoothness", 1), "--noise, --distance missing"),
        ((*CONSTANTS, "--calibrate"), "--calibrate needs --dataset"),
        ((*CONSTANTS, "--link", "wan"), "--link needs --calibrate"),
        ((*CONSTANTS, "--steps", 64, "--target", 0.1), "give either T (steps) or a target"),
        ((*CONSTANTS, "--workers", 0), "M (workers)"),
        ((*CONSTANTS, "--target", 0), "target must be"),
        ((*CONSTANTS, "--target", 0.1, "--round-cost", -1), "round_cost must be"),
        (("--smoothness", 1, "--noise", -1, "--distance", 1), "sigma must be"),
        (("--smoothness", 0, "--noise", 1, "--distance", 1), "L must be"),
        (("--smoothness", 1, "--strong-convexity", 2, "--noise", 1, "--distance", 1), "mu must"),
        (("--dataset", "nope"), "nope"),
        (("--smoothness", 1, "--noise", 1e308, "--distance", 1), "too large or too small"),
        (("--smoothness", 1, "--noise", 1, "--distance", 1e308), "Psi0"),
        ((*CONSTANTS, "--target", 0.1, "--round-cost", 1e308), "round_cost must be at most"),
        (("--dataset", "synthetic", "--l2", 0), "l2 must be"),
        (("--dataset", "synthetic", "--loss", "hinge"), "did you mean 'squared-hinge'?"),
        (("--dataset", "synthetic", "--noise", 1), "omit --noise"),
        (("--dataset", "synthetic", "--fourth-moment", 1), "omit --fourth-moment"),
        ((*CONSTANTS, "--fourth-moment", 0.5), "sigma4 must be at least sigma"),
        ((*CONSTANTS, "--bounded-noise"), "--bounded-noise needs --dataset"),
        ((*CONSTANTS, "--l2", 0.1), "--l2 needs --dataset"),
        ((*CONSTANTS, "--intercept"), "--intercept needs --dataset"),
        ((*CONSTANTS, "--loss", "least-squares"), "--loss needs --dataset"),
        (("--dataset", "synthetic", "--seed", 3), "--seed needs --calibrate"),
        (("--dataset", "synthetic", "--dim", 5), "these come from the data set; omit --dim"),
        (
            ("--dataset", "synthetic", "--loss", "squared-hinge", "--bounded-noise"),
            "no known bound",
        ),
    ],
)
def test_bad_input(assert_refused, arguments, saying: str) -> None:
    assert_refused("plan", *arguments, saying=saying)
