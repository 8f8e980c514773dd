# SPDX-License-Identifier: Apache-2.0
"""A killed server resumes from its last checkpoint, to the same result."""

from __future__ import annotations

import json
import random
import runpy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord

from fedac.algorithms import FEDAC_I, FEDAC_II, FEDAVG
from fedac.errors import InputError
from fedac.flower import Checkpoint, History, QuorumError

ROUNDS = 8
# Runs a federation and kills itself, as the kernel would, while it waits for a node.
SERVER = """
import os, runpy, signal, sys
conftest, checkpoint, algorithm, kill_round, kill_node = sys.argv[1:]
federation = runpy.run_path(conftest)["Federation"]()

def answer(reply, node, number):
    if (number, node) == (int(kill_round), int(kill_node)):
        os.kill(os.getpid(), signal.SIGKILL)
    return reply

federation.run(algorithm, 8, grid=federation.grid(answer=answer), checkpoint=checkpoint)
"""


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedac-i", "fedac-ii", "fedavg"])
def test_a_killed_server_is_resumed_to_the_same_result(federation, vector, tmp_path, algorithm):
    draw = random.Random(algorithm)
    kill_round, kill_node = draw.randint(2, ROUNDS), draw.randint(1, 8)
    path = tmp_path / "run.npz"
    conftest = Path(__file__).with_name("conftest.py")
    died = subprocess.run(
        [sys.executable, "-c", SERVER, conftest, path, algorithm, str(kill_round), str(kill_node)],
        timeout=1800, check=False, capture_output=True,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert Checkpoint.load(path).round == kill_round - 1
    resumed = federation.run(algorithm, ROUNDS, resume_from=path, checkpoint=path)
    whole = federation.run(algorithm, ROUNDS)
    np.testing.assert_allclose(vector(resumed.arrays), vector(whole.arrays), rtol=1e-12)
    for key, array in whole.sequences.items():
        np.testing.assert_allclose(resumed.sequences[key], array, rtol=1e-12)
    assert resumed.history.metric("loss") == whole.history.metric("loss")
    assert [row.round for row in resumed.history.rounds] == list(range(1, ROUNDS + 1))
    assert Checkpoint.load(path).round == ROUNDS


# The clients of a killed process come back with what they kept in files.
WITH_MEMORY = """
import os, runpy, signal, sys
from pathlib import Path
conftest, folder, algorithm, sample, kill_round, kill_reply = sys.argv[1:]
federation = runpy.run_path(conftest)["Five"](2, memory_folder=Path(folder) / "memory")

def answer(reply, node, number):
    if number == int(kill_round) and sum(r == number for r, _ in grid.asked) == int(kill_reply):
        os.kill(os.getpid(), signal.SIGKILL)
    return reply

grid = federation.grid(answer=answer)
federation.run(
    algorithm, 8, grid=grid, checkpoint=Path(folder) / "run.npz", sample=int(sample) or None,
    eta=0.3,
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "sample"),
    [
        ("scaffold", 4),
        ("scaffnew", None),  # it needs everybody
        ("fedadam", 4),
        ("fedac-i+local+cv+nesterov(1, 0.3)", 4),
    ],
)
def test_a_killed_composition_is_resumed_to_the_same_result(tmp_path, algorithm, sample):
    draw = random.Random(algorithm)
    kill_round, kill_reply = draw.randint(2, ROUNDS), draw.randint(1, 4)
    path, conftest = tmp_path / "run.npz", Path(__file__).with_name("conftest.py")
    script = [sys.executable, "-c", WITH_MEMORY, conftest, tmp_path, algorithm]
    died = subprocess.run(
        [*script, str(sample or 0), str(kill_round), str(kill_reply)],
        timeout=1800, check=False, capture_output=True,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert Checkpoint.load(path).round == kill_round - 1
    make = runpy.run_path(str(conftest))["Five"]
    federation, whole = make(2, memory_folder=tmp_path / "memory"), make(2)
    options = {"sample": sample, "eta": 0.3}
    resumed = federation.run(algorithm, ROUNDS, resume_from=path, checkpoint=path, **options)
    whole = whole.run(algorithm, ROUNDS, **options)
    for mine, other in (
        (resumed.sequences, whole.sequences),
        (resumed.server, whole.server),
        ({key: a.numpy() for key, a in resumed.arrays.items()},
         {key: a.numpy() for key, a in whole.arrays.items()}),
    ):  # fmt: skip
        assert mine.keys() == other.keys()
        for key, array in other.items():
            np.testing.assert_allclose(mine[key], array, rtol=1e-12, atol=1e-14)
    assert [row.memory_lost for row in resumed.history.rounds] == [0] * ROUNDS
    np.testing.assert_allclose(
        resumed.history.metric("loss"), whole.history.metric("loss"), rtol=1e-12
    )


def test_a_failed_evaluation_does_not_lose_the_round(federation, vector, tmp_path):
    path = tmp_path / "run.npz"

    def evaluate(server_round, arrays):
        if server_round == 2:
            raise RuntimeError("no test data")

    with pytest.raises(RuntimeError, match="no test data"):
        federation.strategy(checkpoint=path).start(
            federation.grid(), federation.initial_arrays(), num_rounds=4, evaluate_fn=evaluate
        )
    assert Checkpoint.load(path).round == 2
    resumed, whole = federation.run(rounds=4, resume_from=path), federation.run(rounds=4)
    np.testing.assert_array_equal(vector(resumed.arrays), vector(whole.arrays))


def test_below_the_quorum_the_last_checkpoint_stays(federation, vector, tmp_path):
    path = tmp_path / "run.npz"
    grid = federation.grid(answer=lambda reply, node, number: reply if number < 3 else None)
    with pytest.raises(QuorumError, match="round 3"):
        federation.run(rounds=5, grid=grid, checkpoint=path, deadline=0.05, retries=0)
    assert Checkpoint.load(path).round == 2
    resumed = federation.run(rounds=5, resume_from=path)
    np.testing.assert_array_equal(vector(resumed.arrays), vector(federation.run().arrays))


def test_resuming_a_finished_run_asks_no_node(federation, vector, tmp_path):
    path = tmp_path / "run.npz"
    first = federation.run(rounds=2, checkpoint=path)
    grid = federation.grid()
    again = federation.run(rounds=2, resume_from=path, grid=grid)
    assert not grid.asked
    np.testing.assert_array_equal(vector(again.arrays), vector(first.arrays))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fedac-ii"}, "by algorithm 'fedac-i', not 'fedac-ii'"),
        ({"seed": 4}, "seed=3, not 4"),
        ({"aggregation": "median"}, "aggregation=mean, not median"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(federation, tmp_path, options, message):
    path = tmp_path / "run.npz"
    federation.run(rounds=1, checkpoint=path)
    with pytest.raises(InputError, match=message):
        federation.run(resume_from=path, **options)


def test_a_checkpoint_of_another_model_is_refused(federation, tmp_path):
    path = tmp_path / "run.npz"
    federation.run(rounds=1, checkpoint=path)
    strategy = federation.strategy(resume_from=path)
    with pytest.raises(InputError, match="holds another model"):
        strategy.start(federation.grid(), ArrayRecord([np.zeros(3)]))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="there is no checkpoint"):
        Checkpoint.load(tmp_path / "none.npz")
    whole = tmp_path / "whole.npz"
    Checkpoint(round=1, arrays={"w/0": np.ones(50)}, settings={}, history=History()).save(whole)
    broken = tmp_path / "broken.npz"
    content = whole.read_bytes()
    for length in (0, 10, len(content) // 2, len(content) - 5):
        broken.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"not a checkpoint of fedac\.flower"):
            Checkpoint.load(broken)
    np.savez(broken, w=np.ones(3))
    with pytest.raises(InputError, match=r"not a checkpoint of fedac\.flower"):
        Checkpoint.load(broken)
    # A pickle inside is refused, not run.
    with broken.open("wb") as file:
        np.savez(file, **{"header.json": np.array([print], dtype=object)})
    with pytest.raises(InputError, match="damaged, or not a checkpoint"):
        Checkpoint.load(broken)


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    Checkpoint(round=1, arrays={"w/0": np.ones(5)}, settings={}, history=History()).save(path)

    def full(handle):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        Checkpoint(round=2, arrays={"w/0": np.zeros(5)}, settings={}, history=History()).save(path)
    monkeypatch.undo()
    assert Checkpoint.load(path).round == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]


def test_a_flipped_bit_is_refused_or_harmless(tmp_path):
    path = tmp_path / "run.npz"
    Checkpoint(round=1, arrays={"w/0": np.ones(50)}, settings={}, history=History()).save(path)
    content = path.read_bytes()
    refused = 0
    for position in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            Checkpoint.load(path)
        except InputError:
            refused += 1
    assert refused > len(content) // 3 // 2


def test_a_folder_is_not_a_checkpoint(tmp_path):
    with pytest.raises(InputError, match="Is a directory"):
        Checkpoint.load(tmp_path)


def test_a_checkpoint_of_another_version_is_refused(federation, tmp_path):
    path = tmp_path / "run.npz"
    federation.run(rounds=1, checkpoint=path)
    with np.load(path) as archive:
        content = dict(archive)
    header = json.loads(content["header.json"].tobytes()) | {"version": 1}
    content["header.json"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **content)
    with pytest.raises(InputError, match="it has version 1"):
        federation.run(rounds=2, resume_from=path)


def test_a_checkpoint_of_another_algorithm_with_the_same_name_is_refused(federation, tmp_path):
    path = tmp_path / "run.npz"
    federation.run(replace(FEDAC_I, couple=FEDAC_II.couple), 1, checkpoint=path)
    with pytest.raises(InputError, match="it was written with alpha"):
        federation.run("fedac-i", resume_from=path)
    federation.run(
        replace(FEDAVG, update=lambda s, w, g, hp: (w - 2 * hp.eta * g,)), 1, checkpoint=path
    )
    with pytest.raises(InputError, match="another algorithm that is also called 'fedavg'"):
        federation.run("fedavg", resume_from=path)


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_only_the_owner_may_read_checkpoints_and_memories(tmp_path, mask):
    """Models and what clients remember are as secret as the data behind them."""
    import os
    import runpy

    Five = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["Five"]
    folder, path = tmp_path / "memory", tmp_path / "run.npz"
    path.write_bytes(b"of an earlier run")
    path.chmod(0o644)
    path.with_name(".run.npz.part").touch(0o644)  # of a process that was killed
    before = os.umask(mask)
    try:
        Five(2, memory_folder=folder).run("scaffold", 2, checkpoint=path)
    finally:
        os.umask(before)
    files = [path, *folder.iterdir()]
    assert len(files) == 11
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
