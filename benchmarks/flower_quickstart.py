# SPDX-License-Identifier: Apache-2.0
"""Flower's own strategies and ours on the quickstart app: rounds and megabytes to 95%.

    python benchmarks/flower_quickstart.py            # tune and run: docs/flower-quickstart.csv
    python benchmarks/flower_quickstart.py --table    # its tables in the page, and its figure

Every method trains the model of examples/flower_quickstart, an epoch a round on every client, and
counts clients by their examples. Flower's strategies run that app's client, ours the client of
examples/flower_quickstart_fedac. Each method has twelve settings; for each kind of split it keeps
the one that reaches 95% of the validation images in the fewest rounds, over three seeds. The
report uses five other seeds and 95% of the test images. The seed sets the model, the split and the
batches.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import logging
import math
import random
import re
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Strategy
from matplotlib.figure import Figure

from fedac.flower import InProcessGrid, LocalStrategy, QuorumError
from fedac.flower._arrays import count_bytes
from fedac.plotting import styles

ROOT = Path(__file__).parents[1]
BEFORE = ROOT / "examples" / "flower_quickstart"
AFTER = ROOT / "examples" / "flower_quickstart_fedac"
PAGE = ROOT / "docs" / "flower-quickstart.md"
RUNS = PAGE.with_suffix(".csv")
FIGURE = ROOT / "docs" / "images" / "flower-quickstart.png"

sys.path.insert(0, str(BEFORE))
from quickstart import client_app as before  # noqa: E402
from quickstart import task  # noqa: E402

spec = importlib.util.spec_from_file_location("after", AFTER / "quickstart" / "client_app.py")
after = importlib.util.module_from_spec(spec)
spec.loader.exec_module(after)  # its package has the name of the other one

CONFIG = tomllib.loads((BEFORE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
CLIENTS = 10
STEPS = 6  # what FedAc's coefficients are for: the mean number of batches of a client, rounded
TARGET, MOST_ROUNDS = 0.95, 40
SPLITS = {"even": 100.0, "uneven": 0.3, "very uneven": 0.1}
TUNING_SEEDS, SEEDS = (101, 102, 103), (11, 12, 13, 14, 15)


class Method(NamedTuple):
    """A strategy for a setting and a seed, the settings to choose from, and its client."""

    make: Callable[[dict[str, float], int], Strategy]
    settings: list[dict[str, float]]
    client: ClientApp


def flowers(strategy: Callable[..., Strategy], setting: dict[str, float], seed: int) -> Strategy:
    """Return one of Flower's strategies; lr goes to the clients."""
    own = {name: value for name, value in setting.items() if name != "lr"}
    return strategy(
        fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, **own
    )


def ours(algorithm: str, setting: dict[str, float], seed: int) -> Strategy:
    """Return one of our strategies; {gamma} in the name is the step of its server."""
    return LocalStrategy(
        algorithm.format(**setting),
        eta=setting["lr"],
        mu=setting.get("mu", 1.0),
        local_steps=STEPS,
        seed=seed,
        min_nodes=CLIENTS,
        weighting="examples",
        evaluate_every=0,
    )


class Proximal(torch.optim.SGD):
    """SGD on the loss plus mu/2 times the squared distance from where the round began."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, mu: float) -> None:
        params = list(params)
        super().__init__(params, lr=lr)
        self.mu, self.starts = mu, [(p, p.detach().clone()) for p in params]

    @torch.no_grad()
    def step(self) -> None:
        for p, start in self.starts:
            p.grad.add_(p - start, alpha=self.mu)
        super().step()


proximal = ClientApp()


@proximal.train()
def train_proximal(msg: Message, context: Context) -> Message:
    """Train with FedProx's term, which Flower leaves to the client."""
    loader, _ = before.images_of(context)
    model, config = task.Net(), msg.content["config"]
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimizer = Proximal(model.parameters(), config["lr"], config["proximal-mu"])
    task.train(model, loader, context.run_config["local-epochs"], optimizer)
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(records), reply_to=msg)


def choices(**values: tuple[float, ...]) -> list[dict[str, float]]:
    """Return all combinations of values, of which there must be twelve."""
    found = [dict(zip(values, some, strict=True)) for some in itertools.product(*values.values())]
    assert len(found) == 12
    return found


