"""Tell results apart by what they are: data by their content, algorithms by what they compute.

Names are not enough. Two files may both be called ``train``, a file of the user's own may be
called ``a9a``, and an algorithm may change under its name.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import fingerprint
from fedac.data import Dataset
from fedac.federation.compression import FLOAT32
from fedac.objectives import LeastSquares, Objective

if TYPE_CHECKING:
    import pandas as pd

# The algorithms of schema 1, whose keys had no fingerprint. Never edit a line.
SCHEMA_1 = {
    "fedac-i": "16689dda8adb3293",
    "fedac-ii": "d752af7bacfc6082",
    "fedac-vanilla": "046de6b8dbc410a0",
    "fedavg": "11b97261996c8ac0",
    "fedavg-weighted": "c9ae6193671edd8b",
    "mb-sgd": "a26a1845dbb6576b",
    "mb-ac-sgd": "0e5c90f6879c1230",
}
# The paper's a9a: the hash of its rows, and those of its objectives, for stores of schema 1.
A9A_ROWS = "bb924b51cf55f0ae4f9b0ad2e7c31b239997d6d21ba09a232778848a19fc2cce"
A9A = {
    1e-2: "781a5f51cd736b9931abc1b21710dcac2be19d3bde4e17fbf1ec25e8903d8011",
    1e-3: "80d181fd5697916d054b8960a5d9da30496783128fdd98bf7a183d80f39c0e38",
    1e-4: "4640626259e5a711c1a569bb04a48f2a810870da45889a8850570db40aee26e3",
}


@lru_cache(maxsize=4096)  # a comparison asks for every run
def key_fingerprint(algorithm: Algorithm) -> str:
    """Return what identifies an algorithm in keys besides its name; empty if schema 1 had it."""
    found = fingerprint(algorithm)
    return "" if SCHEMA_1.get(algorithm.name) == found else found


def objective_hash(objective: Objective, *, own: bool) -> str:
    """Return a hash of an objective; for a user's own class it also covers what it computes."""
    if not own:
        return objective.fingerprint()
    gradient = objective.gradient(np.linspace(-1.0, 1.0, objective.dim))
    values = " ".join(f"{value:.9g}" for value in gradient)
    return hashlib.sha256(f"{objective.fingerprint()} {values}".encode()).hexdigest()


def rows_hash(data: Dataset) -> str:
    """Return a hash of the rows and labels alone."""
    return LeastSquares(data.X, data.y).fingerprint()  # l2 = 0, so it depends on nothing else


def with_unique_names(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with a `dataset`, an `algorithm` and a `split` that mean one thing each.

    Where two of them share a name, a part of their hash is added. So are a loss other than the
    logistic one, an intercept, and a mu other than l2. Adds a column `federation`, the name of
    all that concerns the clients.
    """
    named = runs.assign(dataset=_dataset_names(runs), algorithm=_algorithm_names(runs))
    named = named.assign(split=_split_names(named))
    return named.assign(federation=[federation_name(run) for run in named.itertuples()])


def federation_name(run: Any) -> str:
    """Name what tells a federation from workers that draw single rows from all data.

    `run` is a `Config` or has its fields.

    Examples
    --------
    >>> from types import SimpleNamespace as Run
    >>> usual = {"split_seed": 0, "weighting": "examples", "decay": "", "wire": "float32"}
    >>> federation_name(Run(split="label", participation=0.1, batch=4, **usual))
    'split label, participation 0.1, batch 4'
    >>> federation_name(Run(split="", participation=1.0, batch=1, **usual))
    ''
    """
    parts = {
        "split": run.split,
        "split seed": run.split_seed or "",
        "participation": "" if run.participation == 1 else f"{run.participation:g}",
        "batch": "" if str(run.batch) == "1" else run.batch,
        "weighting": "" if run.weighting == "examples" else run.weighting,
        "decay": run.decay,
        "wire": "" if run.wire == FLOAT32 else run.wire,
    }
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)


def _dataset_names(runs: pd.DataFrame) -> list[str]:
    columns = ["dataset", "data_hash", "rows_hash", "l2", "objective", "intercept"]
    problems: list[Any] = list(runs[columns].drop_duplicates().itertuples())
    # Schema 1 stored no hash of the rows, but equal objectives have equal rows.
    rows = {p.data_hash: p.rows_hash for p in problems if p.rows_hash}
    # Two data sets share a name if their rows differ, or the objectives with the same options do.
    same_name, same_options = defaultdict(set), defaultdict(set)
    for p in problems:
        same_name[p.dataset].add(rows.get(p.data_hash))
        same_options[p.dataset, p.l2, p.objective, p.intercept].add(p.data_hash)
    shared = {name for name, hashes in same_name.items() if len(hashes - {None}) > 1}
    shared |= {name for (name, *_), hashes in same_options.items() if len(hashes) > 1}
    names = {}
    for p in problems:
        name, found = p.dataset, rows.get(p.data_hash)
        if name == "a9a":  # the name of the paper's data set is its own
            other = found != A9A_ROWS if found else p.data_hash != A9A.get(p.l2, p.data_hash)
        else:
            other = name in shared
        name += f" ({(found or p.data_hash)[:6]})" if other else ""
        name += f", {p.objective}" if p.objective != "logistic" else ""
        names[p.dataset, p.data_hash] = name + (", intercept" if p.intercept else "")
    return [names[pair] for pair in zip(runs["dataset"], runs["data_hash"], strict=True)]


def _split_names(runs: pd.DataFrame) -> list[str]:
    versions = runs.groupby(["dataset", "M", "split", "split_seed"])["split_hash"]
    several = versions.transform("nunique") > 1
    listed: list[Any] = list(zip(runs["split"], runs["split_hash"], several, strict=True))
    return [f"{name} ({found[:6]})" if shared else name for name, found, shared in listed]


def _algorithm_names(runs: pd.DataFrame) -> list[str]:
    versions = runs.groupby("algorithm")["fingerprint"].nunique()
    listed: list[Any] = list(runs[["algorithm", "fingerprint", "mu", "l2"]].itertuples())
    names = []
    for run in listed:
        name = run.algorithm
        name += f" ({run.fingerprint[:6]})" if run.fingerprint and versions[name] > 1 else ""
        names.append(name if run.mu == run.l2 else f"{name}, mu={run.mu:g}")
    return names
