# SPDX-License-Identifier: Apache-2.0
"""The runs of a store as files for other programs, with their costs on a link."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from fedac.errors import InputError
from fedac.experiments.store import TESTS, TRAFFIC, Store
from fedac.experiments.summary import records
from fedac.federation.federation import taking_part
from fedac.federation.link import DEFAULT_LINK, Costs, Link, run_costs
from fedac.federation.spec import FULL, stored_options
from fedac.paths import write_atomically

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


CONFIGURATION = ["dataset", "l2", "algorithm", "M", "K", "T", "eta", "seed"]
RESULTS = ["status", "best_loss", "final_loss", "best_suboptimality", "final_suboptimality"]


def write_csv(store: Store, path: Path, link: Link = DEFAULT_LINK) -> int:
    """Write one line per run and return their number; the same runs give the same bytes.

    Options that are rarely set get a column only where they are.
    """
    runs = with_costs(store.frame(), link)
    columns = [*CONFIGURATION, *RESULTS, *_options(runs), *_metrics(runs), *COSTS]
    return _write(runs[_known(columns, runs)], path)


def write_traces(store: Store, path: Path, link: Link = DEFAULT_LINK) -> int:
    """Write a line per recorded loss of every run and return how many."""
    runs = store.frame()
    # Test metrics along the traces replace the final ones.
    points = runs.drop(columns=TESTS, errors="ignore").merge(store.traces(), on="key", sort=False)
    points = with_costs(points, link, at="step")
    points["suboptimality"] = points["loss"] - points["f_star"]
    columns = ["key", *CONFIGURATION, *_options(runs), "status", "step", "loss", "suboptimality"]
    columns += [*_metrics(points), *COSTS]
    return _write(points[_known(columns, runs)], path)


def write_parquet(store: Store, path: Path, link: Link = DEFAULT_LINK) -> int:
    """Write the table of `Store.frame` for programs that read Parquet; return its rows."""
    try:
        import_module("pyarrow")
    except ImportError:
        raise InputError("Parquet needs pyarrow: pip install pyarrow") from None
    return _write(with_costs(store.frame(), link).drop(columns=TRAFFIC), path, parquet=True)


def _options(runs: pd.DataFrame) -> list[str]:
    """Return the options that are needed to tell the runs apart, or not left at their defaults."""
    names = []
    for name, option in stored_options().items():
        column = option.column or name
        usual = {"mu": runs["l2"], "precision": "float32"}.get(name, option.absent)
        if usual is not ... and column in runs:
            values = runs[column].astype(str) if len(option.kind) > 1 else runs[column]
            if (values != (str(usual) if len(option.kind) > 1 else usual)).any():
                names.append(column)
    twins = runs.duplicated([*CONFIGURATION, *names]).any()
    return [*names, "record_every"] if twins else names


def _known(columns: list[str], runs: pd.DataFrame) -> list[str]:
    """Leave out suboptimalities if all runs are of networks, which have none."""
    networks = len(runs) and runs["f_star"].isna().all()
    return [name for name in columns if not (networks and name.endswith("suboptimality"))]


def _metrics(runs: pd.DataFrame) -> list[str]:
    """Return the results on test sets, and over clients, if there are any."""
    found = [name for name in TESTS if name in runs]
    if not (runs["test"] != "").any():
        return [name for name in found if not name.startswith("test_")]
    if "test_mae" in found and runs["test_accuracy"].isna().all():  # real targets only
        found.remove("test_accuracy")
    return found


def _write(table: pd.DataFrame, path: Path, *, parquet: bool = False) -> int:
    """Write a file atomically; "-" is stdout, and devices and pipes are written directly."""

    def write(file: BinaryIO) -> None:
        if parquet:
            table.to_parquet(file, engine="pyarrow", index=False)
        else:
            table.to_csv(file, mode="wb", index=False, lineterminator="\n")

    try:
        stdout = str(path) == "-"
        if stdout or (path.exists() and not (path.is_file() or path.is_dir())):
            with open(1 if stdout else path, "wb", closefd=not stdout) as stream:
                write(stream)
        elif not path.parent.is_dir():
            raise InputError(f"cannot write '{path}': there is no folder '{path.parent}'")
        else:
            write_atomically(path, write)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None
    return len(table)
