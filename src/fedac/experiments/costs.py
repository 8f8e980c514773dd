"""What stored runs cost: rounds, megabytes of a client, and seconds on a link."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.algorithms import split_names
from fedac.errors import InputError
from fedac.experiments.summary import records
from fedac.federation.compression import FLOAT32, bytes_of
from fedac.federation.federation import FULL, taking_part
from fedac.federation.link import Link
from fedac.plugins import find_algorithm
from fedac.validate import Array

if TYPE_CHECKING:
    import pandas as pd

EXPENSES = ["rounds", "megabytes", "link_seconds"]


def with_expenses(runs: pd.DataFrame, link: Link, at: str = "T") -> pd.DataFrame:
    """Add the columns `EXPENSES` to runs of a `Store.frame`: what they cost until the step `at`.

    ``megabytes`` are what a client sends and receives that takes part in all these rounds. A run
    may have many rows, one for each of its records.
    """
    rounds = np.ceil(runs[at] / runs["K"]).astype(int)
    each = {run.key: run for run in records(runs.drop_duplicates("key"))}
    traffic = runs["key"].map({key: sum(traffic_of(run)) for key, run in each.items()})
    elapsed = {key: elapsed_of(run, link) for key, run in each.items()}
    seconds = [elapsed[key][r] for key, r in zip(runs["key"], rounds, strict=True)]
    return runs.assign(rounds=rounds, megabytes=rounds * traffic / 1e6, link_seconds=seconds)


def elapsed_of(run: Any, link: Link) -> Array:
    """Return the seconds that have passed after each round of a run, which has its columns."""
    up, down = traffic_of(run)
    rounds = math.ceil(run.T / run.K)
    return link.elapsed(
        up=up, down=down, gaps=(int(run.K),) * rounds, rows=batch_rows_of(run),
        minibatch=is_minibatch(run.algorithm), seed=int(run.seed), M=int(run.M),
        taking_part=taking_part(run.participation, run.M) or int(run.M),
    )  # fmt: skip


def is_minibatch(algorithm: str) -> bool:
    """Say whether a stored run takes one step per round; records of others are not at hand."""
    try:
        return find_algorithm(split_names(algorithm)[0].partition(" ")[0]).minibatch
    except InputError:
        return False


def batch_rows_of(run: Any) -> int:
    """Return the rows of a local step's batch in a stored run.

    The store has no sizes of clients: full batches count as if all held the same number of rows.
    """
    if run.batch != FULL:
        return int(run.batch)
    return math.ceil(run.n_samples / run.M) if run.split else int(run.n_samples)


def traffic_of(run: Any) -> tuple[int, int]:
    """Return the bytes that a client sends and receives in a round of a stored run."""
    # Stored are the megabytes sent in all rounds, on average over all clients.
    share = (taking_part(run.participation, run.M) or run.M) / run.M
    up = round(run.megabytes_per_worker * 1e6 * run.K / run.T / share)
    vectors = round(up / bytes_of(run.wire, int(run.n_features)))
    return up, vectors * bytes_of(FLOAT32, int(run.n_features))
