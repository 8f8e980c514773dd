# SPDX-License-Identifier: Apache-2.0
"""FedAc, FedAvg and Flower's own FedAvgM on a9a, split over 10 clients.

Writes docs/images/flower-rounds.png: FEDAC_DATA=... python benchmarks/flower_figure.py
All methods take the same local steps on the same draws, each with its best step size from one grid.
Lines are medians over the seeds, bands show the range. All runs go through Flower's messages, in
one process. We chose this setting after trying others with the first seed; docs/flower.md says how
many and what they showed.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvgM
from matplotlib.figure import Figure

from fedac.algorithms import FEDAVG
from fedac.data import load
from fedac.flower import InProcessGrid, LocalStrategy, Task, client_app, local_steps
from fedac.flower._arrays import count_bytes
from fedac.objectives import LogisticRegression, optimum
from fedac.plotting import OTHER, style

OUT = Path(__file__).parents[1] / "docs" / "images" / "flower-rounds.png"
CLIENTS, K, BATCH, ROUNDS, L2 = 10, 8, 1024, 100, 1e-4
SEEDS = (1, 2, 3, 4, 5)
ETAS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
TARGETS = (1e-2, 2e-3, 5e-4)
MOMENTUM = 0.9

DATA = load("a9a")
WHOLE = LogisticRegression(DATA.X, DATA.y, l2=L2)
BEST = optimum(WHOLE).value
PARTS = [LogisticRegression(DATA.X[i::CLIENTS], DATA.y[i::CLIENTS], l2=L2) for i in range(CLIENTS)]


class Part:
    """The rows of one client."""

    def __init__(self, F: LogisticRegression) -> None:
        self.F, self.n_examples = F, F.n_samples

    def gradient(self, w, step):
        rows = step.rows(self.F.n_samples, BATCH)
        X = self.F.X[rows]
        s = self.F.derivative(X @ w[0], self.F.y[rows])
        return [X.T @ s / BATCH + L2 * w[0]]

    def evaluate(self, w):
        return {}


def part_of(context: Context) -> LogisticRegression:
    return PARTS[int(context.node_config["partition-id"])]


def loss(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the loss on all data, minus its optimum."""
    with np.errstate(over="ignore", invalid="ignore"):
        return MetricRecord({"gap": float(WHOLE.value(arrays["0"].numpy()) - BEST)})


def ours(algorithm: str, eta: float, seed: int) -> tuple[list[float], list[float]]:
    """Run one of our strategies; return gaps and megabytes, from round 0 on."""
    strategy = LocalStrategy(
        algorithm, eta=eta, mu=L2, local_steps=K, seed=seed, min_nodes=CLIENTS, evaluate_every=0
    )
    grid = InProcessGrid(client_app(part_of, Part), CLIENTS)
    result = strategy.start(
        grid, ArrayRecord([np.zeros(WHOLE.dim)]), num_rounds=ROUNDS, evaluate_fn=loss
    )
    sizes = [row.bytes_down + row.bytes_up for row in result.history.rounds]
    gaps = [gap for _, gap in result.history.metric("server/gap")]
    return gaps, list(np.cumsum(sizes) / 1e6)


class CountingGrid(InProcessGrid):
    """Count the bytes of every message, as our history does."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.bytes = 0

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        self.bytes += count_bytes([message] if reply is None else [message, reply])
        return reply


def flowers_fedavgm(eta: float, seed: int) -> tuple[list[float], list[float]]:
    """Run Flower's FedAvgM with the same local steps."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        server_round = int(message.content["config"]["server-round"])
        task = Task(
            algorithm=FEDAVG, hp=FEDAVG.couple(eta=eta, mu=L2, K=K), round=server_round,
            first_step=(server_round - 1) * K, local_steps=K, seed=seed,
        )  # fmt: skip
        model, worker = Part(part_of(context)), int(context.node_config["partition-id"])
        arrays = message.content["arrays"].to_numpy_ndarrays()
        (after,) = local_steps(model.gradient, [arrays], task, worker=worker)
        metrics = MetricRecord({"num-examples": 1})  # uniform weights, as ours
        return Message(
            RecordDict({"arrays": ArrayRecord(after), "metrics": metrics}), reply_to=message
        )

    grid = CountingGrid(app, CLIENTS)
    sizes: list[float] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        sizes.append(grid.bytes / 1e6)
        return loss(server_round, arrays)

    strategy = FedAvgM(
        fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS,
        server_learning_rate=1.0, server_momentum=MOMENTUM,
    )  # fmt: skip
    result = strategy.start(
        grid, ArrayRecord([np.zeros(WHOLE.dim)]), num_rounds=ROUNDS, evaluate_fn=evaluate
    )
    gaps = [float(record["gap"]) for record in result.evaluate_metrics_serverapp.values()]
    return gaps, sizes


METHODS = {
    "FedAc-I": (partial(ours, "fedac-i"), style("fedac-i")),
    "FedAvg": (partial(ours, "fedavg"), style("fedavg")),
    f"FedAvgM, momentum {MOMENTUM:g}": (flowers_fedavgm, OTHER),
}


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for name, (run, look) in METHODS.items():
        gaps, megabytes = {}, []
        for eta in ETAS:
            found, sizes = zip(*(run(eta, seed) for seed in SEEDS), strict=True)
            gaps[eta], megabytes = np.array(found), sizes[0]
        # The mean of the last rounds, so that luck in the last one does not decide.
        scores = {eta: np.median(gaps[eta][:, -10:].mean(axis=1)) for eta in ETAS}
        best = min(ETAS, key=lambda eta: np.nan_to_num(scores[eta], nan=np.inf))
        print(name, {eta: f"{score:.1e}" for eta, score in scores.items()}, "best", best)
        for target in TARGETS:
            firsts = sorted(
                next((i for i, g in enumerate(curve) if g < target), np.inf) for curve in gaps[best]
            )
            median = firsts[len(SEEDS) // 2]
            size = megabytes[median] if median < np.inf else np.inf
            print(f"  to {target:g}: rounds {firsts}, {size:.2f} MB at the median", flush=True)
        for ax, x in zip(axes, (range(ROUNDS + 1), megabytes), strict=True):
            ax.fill_between(
                x,
                gaps[best].min(axis=0),
                gaps[best].max(axis=0),
                color=look.colour,
                alpha=0.15,
                lw=0,
            )
            ax.plot(
                x, np.median(gaps[best], axis=0), color=look.colour, marker=look.marker,
                markevery=10, ms=5, lw=1.4, label=f"{name}, eta={best:g}",
            )  # fmt: skip
    axes[0].set(yscale="log", xlabel="communication rounds", ylabel="loss above the optimum")
    axes[1].set(xlabel="megabytes, all clients, both directions")
    for ax in axes:
        ax.grid(True, color="0.9")
        ax.set_axisbelow(True)
    axes[0].legend(frameon=False, fontsize=9)
    figure.suptitle(
        f"a9a split over {CLIENTS} clients, {K} local steps of {BATCH} rows per round, l2={L2:g}",
        fontsize=11,
    )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, dpi=110)
    print(OUT)


if __name__ == "__main__":
    main()
