"""Do the intervals of a comparison hold? Winners of the benchmark on five further seeds.

In each case of benchmarks/benchmark_page.py whose target is reached, the method with the fewest
seconds and the one with the fewest rounds run on five seeds that were used for nothing before.
Their geometric mean should lie in the interval that the comparison printed, in 90% of the cases:
python benchmarks/intervals.py FOLDER, with the folder of the benchmark.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from benchmark_page import KINDS, Case, compare_all, digits
from scipy.stats import gmean

from fedac import Dataset, LogisticRegression, load, simulate, split
from fedac.experiments.comparison.rows import Row

FURTHER = range(101, 106)


def main(folder: Path) -> None:
    """Print a line per winner, and how many kept their promise."""
    inside = total = 0
    for (case, kind), comparison in compare_all(folder):
        reached = [row for row in comparison.rows if row.reached]
        if not reached:
            continue
        data = digits() if case.dataset == "digits" else load(case.dataset)
        fewest = min(reached, key=lambda row: row.rounds.middle)
        for row in dict.fromkeys([reached[0], fewest]):
            found = rounds_needed(data, case, kind, row)
            kept = row.rounds.low <= found <= row.rounds.high
            inside, total = inside + kept, total + 1
            interval = f"{row.rounds.middle:.1f} ({row.rounds.low:.1f} to {row.rounds.high:.1f})"
            print(f"  {row.method}, K={row.K}: {interval}, further seeds {found:.1f}, "
                  f"{'inside' if kept else 'OUTSIDE'}", flush=True)  # fmt: skip
    print(f"{inside} of {total} inside")


def rounds_needed(data: Dataset, case: Case, kind: str, row: Row) -> float:
    """Return the geometric mean of the rounds to the target over the further seeds."""
    by, share = KINDS[kind]
    F = LogisticRegression(data.X, data.y, l2=case.l2)
    clients = split(data, clients=100, by=by)
    rounds = []
    for seed in FURTHER:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # step sizes beyond 1/L
            result = simulate(
                F, row.algorithm, clients=clients, participation=share, K=row.K,
                T=2 * case.rounds * row.K, eta=row.eta or 0.0, seed=seed, record_every=row.K,
            )  # fmt: skip
        (run,) = result.runs
        reached = np.flatnonzero(result.suboptimality(run) <= case.target)
        rounds.append(reached[0] if reached.size else np.inf)
    return float(gmean(rounds))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
