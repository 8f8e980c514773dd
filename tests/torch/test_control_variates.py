# SPDX-License-Identifier: Apache-2.0
"""Control variates in processes: c stays the mean of all c_m, whoever takes part in a round."""

import itertools

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.slow

SIZES = [1, 6, 13, 25]
WEIGHTINGS = {
    "uniform": {"weighting": "uniform", "examples": None},
    "examples": {"weighting": "examples", "examples": SIZES},
    "counted": {"weighting": "examples", "examples": None},
}
# Rounds have four steps: rank 1 is absent from most of an epoch, and rank 2 once sends NaN.
JOBS = {
    f"{algorithm}, {weighting}, {dtype}, {wire}": WEIGHTINGS[weighting]
    | {"algorithm": algorithm, "dtype": dtype, "wire": wire}
    | {"batches": [9, 3, 14, 12], "epochs": 3, "nan": [2, 5]}
    for algorithm, weighting, dtype, wire in [
        *itertools.product(
            ["scaffold", "fedac-i+cv+nesterov(1,0.3)"], WEIGHTINGS, ["float64"], ["float32", "int8"]
        ),
        ("scaffold", "examples", "float32", "float32"),
        ("scaffold", "counted", "float32", "float32"),
        ("fedac-i+cv", "counted", "float32", "int8"),
    ]
}
LIMITS = {"float64": 1e-12, "float32": 1e-5}


def assert_mean(ranks, weighting: str, limit: float) -> None:
    """Check c after every round, with weights that are followed here."""
    sizes = {"uniform": [1] * len(ranks), "examples": SIZES, "counted": [0] * len(ranks)}
    weights = np.array(sizes[weighting][: len(ranks)], float)
    absent = 0
    for this_round in zip(*ranks, strict=True):
        for m, mine in enumerate(this_round):
            absent += not mine["used"]
            if weighting == "counted" and mine["used"]:
                weights[m] = mine["counted"]
        wanted = sum(w * mine["c_m"] for w, mine in zip(weights, this_round, strict=True))
        wanted = wanted / weights.sum()
        assert wanted.abs().max() > 0.01
        for mine in this_round:
            assert torch.equal(mine["c"], this_round[0]["c"])
            off = (mine["c"] - wanted).abs().max().item()
            assert off <= limit * max(1.0, wanted.abs().max().item())
    assert absent > 0


@pytest.mark.parametrize("name", JOBS)
def test_c_is_the_mean_of_all_variates_after_every_round(processes, name: str) -> None:
    ended = processes("practice_jobs:variates", **JOBS[name])
    assert [process.code for process in ended] == [0] * 4, ended[0].err
    ranks = [process.result for process in ended]
    assert len(ranks[0]) == 12
    assert_mean(ranks, name.split(", ")[1], LIMITS[JOBS[name]["dtype"]])


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_c_is_the_mean_of_those_that_are_left(processes, weighting: str) -> None:
    name = f"scaffold, {weighting}, float64, float32"
    ended = processes("practice_jobs:variates", **JOBS[name] | {"lost": True})
    assert [process.code for process in ended] == [0] * 4, ended[0].err
    ranks = [process.result for process in ended]
    before = [rounds[: len(ranks[3])] for rounds in ranks]
    assert_mean(before, weighting, 1e-12)
    survivors = ranks[:3]
    assert len(survivors[0]) > len(ranks[3])
    last = [rounds[-1] for rounds in survivors]
    weights = {"uniform": [1] * 3, "examples": SIZES[:3], "counted": last_counts(survivors)}
    p = np.array(weights[weighting], float) / sum(weights[weighting])
    wanted = sum(w * mine["c_m"] for w, mine in zip(p, last, strict=True))
    assert (last[0]["c"] - wanted).abs().max() <= 1e-12


def last_counts(ranks) -> list[int]:
    """Return by rank how much it counted in the last round that it was in."""
    return [next(row["counted"] for row in reversed(rounds) if row["used"]) for rounds in ranks]


CURVATURE = [[0.3, 1.0], [0.8, 0.4], [1.0, 0.6], [0.5, 0.2]]
MINIMIZER = [[4.0, -1.0], [-3.0, 2.0], [1.0, 5.0], [2.0, -4.0]]


@pytest.mark.parametrize(
    ("weighting", "fixed", "batches"),
    [
        ("examples", True, [4, 8, 12, 8]),  # rank 0 takes part in a third of the rounds
        ("uniform", False, [4, 8, 12, 8]),
        ("examples", False, [4, 4, 4, 4]),
    ],
)
@pytest.mark.parametrize("algorithm", ["scaffold", "fedac-i+cv"])
def test_unequal_clients_reach_the_pooled_optimum(
    processes, algorithm: str, weighting: str, fixed: bool, batches: list[int]
) -> None:
    ended = processes(
        "practice_jobs:pooled", algorithm=algorithm, curvature=CURVATURE, minimizer=MINIMIZER,
        examples=SIZES, batches=batches, epochs=160, lr=0.3, weighting=weighting, fixed=fixed,
    )  # fmt: skip
    assert [process.code for process in ended] == [0] * 4, ended[0].err
    sizes = np.array(SIZES if weighting == "examples" else [1] * 4, float)[:, None]
    a, b = np.array(CURVATURE), np.array(MINIMIZER)
    wanted = (sizes * a * b).sum(0) / (sizes * a).sum(0)
    for process in ended:
        np.testing.assert_allclose(process.result, wanted, rtol=0, atol=1e-9)
