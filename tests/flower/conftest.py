# SPDX-License-Identifier: Apache-2.0
"""A small problem, its clients, and a grid that can inject faults."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedac.data import Clients
from fedac.objectives import LogisticRegression
from fedac.simulation import simulate

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_raylet_start_wait_time_s="600",  # a busy machine starts Ray slowly
)

CLIENTS, K, SEED, L2 = 8, 4, 3, 0.05
SPLIT = 5  # the model is two arrays: a vector and a column


def make_objective() -> LogisticRegression:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 12))
    y = np.where(X @ rng.standard_normal(12) + rng.logistic(size=200) > 0, 1.0, -1.0)
    return LogisticRegression(X, y, l2=L2)


def to_arrays(w: np.ndarray) -> list[np.ndarray]:
    return [w[:SPLIT], w[SPLIT:, None]]


def to_vector(arrays: list[Any]) -> np.ndarray:
    return np.concatenate([np.ravel(array) for array in arrays])


class LogisticModel:
    """The simulator's objective as a client's model: `batch` of its rows a step, or "full"."""

    def __init__(self, F: LogisticRegression, batch: int | str = 1) -> None:
        self.F, self.n_examples, self.batch = F, F.n_samples, batch

    def gradient(self, w, step):
        if self.batch == "full":
            return to_arrays(self.F.gradient(to_vector(w)))
        rows = step.rows(self.F.n_samples, self.batch)
        each = [self.F.stochastic_gradient(to_vector(w), row) for row in rows]
        return to_arrays(np.mean(each, axis=0))

    def full_gradient(self, w):
        return to_arrays(self.F.gradient(to_vector(w)))

    def evaluate(self, w):
        return {"loss": self.F.value(to_vector(w))}


class Federation:
    """One problem: its start, its app, its grid, and the simulator's result.

    Every client draws from all rows.
    """

    Model = LogisticModel
    nodes = CLIENTS

    def __init__(self) -> None:
        self.F = make_objective()
        self.w_0 = np.random.default_rng(1).standard_normal(self.F.dim)
        self.eta = 0.5 / self.F.smoothness

    def initial_arrays(self):
        from flwr.app import ArrayRecord

        return ArrayRecord(to_arrays(self.w_0))

    def app(self, load_data: Callable[..., Any] | None = None):
        from fedac.flower import client_app

        return client_app(load_data or (lambda context: self.F), LogisticModel)

    def grid(self, nodes: int | None = None, answer: Callable[..., Any] | None = None):
        """Return a grid; `answer(reply, node, round)` may change a training reply or drop it.

        Nodes have the ids 1, 2, ..., and deadlines are for those that are silent: a busy machine
        loses none of the others.
        """
        from flwr.app import MessageType

        from fedac.flower import InProcessGrid

        class TestGrid(InProcessGrid):
            asked: list[tuple[int, int]]
            pull_seconds = 600.0

            def answer(self, message):
                reply = super().answer(message)
                if message.metadata.message_type != MessageType.TRAIN:
                    return reply
                node, number = message.metadata.dst_node_id, int(message.metadata.group_id)
                self.asked.append((number, node))
                return reply if answer is None else answer(reply, node, number)

        grid = TestGrid(self.app(), self.nodes if nodes is None else nodes)
        grid.asked = []
        grid.configs = dict(enumerate(grid.configs.values(), 1))
        return grid

    def strategy(self, algorithm="fedac-i", **options):
        from fedac.flower import LocalStrategy

        common = {"eta": self.eta, "mu": L2, "local_steps": K, "seed": SEED, "deadline": 60.0}
        return LocalStrategy(algorithm, **common | {"min_nodes": self.nodes} | options)

    def run(self, algorithm="fedac-i", rounds=5, *, grid=None, **options):
        strategy = self.strategy(algorithm, **options)
        return strategy.start(grid or self.grid(), self.initial_arrays(), num_rounds=rounds)

    def simulated(self, algorithm, rounds: int, **options):
        common = {"M": self.nodes, "eta": self.eta, "K": K, "rounds": rounds, "record_every": K}
        result = simulate(
            self.F, algorithm, **common | options, start=self.w_0, seed=SEED, engine="reference"
        )
        return result.runs[0]


class Different(Federation):
    """Clients that differ: four with rows of their own, sorted by label, 2 to 120 of them."""

    nodes = 4
    owners = np.repeat([2, 0, 3, 1], [2, 28, 50, 120])

    def __init__(self, batch: int | str = 1, memory_folder: Path | None = None) -> None:
        super().__init__()
        self.clients = Clients(self.owners[np.argsort(np.argsort(self.F.y, kind="stable"))])
        self.batch, self.memory_folder = batch, memory_folder

    def own_rows(self, context) -> LogisticRegression:
        rows = self.clients.rows_of(context.node_config["partition-id"])
        return LogisticRegression(self.F.X[rows], self.F.y[rows], l2=L2)

    def app(self, load_data: Callable[..., Any] | None = None):
        from fedac.flower import client_app

        return client_app(
            load_data or self.own_rows,
            lambda F: LogisticModel(F, self.batch),
            memory_folder=self.memory_folder,
        )

    def simulated(self, algorithm, rounds: int, **options):
        differing = {"M": None, "clients": self.clients, "batch": self.batch}
        return super().simulated(algorithm, rounds, **differing | options)


class Five(Different):
    """Five clients that differ."""

    nodes = 5
    owners = np.repeat([2, 0, 3, 4, 1], [2, 28, 50, 40, 80])


@pytest.fixture(scope="session")
def federation() -> Federation:
    return Federation()


@pytest.fixture(scope="session")
def vector() -> Callable[[Any], np.ndarray]:
    """Return the function from a run's arrays to one vector."""
    return lambda record: to_vector([array.numpy() for array in record.values()])
