# SPDX-License-Identifier: Apache-2.0
"""Find the settings of examples/torch_gpt.py with the same tuning budget for every method.

    python benchmarks/gpt_tuning.py --folder tries

A search begins at START, our guess (DDP and DiLoCo: after a look at six settings each, with larger
batches), and tries the next value of one number at a time, first in the direction that has just
helped, and closer when nothing helps, until the tries are used up. The loss is taken after the last
step on the validation files, with seed 0; the example uses other files and other seeds. The folder
keeps all tries. Takes about half an hour on two idle cores.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from fedac.torch import NonFiniteStateError

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from torch_gpt import Run, Size, read_texts, start, train_once

VALUES = {
    "beta2": [0.9, 0.95, 0.99, 0.999],
    "momentum": [0.5, 0.8, 0.9, 0.95, 0.98],
    "outer": [0.0, 0.3, 0.5, 0.7, 0.8, 0.9],
    "mu": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0],
    "mu_x": [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995],
    "mu_y": [0.5, 0.8, 0.9, 0.95],
}
START = {
    "ddp": {"lr": 0.008, "beta2": 0.99},
    "diloco": {"lr": 0.004, "outer": 0.5},
    "fedac": {"lr": 0.256, "mu": 0.03},
    "post-local": {"lr": 0.128, "momentum": 0.9},
    "fedac-local": {"lr": 0.256, "mu": 0.03, "outer": 0.5},
    "gpa": {"lr": 1.024, "mu_x": 0.95, "mu_y": 0.9},
    "momentum": {"lr": 0.128, "momentum": 0.9},
}
Setting = dict[str, float]


def climb(here: Setting, tries: int, loss_of: Callable[[Setting], float]) -> tuple[Setting, float]:
    """Return the best of `tries` settings, and its loss.

    >>> climb({"lr": 0.004}, 8, lambda setting: abs(setting["lr"] - 0.03))
    ({'lr': 0.032}, 0.0020000000000000018)
    """
    known = {tuple(here.values()): (best := loss_of(here))}
    moves = [(key, by) for key in here for by in (1, -1)]
    waiting, factor = list(moves), 2.0
    while len(known) < tries:
        if not waiting:  # look closer
            waiting, factor = list(moves), math.sqrt(factor)
        key, by = waiting.pop(0)
        there = {**here, key: beside(key, here[key], by, factor)}
        if any(np.allclose(list(there.values()), other, rtol=0.0045) for other in known):
            continue
        known[tuple(there.values())] = loss = loss_of(there)
        if loss < best:
            here, best = there, loss
            waiting = [(key, by), *(move for move in moves if move != (key, by))]
    return here, best


def beside(key: str, value: float, by: int, factor: float) -> float:
    """Return the next value; lr changes by a factor, and other numbers have an end."""
    if key == "lr":
        return float(f"{value * factor**by:.3g}")
    place = VALUES[key].index(value) + by
    return VALUES[key][min(max(place, 0), len(VALUES[key]) - 1)]


def tune(folder: str, methods: list[str], tries: int, size: list[int]) -> None:
    """Search, as one of four processes: all of them know the losses, so all go the same way."""
    torch.set_num_threads(1)
    texts = read_texts(Size(*size).context)
    for method in methods:

        def loss_of(setting: Setting, method: str = method) -> float:
            numbers = " ".join(f"{key}={value:g}" for key, value in setting.items())
            run = Run(f"{method} {numbers}", method, setting, seed=0, use="validation")
            try:
                loss = float(train_once(run, Size(*size), texts, Path(folder))["losses"][-1][1])
            except NonFiniteStateError:  # in all processes
                loss = math.inf
            if dist.get_rank() == 0:
                print(f"{loss:.4f}  {run.name}", flush=True)
            return loss if math.isfinite(loss) else math.inf

        best, loss = climb(START[method], tries, loss_of)
        if dist.get_rank() == 0:
            print(f'best, {loss:.4f}: "{method}": {best},', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=list(START), choices=list(START))
    parser.add_argument("--tries", type=int, default=8)
    parser.add_argument("--steps", type=int, default=Size().steps)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    size = Size(steps=options.steps, windows=128)
    start(tune, str(options.folder), options.methods, options.tries, size)


if __name__ == "__main__":
    main()
