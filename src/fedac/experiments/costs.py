"""What stored runs cost: rounds, megabytes of a client, and seconds on a link."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.experiments.summary import records
from fedac.federation.costs import Costs, run_costs
from fedac.federation.federation import taking_part
from fedac.federation.link import Link
from fedac.federation.spec import FULL

if TYPE_CHECKING:
    import pandas as pd

COSTS = ["rounds", "megabytes", "link_seconds"]


def with_costs(runs: pd.DataFrame, link: Link, at: str = "T") -> pd.DataFrame:
    """Add the columns `COSTS` to runs of a `Store.frame`: what they cost until the step `at`.

    ``megabytes`` are sent and received by a client that is present in every round. A run may have
    many rows, one for each of its records.
    """
    rounds = np.ceil(runs[at] / runs["K"]).astype(int)
    each = {run.key: costs_of(run, link) for run in records(runs.drop_duplicates("key"))}
    found = [(each[key], r) for key, r in zip(runs["key"], rounds, strict=True)]
    return runs.assign(
        rounds=rounds,
        megabytes=[costs.megabytes[r] for costs, r in found],
        link_seconds=[costs.seconds[r] for costs, r in found],
    )


def costs_of(run: Any, link: Link) -> Costs:
    """Return the costs of a stored run.

    The store has no sizes of clients: full batches count as if all held the same number of rows.
    """
    if run.batch == FULL:
        rows = math.ceil(run.n_samples / run.M) if run.split else int(run.n_samples)
    else:
        rows = int(run.batch)
    return run_costs(
        bytes_up=int(run.bytes_up), bytes_down=int(run.bytes_down), link=link,
        gaps=(int(run.K),) * math.ceil(run.T / run.K), rows=rows, minibatch=bool(run.minibatch),
        seed=int(run.seed), M=int(run.M),
        taking_part=taking_part(run.participation, run.M) or int(run.M),
    )  # fmt: skip
