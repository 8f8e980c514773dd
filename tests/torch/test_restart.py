"""Killed and restarted by torchrun, a run ends as if nothing had happened."""

import random
from pathlib import Path

import pytest
import torch

STEPS = 60
RESTARTS = 3


@pytest.fixture(scope="module")
def undisturbed(processes, tmp_path_factory):
    """Return the state that an undisturbed run of four processes ends with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = processes("train", folder=str(folder), steps=STEPS, kills=[])
    assert [process.code for process in ended] == [0] * 4, ended[0].err
    return ended[0].result


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
        assert torch.load(folder / f"final-{rank}.pt", weights_only=True) == undisturbed
    assert all((folder / f"{rank}-{t}").exists() for rank, t, _ in kills)  # all took place
    assert not list(folder.glob(".*"))  # no half-written checkpoint is left


# Twenty-one kills in forked workers, and one in a program that takes its time to start.
@pytest.mark.parametrize(
    ("job", "seed", "count"),
    [*(("torchrun", seed, RESTARTS) for seed in range(7)), ("torchrun_program", 7, 1)],
)
def test_killed_runs_end_bit_identical(processes, undisturbed, tmp_path, job, seed, count) -> None:
    kills = draw_kills(seed, count)
    arguments = {"folder": str(tmp_path), "restarts": RESTARTS, "steps": STEPS, "kills": kills}
    (ended,) = processes(job, world=1, **arguments)
    assert ended.code == 0, ended.err
    check(tmp_path, kills, undisturbed)
