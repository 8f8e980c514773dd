# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of long simulations: a file from which the same call continues.

The file has the server's state of all lanes, what clients keep, and the records so far. It is
written at the end of a round when the last one is some seconds old, and at the end.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from fedac.algorithms.checks import fingerprint
from fedac.errors import InputError
from fedac.federation.checkpoint import Envelope, MissingCheckpointError
from fedac.simulation.problem import Problem, Snapshot
from fedac.validate import Array, content_hash

if TYPE_CHECKING:
    from fedac.objectives.network import Network
    from fedac.simulation.engines.network.engine import Simulation

ENVELOPE = Envelope(package="fedac.simulate", version=1)
SECONDS = 10.0
# Writing takes at most this share of the time.
SHARE = 0.05
Content = tuple[dict[str, Any], dict[str, Array]]  # JSON and arrays


class SimulationCheckpoint:
    """The file of one simulation."""

    def __init__(self, path: Path, problem: Problem) -> None:
        if not path.resolve().parent.is_dir():
            raise InputError(f"the folder of the checkpoint '{path}' does not exist: create it")
        self.path, self.key = path, _key(problem)
        self._history: list[dict[str, Any]] = []
        self._last: dict[int, Snapshot] = {}  # the last record of every lane
        self._written, self._took = time.monotonic(), 0.0

    def record(self, snapshots: list[Snapshot]) -> None:
        """Remember records."""
        for one in snapshots:
            parts = {"lane": one.lane, "step": one.step, "diverged": one.diverged}
            metrics = None if one.metrics is None else dict(one.metrics)
            self._history.append(parts | {"loss": one.loss, "metrics": metrics})
            if not one.diverged or one.lane not in self._last:
                self._last[one.lane] = one

    def write_if_due(self, simulation: Simulation, rounds: int, *, at_end: bool) -> None:
        """Write the file after some rounds, if the last one is old enough."""
        age = time.monotonic() - self._written
        if not at_end and age < max(SECONDS, self._took / SHARE):
            return
        begun = time.monotonic()
        meta = ENVELOPE.header() | {
            "key": self.key, "backend": simulation.problem.backend, "rounds": rounds,
            "history": self._history, "groups": [group.lanes for group in simulation.groups],
        }  # fmt: skip
        arrays: dict[str, Any] = simulation.state() | self._states()
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        ENVELOPE.write(self.path, lambda file: np.savez(file, **arrays))
        self._written, self._took = time.monotonic(), time.monotonic() - begun

    def read(self, simulation: Simulation) -> tuple[int, list[Snapshot]]:
        """Continue from the file, if there is one; return the rounds done and their records."""
        try:
            meta, arrays = ENVELOPE.read(self.path, _load)
        except MissingCheckpointError:
            return 0, []
        if meta["key"] != self.key:
            raise InputError(
                f"'{self.path}' belongs to another simulation: use another file, or delete it"
            )
        simulation.restore(meta["groups"], meta["rounds"], arrays)
        found = []
        for parts in meta["history"]:
            lane = parts["lane"]
            count = sum(name.startswith(f"last/{lane}/") for name in arrays)
            state = tuple(arrays[f"last/{lane}/{i}"] for i in range(count))
            buffers = arrays.get(f"last_buffers/{lane}")
            found.append(Snapshot(**parts, state=state, buffers=buffers, seen=True))
        self.record(found)
        return meta["rounds"], found

    def _states(self) -> dict[str, Array]:
        named: dict[str, Array] = {}
        for lane, one in self._last.items():
            named |= {f"last/{lane}/{i}": vector for i, vector in enumerate(one.state)}
            if one.buffers is not None:
                named[f"last_buffers/{lane}"] = one.buffers
        return named


def stored_backend(path: Path) -> str | None:
    """Return the back end of a checkpoint; None if there is none."""
    try:
        meta, _ = ENVELOPE.read(path, _load)
    except MissingCheckpointError:
        return None
    backend: str | None = meta["backend"]
    return backend


def _load(file: BinaryIO) -> Content:
    with np.load(file, allow_pickle=False) as arrays:
        meta = json.loads(arrays["meta"].tobytes())
        ENVELOPE.require_header(meta)
        return meta, {name: arrays[name] for name in arrays.files if name != "meta"}


def _key(problem: Problem) -> str:
    """Return a hash of everything that the numbers of a run depend on."""
    federation, clients = problem.federation, problem.federation.clients
    network = cast("Network", problem.objective)
    lanes = [
        [fingerprint(lane.algorithm), asdict(lane.hp), str(lane.eta)] for lane in problem.lanes
    ]
    parts = [
        problem.objective.fingerprint(), lanes, federation.seed, federation.M, federation.count,
        federation.batch, federation.weighting, federation.epochs,
        None if clients is None else clients.fingerprint(), problem.schedule.gaps,
        sorted(problem.records), problem.wire, problem.precision, list(network.metrics),
    ]  # fmt: skip
    if problem.work is not None:
        parts.append(repr(problem.work))
    test = [] if network.test is None else [tensor.numpy() for tensor in network.test]
    return content_hash(json.dumps(parts, default=str), problem.start, *test)
