"""The store: every finished run of a sweep, with its trace, in one SQLite file.

A group of runs is committed in one transaction, so a process may die at any time: what was
committed stays, and the next sweep runs the rest. A run is found by the hash of its
configuration; nothing is ever overwritten. Figures and reports only read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from fedac import __version__
from fedac.errors import InputError, NetworkFileSystemWarning
from fedac.experiments.database import explained, open_to_read, open_to_write
from fedac.experiments.grid import Config, values_of
from fedac.experiments.run_key import with_unique_names
from fedac.experiments.scheduling import queries
from fedac.experiments.summary import records
from fedac.paths import is_network

if TYPE_CHECKING:
    import pandas as pd

if sys.platform != "win32":
    import fcntl

FILE = "runs.sqlite"

# A diverged run has no result: its final loss is the last one before it diverged.
IF_OK = "CASE status WHEN 'ok' THEN {} END"
FINAL = IF_OK.format("final_loss")
# The score of a run, as `Run.trained_loss`: the start point does not count.
TRAINED = IF_OK.format("(SELECT min(loss) FROM traces WHERE run = runs.id AND step > 0)")
# Of the model at the end, like the final loss.
AT_THE_END = "(SELECT {0} FROM traces WHERE run = runs.id ORDER BY step DESC LIMIT 1)"
TEST = ", ".join(
    f"{IF_OK.format(AT_THE_END.format(name))} AS {name}" for name in ("test_loss", "test_accuracy")
)
FRAME = f"""
SELECT key, dataset, l2, algorithm, M, K, T, eta, seed, status, best_loss,
    {FINAL} AS final_loss, best_loss - f_star AS best_suboptimality,
    {FINAL} - f_star AS final_suboptimality, f_star, megabytes_per_worker, n_samples, n_features,
    record_every, precision, seconds, version, created,
    {TRAINED} AS trained_loss, data_hash, coalesce(mu, l2) AS mu, objective, intercept,
    fingerprint, rows_hash, split, split_seed, split_hash, participation, batch, weighting, decay,
    wire, test, {TEST}
FROM runs JOIN origins ON origin = origins.id
-- Of two runs that differ in their test sets only, the one that has one comes first: it is shown.
-- The key makes the order unique: two data sets may have one name.
ORDER BY dataset, l2, algorithm, M, K, T, eta, seed, split, participation, batch, test DESC, key
"""
# The parts of an outcome that go into the table of traces.
TRACE = ("steps", "losses", "test_losses", "test_accuracies")
Origin = tuple[str, str]  # the version of fedac and the machine, as JSON
Best = tuple[float, str, float]  # suboptimality, algorithm and eta of a run
# What SQLite gives as nulls or integers, above all in an empty table.
TYPES = {
    "final_loss": "float64",
    "final_suboptimality": "float64",
    "trained_loss": "float64",
    "intercept": "bool",
    "participation": "float64",
    "test_loss": "float64",
    "test_accuracy": "float64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one run."""

    status: Literal["ok", "diverged"]
    steps: tuple[int, ...]  # the trace, which of a diverged run ends where it diverged
    losses: tuple[float, ...]
    test_losses: tuple[float, ...] = ()  # on the test set, if there is one
    test_accuracies: tuple[float, ...] = ()
    f_star: float
    megabytes_per_worker: float  # sent in all rounds together
    n_samples: int
    n_features: int
    seconds: float  # the run's share of the engine's time for its group


def this_origin() -> Origin:
    """Return what runs made by this process are marked with."""
    return __version__, json.dumps(describe_machine())


class StoredCurve(NamedTuple):
    """How a run's suboptimality fell."""

    status: str
    steps: list[int]
    suboptimality: list[float]