# The likely ones first: a setting that is slower than the best one so far need not finish.
RATES = (0.5, 0.6, 0.4, 0.8, 0.3, 1.0, 0.25, 0.2, 1.3, 0.15, 0.1, 1.6)
FOUR, MU = (0.4, 0.2, 0.8, 0.1), (0.01, 0.03, 0.003)
METHODS = {
    "FedAvg": Method(partial(flowers, FedAvg), choices(lr=RATES), before.app),
    "FedAvgM": Method(
        partial(flowers, FedAvgM),
        choices(lr=(0.4, 0.2, 0.8), server_momentum=(0.5, 0.7, 0.3, 0.9)),
        before.app,
    ),
    "FedAdam": Method(
        partial(flowers, FedAdam), choices(lr=FOUR, eta=(0.1, 0.3, 0.03)), before.app
    ),
    "FedProx": Method(
        partial(flowers, FedProx), choices(lr=FOUR, proximal_mu=(0.1, 0.01, 1.0)), proximal
    ),
    "fedac-i": Method(partial(ours, "fedac-i"), choices(lr=FOUR, mu=MU), after.app),
    "fedac-i+local": Method(partial(ours, "fedac-i+local"), choices(lr=FOUR, mu=MU), after.app),
    "fedac-i+adam": Method(
        partial(ours, "fedac-i+adam({gamma})"),
        choices(lr=(0.2, 0.1, 0.4), mu=(0.3, 0.1), gamma=(0.1, 0.03)),
        after.app,
    ),
    "scaffold": Method(partial(ours, "scaffold"), choices(lr=RATES), after.app),
}
FLOWERS = ("FedAvg", "FedAvgM", "FedAdam", "FedProx")


class CountingGrid(InProcessGrid):
    """Count the bytes of all arrays, both ways."""

    bytes = 0

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        self.bytes += count_bytes([message] if reply is None else [message, reply])
        return reply


class Outcome(NamedTuple):
    """The first round that reached the target and the megabytes until then; infinite if none."""

    rounds: float
    megabytes: float
    loss: float


class Reached(Exception):  # noqa: N818, as StopIteration
    """The target is reached, and the run need not continue."""


def run(
    method: Method, setting: dict[str, float], split: str, seed: int, images: str, most: int
) -> Outcome:
    """Run until the target is reached on some images, or for `most` rounds."""
    config = CONFIG | {"dirichlet": SPLITS[split], "seed": seed}
    grid = CountingGrid(method.client, CLIENTS, run_config=config)
    random.seed(seed)  # Flower's strategies shuffle the nodes with it
    torch.manual_seed(seed)
    model = task.Net()
    loss = math.inf

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        nonlocal loss
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = task.test(model, task.load_images()[images])
        if accuracy > TARGET - 1e-6:  # it is a float32
            raise Reached(server_round)
        return MetricRecord({"accuracy": accuracy})

    try:
        method.make(setting, seed).start(
            grid=grid,
            initial_arrays=ArrayRecord(model.state_dict()),
            train_config=ConfigRecord({"lr": setting["lr"]}),
            num_rounds=most,
            evaluate_fn=evaluate,
        )
    except Reached as reached:
        return Outcome(reached.args[0], grid.bytes / 1e6, loss)
    except QuorumError:  # it diverged
        loss = math.inf
    return Outcome(math.inf, math.inf, loss if math.isfinite(loss) else math.inf)


def tune(method: Method, split: str) -> dict[str, float]:
    """Return the setting with the fewest rounds on the validation images, then the lowest loss.

    Both are sums over the tuning seeds; a run that does not reach the target counts as one round
    more than the most. A setting that is behind the best one so far need not finish.
    """
    best, chosen = (math.inf, math.inf), method.settings[0]
    for setting in method.settings:
        rounds, loss = 0.0, 0.0
        for seed in TUNING_SEEDS:
            most = int(min(MOST_ROUNDS, best[0] - rounds))
            found = run(method, setting, split, seed, "validation", most)
            rounds += min(found.rounds, most + 1)
            loss += found.loss
            if rounds > best[0]:
                break
        if (rounds, loss) < best:
            best, chosen = (rounds, loss), setting
    return chosen


