"""Tell results apart by what they are: data by its content, algorithms by what they compute.

Names are not enough. Two files may both be called ``train``, a user's file may be called
``a9a``, and an algorithm may change under its name.
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
from fedac.federation.spec import FederationOptions, MethodOptions, options_of
from fedac.objectives import LeastSquares, Objective

if TYPE_CHECKING:
    import pandas as pd

# The first algorithms, which keys name without a fingerprint. Never edit a line.
WITHOUT_FINGERPRINT = {
    "fedac-i": "16689dda8adb3293",
    "fedac-ii": "d752af7bacfc6082",
    "fedac-vanilla": "046de6b8dbc410a0",
    "fedavg": "11b97261996c8ac0",
    "fedavg-weighted": "c9ae6193671edd8b",
    "mb-sgd": "a26a1845dbb6576b",
    "mb-ac-sgd": "0e5c90f6879c1230",
}
# The paper's a9a: hashes of its rows and of its objectives.
A9A_ROWS = "bb924b51cf55f0ae4f9b0ad2e7c31b239997d6d21ba09a232778848a19fc2cce"
A9A = {
    1e-2: "781a5f51cd736b9931abc1b21710dcac2be19d3bde4e17fbf1ec25e8903d8011",
    1e-3: "80d181fd5697916d054b8960a5d9da30496783128fdd98bf7a183d80f39c0e38",
    1e-4: "4640626259e5a711c1a569bb04a48f2a810870da45889a8850570db40aee26e3",
}


@lru_cache(maxsize=4096)  # a comparison asks for every run
def key_fingerprint(algorithm: Algorithm) -> str:
    """Return the fingerprint of an algorithm in keys; empty for the first algorithms."""
    found = fingerprint(algorithm)
    return "" if WITHOUT_FINGERPRINT.get(algorithm.name) == found else found


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

    If two of them share a name, part of their hash is added, and so are a loss other than logistic,
    an intercept, and a mu other than l2. The new column `federation` names the unusual options.
    """
    named = runs.assign(dataset=_dataset_names(runs), algorithm=_algorithm_names(runs))
    named = named.assign(split=_split_names(named))
    return named.assign(federation=[federation_name(run) for run in named.itertuples()])


def federation_name(run: Any) -> str:
    """Name the options of clients and method that are not at their usual values.

    `run` is a Spec, or a row with its columns.

    Examples
    --------
    >>> from fedac.federation.spec import Spec
    >>> federation_name(Spec(split="label", participation=0.1, batch=4))
    'split label, participation 0.1, batch 4'
    >>> federation_name(Spec())
    ''
    """
    parts = []
    for name, option in (options_of(FederationOptions) | options_of(MethodOptions)).items():
        if option.absent is not ...:
            value = getattr(run, name)
            usual = value is None or value == option.absent or str(value) == str(option.absent)
            text = f"{value:g}" if isinstance(value, float) else str(value)
            parts += [] if usual else [f"{name.replace('_', ' ')} {text}"]
    return ", ".join(parts)


def _dataset_names(runs: pd.DataFrame) -> list[str]:
    columns = ["dataset", "data_hash", "rows_hash", "l2", "objective", "intercept"]
    problems: list[Any] = list(runs[columns].drop_duplicates().itertuples())
    # Two data sets share a name if their rows differ, or the objectives with the same options do.
    same_name, same_options = defaultdict(set), defaultdict(set)
    for p in problems:
        same_name[p.dataset].add(p.rows_hash)
        same_options[p.dataset, p.l2, p.objective, p.intercept].add(p.data_hash)
    shared = {name for name, hashes in same_name.items() if len(hashes) > 1}
    shared |= {name for (name, *_), hashes in same_options.items() if len(hashes) > 1}
    names = {}
    for p in problems:
        # The name of the paper's data set is its own.
        papers = p.rows_hash == A9A_ROWS or p.data_hash in A9A.values()
        other = not papers if p.dataset == "a9a" else p.dataset in shared
        name = p.dataset + (f" ({(p.rows_hash or p.data_hash)[:6]})" if other else "")
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
