# SPDX-License-Identifier: Apache-2.0
"""Killed and restarted by torchrun, a run ends as if nothing had happened."""

import random
from pathlib import Path

import pytest
import torch

STEPS = 60
RESTARTS = 3


# With memory, or a state of every rank's own optimizer, and without; a server may keep something.
WITH_MEMORY = ["scaffold", "fedac-i+local", "fedac-i+cv+nesterov(1,0.3)", "adamw"]
WITHOUT_MEMORY = ["diloco", "sgd, reset", "adamw, averaged"]
ALGORITHMS = ["fedac-i", *WITH_MEMORY, *WITHOUT_MEMORY]
# Rank 1 dies, and so on: between any two files of a checkpoint, and in the middle of each.
KILLS = [
    [[1, 14, "writing"], [0, 29, "replacing"], [2, 44, "exchanged"]],
    [[0, 4, "exchanged"], [3, 19, "written"], [0, 34, "exchanged"]],
    [[0, 14, "writing"], [1, 31, "killed"], [0, 59, "replacing"]],
]
# Without memory there is one file, and rank 0 writes it.
KILLS_WITHOUT_MEMORY = [[[0, 14, "writing"], [2, 31, "killed"], [0, 59, "writing"]]]


@pytest.fixture(scope="module")
def undisturbed(processes, tmp_path_factory):
    """Return by algorithm what each of four processes ends with if nothing happens."""
    found = {}
    for algorithm in ALGORITHMS:
        folder = tmp_path_factory.mktemp("undisturbed")
        arguments = {"folder": str(folder), "steps": STEPS, "kills": [], "algorithm": algorithm}
        ended = processes("train", **arguments)
        assert [process.code for process in ended] == [0] * 4, ended[0].err
        found[algorithm] = [process.result for process in ended]
    return found


def draw_kills(seed: int, count: int) -> list[list[object]]:
    """Choose which rank dies when and how, each kill in a part of the run of its own."""
    rng = random.Random(seed)
    kills: list[list[object]] = []
    for nth in range(count):
        t = rng.randrange(nth * STEPS // count, (nth + 1) * STEPS // count)
        how = rng.choice(["killed", "exits", "writing"])
        # Only the first process writes, and it does after every fifth step.
        kills.append([0, t - t % 5 + 4, how] if how == "writing" else [rng.randrange(4), t, how])
    return kills


def check(folder: Path, kills, undisturbed) -> None:
    for rank in range(4):
        assert torch.load(folder / f"final-{rank}.pt", weights_only=True) == undisturbed[rank]
    assert all((folder / f"{rank}-{t}").exists() for rank, t, _ in kills)  # all took place
    assert not list(folder.glob(".*"))  # no half-written checkpoint is left


# In forked workers, and once in a program that takes its time to start.
@pytest.mark.parametrize(
    ("job", "algorithm", "seed", "count"),
    [
        *(("torchrun", "fedac-i", seed, RESTARTS) for seed in range(7)),
        ("torchrun_program", "fedac-i", 7, 1),
        ("torchrun", "adamw", 8, RESTARTS),
        ("torchrun", "adamw, averaged", 9, RESTARTS),
    ],
)
def test_killed_runs_end_bit_identical(
    processes, undisturbed, tmp_path, job, algorithm, seed, count
) -> None:
    kills = draw_kills(seed, count)
    run_with_kills(processes, undisturbed, tmp_path, kills, algorithm=algorithm, job=job)


@pytest.mark.parametrize(
    ("algorithm", "kills"),
    [(name, kills) for name in WITH_MEMORY for kills in KILLS]
    + [(name, kills) for name in WITHOUT_MEMORY for kills in KILLS_WITHOUT_MEMORY],
)
def test_killed_compositions_end_bit_identical(
    processes, undisturbed, tmp_path, algorithm, kills
) -> None:
    run_with_kills(processes, undisturbed, tmp_path, kills, algorithm=algorithm)
    files = [path.name for path in tmp_path.glob("last.pt*")]
    if algorithm in WITHOUT_MEMORY:
        assert files == ["last.pt"]
    else:  # those of the last checkpoint, and of the one before
        steps = (STEPS - 5, STEPS)
        wanted = [f"last.pt.rank{rank}.step{step}" for rank in range(4) for step in steps]
        assert sorted(files) == ["last.pt", *wanted]


def run_with_kills(
    processes, undisturbed, folder, kills, *, algorithm="fedac-i", job="torchrun"
) -> None:
    arguments = {"folder": str(folder), "restarts": RESTARTS, "steps": STEPS, "kills": kills}
    (ended,) = processes(job, world=1, **arguments, algorithm=algorithm)
    assert ended.code == 0, ended.err
    check(folder, kills, undisturbed[algorithm])
