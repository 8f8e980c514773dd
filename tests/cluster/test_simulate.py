# SPDX-License-Identifier: Apache-2.0
"""A simulation over several nodes has the bits of the same simulation on one machine."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedac.errors import NotAcceleratedWarning, StepSizeWarning

pytest.importorskip("ray", reason="Ray is not installed: make install")
pytestmark = pytest.mark.slow

FILE = Path(__file__).with_name("scenarios.py")
SCENARIOS = runpy.run_path(str(FILE))

# Actors take seconds to start: the others run with two of them only.
WITH_EVERY_NUMBER = "clients_that_remember_and_change_nodes"


def numbers_of_actors(name: str) -> tuple[int, ...]:
    return (1, 2, 3) if name == WITH_EVERY_NUMBER else (2,)


# One driver runs everything, with 1, 2 or 3 actors that have a quarter or half of a core.
DRIVER = """
import runpy, sys, traceback, warnings
from dataclasses import replace
from pathlib import Path
import numpy as np
from fedac.cluster import connect, nodes
from fedac.simulation.engines import ray as driver

file, out, *pairs = sys.argv[1:]
scenarios = runpy.run_path(file)
warnings.simplefilter("ignore")

class CountedMoves(driver.MemoryPlacement):
    def assign(self, members, bounds):
        global moves
        for move in super().assign(members, bounds):
            moves += len(move[2])
            yield move

driver.MemoryPlacement = CountedMoves
with connect():
    first, second = nodes()
    cpus = [replace(first, cpus=0.25), replace(second, cpus=0.5), replace(first, cpus=0.25)]
    for pair in pairs:
        name, actors = pair.split("-")
        driver.nodes_with_cores = lambda: cpus[: int(actors)]
        queries, moves = [], 0
        try:
            result = scenarios["SCENARIOS"][name](on="ray", on_progress=queries.append)
        except Exception:
            Path(out, f"{pair}.txt").write_text(traceback.format_exc())
            continue
        found = scenarios["numbers"](result) | {"reported": sum(queries)}
        np.savez(Path(out, f"{pair}.npz"), **found)
        Path(out, f"{pair}.moves").write_text(str(moves))
"""


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """Run all scenarios on one machine, and return their numbers by name."""
    numbers = {}
    for name, simulation in SCENARIOS["SCENARIOS"].items():
        queries: list[int] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepSizeWarning)
            warnings.simplefilter("ignore", NotAcceleratedWarning)
            result = simulation(on_progress=queries.append)
        numbers[name] = SCENARIOS["numbers"](result) | {"reported": sum(queries)}
    return numbers


@pytest.fixture(scope="module")
def found(two_nodes, alone, tmp_path_factory) -> Path:
    """Run all scenarios on the cluster, and return where their results are.

    By now the kernels are compiled: actors that start together would each compile all of them.
    """
    out = tmp_path_factory.mktemp("found")
    pairs = [f"{name}-{actors}" for name in SCENARIOS["SCENARIOS"]
             for actors in numbers_of_actors(name)]  # fmt: skip
    two_nodes.run(DRIVER, FILE, out, *pairs)
    return out


@pytest.mark.parametrize("name", SCENARIOS["SCENARIOS"])
def test_actors_give_the_bits_of_one_machine(name: str, alone, found: Path) -> None:
    for actors in numbers_of_actors(name):
        failed = found / f"{name}-{actors}.txt"
        assert not failed.exists(), failed.read_text()
        with np.load(found / f"{name}-{actors}.npz") as got:
            assert set(got) == set(alone[name])
            for key, value in alone[name].items():
                assert np.array_equal(got[key], value, equal_nan=True), (actors, key)


def test_memories_move_when_their_clients_fall_to_another_actor(found: Path) -> None:
    moves = [
        int((found / f"{WITH_EVERY_NUMBER}-{actors}.moves").read_text()) for actors in (1, 2, 3)
    ]
    assert moves[0] == 0
    assert min(moves[1:]) > 0