def measure() -> None:
    """Tune every method for every split, run it with the other seeds, and write the runs."""
    rows = []
    for split, (name, method) in itertools.product(SPLITS, METHODS.items()):
        begun = time.perf_counter()
        setting = tune(method, split)
        words = " ".join(f"{key}={value:g}" for key, value in setting.items())
        for seed in SEEDS:
            found = run(method, setting, split, seed, "test", MOST_ROUNDS)
            rows.append([split, name, words, seed, found.rounds, round(found.megabytes, 3)])
        rounds, seconds = [row[4] for row in rows[-len(SEEDS) :]], time.perf_counter() - begun
        print(f"{split}: {name}: {words}: {rounds} rounds, {seconds:.0f} s", flush=True)
        heads = ["split", "method", "setting", "seed", "rounds", "megabytes"]
        pd.DataFrame(rows, columns=heads).to_csv(RUNS, index=False)


def median_and_range(values: pd.Series, form: str) -> str:
    """Return the median and the range in words; what was not reached counts as more than all."""
    low, middle, high = values.min(), values.median(), values.max()
    ends = [format(x, form) if math.isfinite(x) else "never" for x in (low, middle, high)]
    return ends[1] if low == high else f"{ends[1]} ({ends[0]} to {ends[2]})"


def table(runs: pd.DataFrame) -> str:
    """Return rounds and megabytes of every method, in the order of the methods."""
    heads = ["method", *(f"{split}: {what}" for split in SPLITS for what in ("rounds", "MB"))]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in METHODS:
        cells = [f"Flower's {name}" if name in FLOWERS else f"`{name}`"]
        for split in SPLITS:
            here = runs[(runs["method"] == name) & (runs["split"] == split)]
            cells.append(median_and_range(here["rounds"], ".0f"))
            cells.append(median_and_range(here["megabytes"], ".1f"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def settings(runs: pd.DataFrame) -> str:
    """Return what every method was tuned to."""
    chosen = runs.groupby(["method", "split"])["setting"].first()
    lines = [f"| method | {' | '.join(SPLITS)} |", "|---" * (1 + len(SPLITS)) + "|"]
    for name in METHODS:
        lines.append(f"| {' | '.join([name, *(chosen[name, split] for split in SPLITS)])} |")
    return "\n".join(lines)


def write_page(runs: pd.DataFrame) -> None:
    """Replace the tables between the markers of the page."""
    text = PAGE.read_text()
    for name, content in {"table": table(runs), "settings": settings(runs)}.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        head, tail = re.split(f"{begin}.*?{end}", text, flags=re.DOTALL)
        text = f"{head}{begin}\n{content}\n{end}{tail}"
    PAGE.write_text(text)


def draw(runs: pd.DataFrame) -> None:
    """Draw every run, and the medians: a panel for each split and cost, a row for each method."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    panels = figure.subplots(2, len(SPLITS), sharex="row", sharey=True)
    looks = dict(zip(METHODS, styles([name.lower() for name in METHODS]), strict=True))
    words = {"rounds": "rounds", "megabytes": "megabytes, all clients, both ways"}
    for (row, (cost, label)), (column, split) in itertools.product(
        enumerate(words.items()), enumerate(SPLITS)
    ):
        ax = panels[row, column]
        for y, (name, look) in enumerate(looks.items()):
            found = runs[(runs["method"] == name) & (runs["split"] == split)][cost]
            reached = found[np.isfinite(found)]
            ax.plot(reached, [y] * len(reached), color=look.colour, lw=1, alpha=0.5, zorder=2)
            ax.scatter(reached, [y] * len(reached), s=12, color=look.colour, alpha=0.5, lw=0)
            if math.isfinite(found.median()):
                ax.scatter(found.median(), y, s=64, color=look.colour, marker=look.marker, zorder=3)
        ax.set(xlabel=label, yticks=range(len(METHODS)), yticklabels=METHODS)
        ax.grid(True, axis="x", color="0.9")
        ax.axhline(len(FLOWERS) - 0.5, color="0.7", lw=0.8)
        ax.spines[["top", "right"]].set_visible(False)
        if row == 0:
            ax.set_title(f"{split}: Dirichlet {SPLITS[split]:g}", fontsize=10)
    for ax in panels[:, 0]:
        ax.set_xlim(left=0)
    panels[0, 0].invert_yaxis()
    figure.suptitle(f"Digits, {CLIENTS} clients: to {TARGET:.0%} of the test images", fontsize=11)
    figure.savefig(FIGURE, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only read the runs")
    if not parser.parse_args().table:
        torch.set_num_threads(1)
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        measure()
    runs = pd.read_csv(RUNS)
    write_page(runs)
    draw(runs)


if __name__ == "__main__":
    main()
