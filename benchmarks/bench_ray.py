# SPDX-License-Identifier: Apache-2.0
"""The lines of `bench.py` that need a Ray cluster, measured in a separate process.

`python benchmarks/bench_ray.py task|nodes` prints the numbers of one line as JSON.
"""

from __future__ import annotations

import json
import logging
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from bench import ETAS, REPEATS

from fedac.data import load
from fedac.experiments.pool import Order
from fedac.experiments.ray_pool import OnRay
from fedac.experiments.workload import Outcome, Workload
from fedac.federation.spec import RunSpec
from fedac.objectives import LogisticRegression
from fedac.simulation import simulate

# Number of groups to time.
ORDERS = 60


@contextmanager
def cluster_of(nodes: int) -> Iterator[None]:
    """Start a cluster of single-core nodes on the loopback interface and connect to it."""
    import ray
    from ray.cluster_utils import Cluster

    local: dict[str, Any] = {"node_ip_address": "127.0.0.1", "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args={**local, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**local)
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Finished(Workload):
    """A task that takes no time, so that everything measured is overhead."""

    losses: int = 100_000

    def run(self, configs: Sequence[RunSpec], *_: Any, **__: Any) -> list[tuple[RunSpec, Outcome]]:
        """Return about 1 MB of results for the first run."""
        losses = tuple(np.arange(self.losses, dtype=float).tolist())
        outcome = Outcome(
            status="ok", steps=(0,), losses=losses, f_star=0.0, bytes_up=0, bytes_down=0,
            n_samples=1, n_features=1, seconds=0.0,
        )  # fmt: skip
        return [(configs[0], outcome)]


def measure_task() -> dict[str, Any]:
    """Time Ray tasks that do nothing, one at a time."""
    F = LogisticRegression([[1.0]], [1.0], l2=1e-2)
    task = Finished(F, {}, {}, {}, None)
    runs = [RunSpec(algorithm="fedavg", local_steps=1, steps=1, seed=n) for n in range(ORDERS)]
    with (
        cluster_of(1),
        OnRay(task, [], None, lambda node, order, queries: None, lambda: None) as runner,
    ):
        for number, run in enumerate(runs):
            runner.start(Order(number, (run,), 0.0))
        times = []
        for _ in runs:
            answer = runner.wait()
            assert answer.error is None
            times.append(time.perf_counter())
    # The first task starts a process.
    overhead = 1000 * (times[-1] - times[0]) / (len(times) - 1)
    size = len(pickle.dumps(answer.results)) / 1e6
    return {"ours": overhead, "theirs": size, "unit": "ms, MB", "ratio": overhead, "bar": 30,
            "at_most": True}  # fmt: skip


def measure_nodes() -> dict[str, Any]:
    """Compare a simulation on two nodes with the same simulation on two threads."""
    data = load("a9a")
    F = LogisticRegression(data.X, data.y, l2=1e-3)

    def speed(**how: Any) -> float:
        result = simulate(F, "fedac-i", M=2**20, K=64, T=128, eta=ETAS, record_every=128, **how)
        return result.gradient_queries / result.seconds / 1e6

    with cluster_of(2):
        speed(on="ray"), speed(threads=2)
        pairs = [(speed(on="ray"), speed(threads=2)) for _ in range(REPEATS)]
    mine, other = (median(speeds) for speeds in zip(*pairs, strict=True))
    return {"ours": mine, "theirs": other, "unit": "M steps/s", "ratio": mine / other, "bar": 0.85}


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    print(json.dumps({"task": measure_task, "nodes": measure_nodes}[sys.argv[1]]()))
