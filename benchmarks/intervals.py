# SPDX-License-Identifier: Apache-2.0
"""Does a comparison keep its word? Winner and runner-up on 20 further seeds, on three data sets.

The comparison prints who won, a prediction interval for its seconds, and a confidence interval for
how many times as long the runner-up takes. Both run again on 20 seeds that were used for nothing
before; all of it four times, with other seeds: python benchmarks/intervals.py
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from benchmark_page import METHODS, digits
from scipy.stats import gmean
from sklearn.datasets import load_breast_cancer

from fedac import Dataset, LogisticRegression, compare, load, simulate, split

FURTHER = range(1001, 1021)
SEEDS = (1, 101, 201, 301)
LINK = "wan"


class Case(NamedTuple):
    """What is compared."""

    data: Dataset
    l2: float
    target: float
    by: str
    participation: float
    K: tuple[int, ...] = (8, 32)
    rounds: int = 200


def main() -> None:
    """Print what each comparison said, and what the further seeds say."""
    kept: list[bool] = []
    for case in (
        Case(digits(), 1e-3, 5e-3, "dirichlet(0.3)", 1.0),
        Case(breast_cancer(), 1e-2, 1e-3, "dirichlet(0.5)", 0.5),
        Case(load("a9a"), 1e-3, 1e-2, "label", 1.0),
    ):
        print(f"{case.data.name}, {case.by}, participation {case.participation:g}, "
              f"target {case.target:g}", flush=True)  # fmt: skip
        for seed in SEEDS:
            kept += check(case, seed)
    print(f"{sum(kept)} of {len(kept)} promises kept")


def check(case: Case, seed: int) -> list[bool]:
    """Compare, and return whether the winner's interval, the ratio's and their order held."""
    clients = 20 if case.data.name == "breast-cancer" else 100
    rows = compare(
        case.data, METHODS, K=case.K, rounds=case.rounds, clients=clients, split=case.by,
        participation=case.participation, link=LINK, target=case.target, l2=case.l2, seed=seed,
    ).frame  # fmt: skip
    first = rows.iloc[0]
    second = rows[rows["method"] != first["method"]].iloc[0]
    mine, theirs = (seconds(case, clients, row) for row in (first, second))
    found, ratio = gmean(mine), gmean(theirs) / gmean(mine)
    held = [
        first["seconds_low"] <= found <= first["seconds_high"],
        second["ratio_low"] <= ratio <= second["ratio_high"],
        ratio >= 1 or second["level"],
    ]
    print(f"  {first['method']}, K={first['K']}: {first['seconds']:.3g} s "
          f"({first['seconds_low']:.3g} to {first['seconds_high']:.3g}), further seeds "
          f"{found:.3g}, {'inside' if held[0] else 'OUTSIDE'}; "
          f"{second['method']}, K={second['K']}: {second['ratio']:.3g} times as long "
          f"({second['ratio_low']:.3g} to {second['ratio_high']:.3g}"
          f"{', level' if second['level'] else ''}), further seeds {ratio:.3g}, "
          f"{'inside' if held[1] else 'OUTSIDE'}, order {'kept' if held[2] else 'REVERSED'}",
          flush=True)  # fmt: skip
    return [bool(one) for one in held]


def seconds(case: Case, clients: int, row: object) -> list[float]:
    """Return the seconds to the target with the settings of a row, by further seed."""
    method, K, eta, mu = (row[name] for name in ("algorithm", "K", "eta", "mu"))  # type: ignore[index]
    F = LogisticRegression(case.data.X, case.data.y, l2=case.l2)
    owners = split(case.data, clients=clients, by=case.by)
    found = []
    for seed in FURTHER:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # step sizes beyond 1/L
            result = simulate(
                F, method, clients=owners, participation=case.participation, K=int(K),
                T=2 * case.rounds * int(K), eta=eta, seed=seed, record_every=int(K),
                mu=None if np.isnan(mu) else mu,
            )  # fmt: skip
        (run,) = result.runs
        reached = np.flatnonzero(result.suboptimality(run) <= case.target)
        found.append(result.seconds_of(run, LINK)[reached[0]] if reached.size else np.inf)
    return found


def breast_cancer() -> Dataset:
    """Return scikit-learn's breast cancer data, standardized."""
    data = load_breast_cancer()
    X = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    return Dataset("breast-cancer", sp.csr_array(X), np.where(data.target == 1, 1.0, -1.0))


if __name__ == "__main__":
    main()
