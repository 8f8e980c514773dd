"""Killed and started again by torchrun: the result is that of a run nobody has killed."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKERS = Path(__file__).with_name("workers.py")
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
    """Choose who dies when and how; two kills must not fall into one life."""
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


# Twenty-one kills here, and one of a program that takes its time to start below.
@pytest.mark.parametrize("seed", range(7))
def test_killed_runs_end_the_same_to_the_bit(processes, undisturbed, tmp_path, seed) -> None:
    kills = draw_kills(seed, RESTARTS)
    (ended,) = processes(
        "torchrun",
        world=1,
        folder=str(tmp_path),
        restarts=RESTARTS,
        steps=STEPS,
        kills=kills,
    )
    assert ended.code == 0, ended.err
    check(tmp_path, kills, undisturbed)


def test_the_program_torchrun(undisturbed, tmp_path: Path) -> None:
    kills = draw_kills(7, 1)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=4",
        f"--max-restarts={RESTARTS}", "--rdzv-backend=c10d", "--rdzv-id=test",
        f"--rdzv-endpoint={tmp_path}/rendezvous", "--rdzv-conf=store_type=file",
        "--local-addr=127.0.0.1", "--monitor-interval=0.1", str(WORKERS),
        json.dumps({"folder": str(tmp_path), "steps": STEPS, "kills": kills}),
    ]  # fmt: skip
    # Files, not a server of torchrun's own, which would listen to the whole network. The variable
    # is the one of docs/pytorch.md: restarted processes must not find the addresses of dead ones.
    here = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(
        command, env=os.environ | here, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stderr
    check(tmp_path, kills, undisturbed)