class Store:
    """All runs in a directory, for reading or, with `create`, for writing too.

    With `create`, the directory and its ``runs.sqlite`` are made if they do not exist. A store
    that is damaged, newer than this program, or cannot be written raises `InputError`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> config = Config(
    ...     dataset="tiny", data_hash="0" * 64, l2=1e-3, algorithm="fedavg", M=4, K=2, T=8,
    ...     eta=0.5, seed=1, record_every=8, precision="float32",
    ... )
    >>> outcome = Outcome(
    ...     status="ok", steps=(0, 8), losses=(0.75, 0.5), f_star=0.25, megabytes_per_worker=0.1,
    ...     n_samples=60, n_features=12, seconds=0.01,
    ... )
    >>> with TemporaryDirectory() as folder, Store(folder, create=True) as store:
    ...     store.add([(config, outcome)]), store.add([(config, outcome)])
    ...     store.missing([config])
    ...     store.best([config.key])
    (1, 0)
    []
    (0.25, 'fedavg', 0.5)
    """

    def __init__(self, directory: str | Path, create: bool = False) -> None:
        self.path = Path(directory) / FILE
        with ExitStack() as stack, explained(self.path):
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                warn_if_shared(self.path.parent)
                self._lock = stack.enter_context(self.path.with_name("runs.lock").open("ab"))
                # SQLite does not wait when two processes change the journal's mode at once.
                with self.claim("open", wait=True):
                    self._db = open_to_write(self.path, stack)
            elif self.path.is_file():
                self._db = open_to_read(self.path, stack)
            else:
                raise InputError(
                    f"no sweep in '{directory}': there is no {FILE}; "
                    f"create one with 'fedac sweep FILE.toml --out {directory}'"
                )
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def missing(self, configs: Sequence[Config]) -> list[Config]:
        """Return the configurations that are not in the store, in the order given."""
        found = {key for (key,) in self._select("key", [config.key for config in configs])}
        return [config for config in configs if config.key not in found]

    def best(self, keys: Iterable[str]) -> Best | None:
        """Return suboptimality, algorithm and eta of the best run; None if all diverged."""
        # SQLite takes the other columns from the row of the minimum.
        [best] = self._select(f"min({TRAINED} - f_star), algorithm, eta", keys)
        return None if best[0] is None else best

    def add(self, results: Sequence[tuple[Config, Outcome]], origin: Origin | None = None) -> int:
        """Store some runs and their traces, all or none; return how many are new.

        They were made here, unless `origin` says otherwise.
        """
        if not results:
            return 0
        origin = origin or this_origin()
        created = datetime.now(UTC).isoformat(timespec="seconds")
        new = 0
        with explained(self.path), self._db as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT OR IGNORE INTO origins (version, machine) VALUES (?, ?)", origin)
            query = "SELECT id FROM origins WHERE version = ? AND machine = ?"
            (origin_id,) = db.execute(query, origin).fetchone()
            for config, outcome in results:
                values = values_of(config) | values_of(outcome) | {"key": config.key}
                trace = [values.pop(name) for name in TRACE]
                losses = outcome.losses
                values |= {"best_loss": min(losses), "final_loss": losses[-1]}
                values |= {"created": created, "origin": origin_id}
                names = f"({', '.join(values)}) VALUES (:{', :'.join(values)})"
                insert = f"INSERT INTO runs {names} ON CONFLICT (key) DO NOTHING"
                inserted = db.execute(insert, values)
                if inserted.rowcount:
                    new += 1
                    points = f"INSERT INTO traces VALUES ({inserted.lastrowid}, ?, ?, ?, ?)"
                    none = (None,) * len(losses)  # where there is no test set
                    db.executemany(points, zip(*(each or none for each in trace), strict=True))
        return new

    def frame(self) -> pd.DataFrame:
        """Return a table with a row per run, sorted by configuration.

        ``trained_loss`` is the score of a run: its smallest loss after at least one step, missing
        if it diverged. ``test_loss`` and ``test_accuracy`` are those at the end. ``dataset``,
        ``algorithm``, ``split`` and ``federation`` are unique: see `with_unique_names`.
        """
        import pandas as pd

        with explained(self.path):
            runs = pd.read_sql_query(FRAME, self._db, dtype=TYPES)
        return with_unique_names(runs).drop(columns=["fingerprint", "rows_hash", "split_hash"])

    def traces(self) -> pd.DataFrame:
        """Return the losses along all runs: key, step, loss, test_loss, test_accuracy."""
        import pandas as pd

        query = (
            "SELECT key, step, loss, test_loss, test_accuracy "
            "FROM runs JOIN traces ON run = runs.id ORDER BY key, step"
        )
        types = {"test_loss": "float64", "test_accuracy": "float64"}  # nulls without a test set
        with explained(self.path):
            return pd.read_sql_query(query, self._db, dtype=types)

    def curves(self, keys: Iterable[str]) -> dict[str, StoredCurve]:
        """Return the traces of some runs by their keys."""
        found: dict[str, StoredCurve] = {}
        columns = "key, status, f_star, step, loss"
        query = (
            f"SELECT {columns} FROM runs JOIN traces ON run = runs.id "
            "WHERE key IN (SELECT value FROM json_each(?)) ORDER BY run, step"
        )
        with explained(self.path):
            for key, status, f_star, step, loss in self._db.execute(
                query, (json.dumps(list(keys)),)
            ):
                curve = found.setdefault(key, StoredCurve(status, [], []))
                curve.steps.append(step)
                curve.suboptimality.append(loss - f_star)
        return found

    def info(self) -> dict[str, Any]:
        """Describe how the runs were made.

        ``seconds`` are those in the engine, ``gradient_queries`` as `cost.queries` counts them,
        ``versions`` those of fedac, and ``machines`` as `describe_machine` returns them.
        """
        import pandas as pd

        query = "SELECT * FROM runs JOIN origins ON origin = origins.id ORDER BY origin"
        with explained(self.path):
            runs = pd.read_sql_query(query, self._db)
        return {
            "runs": len(runs),
            "diverged": int((runs["status"] == "diverged").sum()),
            "seconds": float(runs["seconds"].sum()),
            "gradient_queries": sum(queries(run, run.n_samples) for run in records(runs)),
            "seeds": sorted(runs["seed"].unique().tolist()),
            "first": runs["created"].min(),
            "last": runs["created"].max(),
            "versions": runs["version"].unique().tolist(),
            "machines": [json.loads(machine) for machine in runs["machine"].unique()],
        }

    @contextmanager
    def claim(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Yield whether `name` is ours until the block ends, so that two sweeps share the work.

        The system drops the claims of a process that dies. On Windows, which has no such locks,
        every claim succeeds: a run may be made twice, but is stored once.
        """
        if sys.platform == "win32":
            yield True
            return
        offset = int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)
        ours = True
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, offset)
        except OSError as error:
            ours = error.errno not in (errno.EACCES, errno.EAGAIN)
        try:
            yield ours
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, offset)

    def _select(self, columns: str, keys: Iterable[str]) -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM runs WHERE key IN (SELECT value FROM json_each(?))"
        with explained(self.path):
            return self._db.execute(query, (json.dumps(list(keys)),)).fetchall()


# --- Stores on network file systems: several machines must not share one there.


def warn_if_shared(folder: Path) -> None:
    """Warn if a store that is opened for writing is on a network file system."""
    if is_network(folder):
        warnings.warn(
            f"'{folder}' is on a network file system, where SQLite's locks do not hold between "
            "machines: use one store per machine with --shard, and join them with 'fedac merge'",
            NetworkFileSystemWarning,
            stacklevel=3,  # where the store is opened
        )


# --- The machine and the versions that a measurement or a run was made with.


def describe_machine() -> dict[str, Any]:
    """Describe the machine and the versions that matter.

    Examples
    --------
    >>> list(describe_machine())
    ['processor', 'cores', 'system', 'python', 'numpy', 'numba']
    """
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
