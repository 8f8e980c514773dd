"""The lines of the benchmark that need Ray, in a process of their own.

``python -m fedac.experiments.ray_benchmark task|nodes`` prints the numbers of a line as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from fedac.data import load
from fedac.experiments.bench import ETAS, REPEATS
from fedac.experiments.grid import Grid
from fedac.experiments.runners import Order, Runner
from fedac.experiments.runners.inline import InThisProcess
from fedac.experiments.runners.on_ray import OnRay
from fedac.experiments.task import prepare
from fedac.objectives import LogisticRegression
from fedac.simulation import simulate

# Groups whose time is compared.
ORDERS = 20


@contextmanager
def two_nodes() -> Iterator[None]:
    """Connect to two nodes of one core each, on the loopback interface."""
    import ray
    from ray.cluster_utils import Cluster

    local: dict[str, Any] = {"node_ip_address": "127.0.0.1", "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args={**local, "include_dashboard": False})
    try:
        cluster.add_node(**local)
        ray.init(cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


def measure_task() -> dict[str, Any]:
    """Compare groups as Ray tasks, one at a time, with the same groups in this process."""
    # 26 runs with a record at each of 2,048 steps are 1 MB.
    grid = Grid(
        name="bench", dataset="synthetic", l2=1e-2, algorithms=("fedac-i", "fedavg"), workers=(4,),
        local_steps=(1,), steps=2048, eta=ETAS, record_every=1, seeds=tuple(range(ORDERS)),
    )  # fmt: skip
    task = prepare(grid)

    def seconds(runner: Runner) -> float:
        """Return the time of a group, without the first."""
        orders = (Order(number, configs, 0.0) for number, configs in enumerate(task.groups))
        answers = runner.run(orders, lambda order, queries, node: None)
        next(answers)
        before = time.perf_counter()
        for answer in answers:
            assert answer.error is None
        return (time.perf_counter() - before) / (ORDERS - 1)

    here = InThisProcess(task, 1, lambda: None)
    with two_nodes():
        import ray

        # One of the two nodes is kept busy by nobody: tasks run one at a time.
        hold = ray.remote(num_cpus=1)(time.sleep)
        hold.remote(3600)
        with OnRay(task, [], None, lambda: None) as there:
            seconds(here), seconds(there)
            mine, other = 1000 * seconds(there), 1000 * seconds(here)
    return {"ours": mine, "theirs": other, "unit": "ms", "ratio": mine - other, "bar": 30,
            "at_most": True}  # fmt: skip


def measure_nodes() -> dict[str, Any]:
    """Compare one simulation over two nodes with the same one on two threads."""
    data = load("a9a")
    F = LogisticRegression(data.X, data.y, l2=1e-3)

    def speed(**how: Any) -> float:
        result = simulate(F, "fedac-i", M=2**20, K=64, T=128, eta=ETAS, record_every=128, **how)
        return result.gradient_queries / result.seconds / 1e6

    with two_nodes():
        speed(on="ray"), speed(threads=2)
        pairs = [(speed(on="ray"), speed(threads=2)) for _ in range(REPEATS)]
    mine, other = (median(speeds) for speeds in zip(*pairs, strict=True))
    return {"ours": mine, "theirs": other, "unit": "M steps/s", "ratio": mine / other, "bar": 0.85}


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    print(json.dumps({"task": measure_task, "nodes": measure_nodes}[sys.argv[1]]()))
