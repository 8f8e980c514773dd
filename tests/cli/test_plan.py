"""`fedac plan`: by constants, by data, by measurement; the paper's tables."""

import json
import re

import pytest
from rich.console import Console

from fedac.data import load
from fedac.objectives import LOSSES
from fedac.theory.constants import estimate

pytestmark = pytest.mark.slow

CONSTANTS = ("--smoothness", 1, "--strong-convexity", 0.01, "--noise", 1, "--distance", 2)


def test_by_constants(fedac) -> None:
    code, out, err = fedac("plan", *CONSTANTS, "--workers", 64, "--steps", 4096)
    assert (code, err) == (0, "")
    for word in ("fedaci:full", "fedacii:a1:full", "fedavg:a1'", "mb-sgd'", "mb-ac-sgd'", "worst"):
        assert word in out
    assert "fedacii:a2:full" not in out  # Q is not known


def test_by_data(fedac, small) -> None:
    code, out, err = fedac("plan", "--dataset", small, "--l2", 0.1, "-M", 8, "-T", 64)
    assert code == 0
    assert "the larger of the gradient noise" in out
    assert "fedacii:a2:full" in out
    assert err == "fedac: --calibrate measures on the data\n"


def test_json(fedac, small) -> None:
    how = ("--dataset", small, "--l2", 0.1, "-M", 8, "-T", 64, "--json")
    code, out, err = fedac("plan", *how)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert set(answer["constants"]) == {"L", "mu", "sigma", "D0", "Q", "Psi0", "Phi0"}
    for row in answer["bounds"]:
        assert row["rounds"] * row["local_steps"] == row["steps"] == 64
        assert row["bound"] == pytest.approx(sum(row["terms"].values()))
        assert row["terms"][row["dominant"]] == max(row["terms"].values())
        assert row["megabytes_per_worker"] > 0
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
    for row in answer["measured"]:
        assert row["edge"] in (None, "smallest", "largest")


def test_a_best_step_size_at_an_edge_is_marked(fedac, small, monkeypatch) -> None:
    # Where all step sizes are small, the largest is the best.
    monkeypatch.setattr("fedac.experiments.calibration.ETAS", (2.0**-9, 2.0**-8, 2.0**-7))
    how = ("--dataset", small, "--l2", 0.1, "-M", 8, "-T", 64, "--calibrate")
    out = fedac("plan", *how).out
    assert "is the largest step size tried; a better one may lie beyond it" in out
    [row] = [line for line in out.splitlines() if "FedAvg" in line and "\u2502" in line][:1]
    assert re.search(r"\d\*", row)
    answer = json.loads(fedac("plan", *how, "--json").out)
    assert {row["edge"] for row in answer["measured"]} == {"largest"}


def test_target(fedac, small) -> None:
    how = ("--dataset", small, "--l2", 0.1, "-M", 8, "--target", 0.02, "--calibrate", "--json")
    answer = json.loads(fedac("plan", *how).out)
    assert answer["recommended"]["suboptimality"] <= 0.02
    assert all(row["bound"] <= 0.02 for row in answer["bounds"])


def test_a_target_no_bound_reaches(fedac) -> None:
    code, out, _ = fedac("plan", *CONSTANTS, "--target", 1e-30)
    assert code == 0
    assert "No bound reaches target 1e-30" in out


def test_general_convex(fedac) -> None:
    constants = ("--smoothness", 1, "--noise", 1, "--distance", 2, "--third-order", 1)
    answer = json.loads(fedac("plan", *constants, "-T", 4096, "--dim", 10, "--json").out)
    assert len(answer["bounds"]) == 6
    assert all(row["hyperparameters"]["lam"] >= 0 for row in answer["bounds"])


@pytest.mark.parametrize("width", [30, 50, 80, 120])
def test_a_narrow_terminal_cuts_no_number(fedac, monkeypatch, width) -> None:
    how = ("plan", *CONSTANTS, "--third-order", 1, "-T", 4096, "--dim", 1000)
    answer = json.loads(fedac(*how, "--json").out)
    for module in ("plan", "streams"):
        monkeypatch.setattr(f"fedac.cli.{module}.results_console", lambda: Console(width=width))
    out = fedac(*how).out
    assert "\u2026" not in out
    if width > 30:
        assert max(map(len, out.splitlines())) <= width
    for row in answer["bounds"]:
        assert row["label"] in out
        for number in (row["bound"], row["hyperparameters"]["eta"], row["megabytes_per_worker"]):
            assert f"{number:.2g}" in out


def test_bounds_that_say_nothing_are_marked(fedac) -> None:
    answer = json.loads(fedac("plan", *CONSTANTS, "-M", 4, "-T", 16, "--json").out)
    assert all(row["vacuous"] == (row["bound"] >= 4.0) for row in answer["bounds"])
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
        ((*CONSTANTS, "--calibrate"), "--calibrate needs a --dataset"),
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
    ],
)
def test_bad_input(assert_refused, arguments, saying: str) -> None:
    assert_refused("plan", *arguments, saying=saying)
