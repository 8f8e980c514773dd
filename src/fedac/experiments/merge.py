# SPDX-License-Identifier: Apache-2.0
"""Merge stores: the parts of a sweep that several machines ran become one store.

Every source is one transaction, so an interrupted merge can be repeated. Nothing is overwritten: if
two stores disagree on a run, nothing of the source is added.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from fedac.errors import InputError
from fedac.experiments.store import FILE, Store, attach, explained, open_to_write, run_columns

# SQLite nests the loops of a CROSS JOIN in the order of its tables. Left to itself, SQLite reads
# all traces of the large store for every source, or reads and writes them in the random order of
# the keys.
BOTH = "source.runs AS theirs NOT INDEXED CROSS JOIN main.runs AS ours USING (key)"
# The points in the traces of one store that the other lacks, or has with other values.
POINTS = f"""
SELECT key, step FROM {BOTH} CROSS JOIN {{0}}.traces AS point ON point.run = {{1}}.id
WHERE NOT EXISTS (
    SELECT 1 FROM {{2}}.traces AS twin
    WHERE twin.run = {{3}}.id AND twin.step = point.step AND twin.loss = point.loss
    AND twin.test_loss IS point.test_loss AND twin.test_accuracy IS point.test_accuracy
)
"""
# A run that the stores disagree on, with the first step; without one if the traces are equal.
DISAGREEMENT = f"""
SELECT spec, min(step) FROM main.runs JOIN (
    {POINTS.format("main", "ours", "source", "theirs")}
    UNION ALL
    {POINTS.format("source", "theirs", "main", "ours")}
    UNION ALL
    SELECT key, NULL FROM {BOTH} WHERE (ours.status, ours.f_star) != (theirs.status, theirs.f_star)
) USING (key) GROUP BY id ORDER BY id LIMIT 1
"""
ADD_ORIGINS = """
INSERT OR IGNORE INTO main.origins (version, machine)
SELECT version, machine FROM source.origins WHERE id IN (
    SELECT origin FROM source.runs WHERE key NOT IN (SELECT key FROM main.runs)
)
"""
ADD_RUNS = """
INSERT INTO main.runs ({columns}, origin)
SELECT {columns}, ours.id FROM source.runs JOIN source.origins AS theirs ON origin = theirs.id
JOIN main.origins AS ours USING (version, machine)
WHERE key NOT IN (SELECT key FROM main.runs)
"""
ADD_TRACES = """
INSERT INTO main.traces SELECT ours.id, step, loss, test_loss, test_accuracy
FROM main.runs AS ours CROSS JOIN source.runs AS theirs USING (key)
CROSS JOIN source.traces ON run = theirs.id WHERE ours.id > ?
"""


@dataclass(frozen=True, slots=True)
class Joined:
    """Number of runs that a source added to a store."""

    source: Path
    added: int  # runs
    before: int  # its runs that were there already


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of `merge_stores`."""

    joined: tuple[Joined, ...]  # in the order of the sources
    runs: int  # in the store now


def merge_stores(
    out: str | Path,
    sources: Iterable[str | Path],
    on_joined: Callable[[Joined], object] = lambda joined: None,
) -> Merged:
    """Add the runs of several stores to the store in `out`, which is created if missing.

    All sources are checked before anything is written. They are not changed, and may be in use.
    `on_joined` is called after each.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from fedac.experiments import sweep
    >>> from fedac.experiments.grid import make_grid
    >>> grid = make_grid(dataset="synthetic", l2=1e-2, algorithms=["fedac-i", "mb-sgd"],
    ...                  workers=4, local_steps=8, steps=16, eta=[0.1, 0.5])
    >>> with TemporaryDirectory() as folder:
    ...     with Store(f"{folder}/part", create=True) as store:
    ...         _ = sweep.run(grid, store)
    ...     for _ in range(2):
    ...         merged = merge_stores(f"{folder}/all", [f"{folder}/part"])
    ...         print(merged.joined[0].added, merged.joined[0].before, merged.runs)
    4 0 4
    0 4 4
    """
    out, folders = Path(out), [Path(source) for source in sources]
    for source in folders:
        with Store(source) as store:
            if (out / FILE).exists() and store.path.samefile(out / FILE):
                raise InputError(f"'{source}' is the store to merge into: leave it out")
    with Store(out, create=True) as store, ExitStack() as stack:
        with explained(store.path), store.claim("open", wait=True):
            db = open_to_write(store.path, stack)
        joined = []
        for source in folders:
            joined.append(_join(db, out, source))
            on_joined(joined[-1])
        (runs,) = db.execute("SELECT count(*) FROM runs").fetchone()
    return Merged(tuple(joined), runs)


def _join(db: sqlite3.Connection, out: Path, source: Path) -> Joined:
    with ExitStack() as stack:
        with explained(source / FILE):
            attach(db, source / FILE, stack)
        with explained(out / FILE), db:
            # The source cannot be written, so this locks the other store alone.
            db.execute("BEGIN IMMEDIATE")
            _require_agreement(db, out, source)
            (runs,) = db.execute("SELECT count(*) FROM source.runs").fetchone()
            (last,) = db.execute("SELECT coalesce(max(id), 0) FROM main.runs").fetchone()
            names = run_columns(db, "source")
            columns = ", ".join(name for name in names if name not in ("id", "origin"))
            db.execute(ADD_ORIGINS)
            added = db.execute(ADD_RUNS.format(columns=columns)).rowcount
            db.execute(ADD_TRACES, (last,))
    return Joined(source, added, runs - added)


def _require_agreement(db: sqlite3.Connection, out: Path, source: Path) -> None:
    found = db.execute(DISAGREEMENT).fetchone()
    if found is not None:
        spec, step = json.loads(found[0]), found[1]
        where = "in its status or F*" if step is None else f"first at step {step}"
        raise InputError(
            f"'{out}' and '{source}' disagree on {spec['algorithm']} with M={spec['M']}, "
            f"K={spec['K']}, eta={spec['eta']:g}, seed={spec['seed']}, {where}: nothing of "
            f"'{source}' was added; use another folder for it"
        )


Group = TypeVar("Group")


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of a grid, counted from 1, for machines that do not communicate.

    Every machine computes the same division from the grid alone.

    Examples
    --------
    >>> shard = Shard.parse("1/2")
    >>> shard.select(["a", "bb", "ccc", "dddd"], seconds=len)
    ['a', 'dddd']
    >>> Shard.parse("5/4")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: there is no shard 5/4: the parts of 4 are 1/4 to 4/4
    """

    part: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.part <= self.of:
            known = f"the parts of {self.of} are 1/{self.of} to {self.of}/{self.of}"
            least = "give at least one part, as 1/1"
            raise InputError(f"there is no shard {self}: {known if self.of else least}")

    def __str__(self) -> str:
        return f"{self.part}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a shard such as 3/16, the third part of sixteen."""
        found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        if not found:
            raise InputError(f"a shard is a part and the number of parts, as in 3/16, not '{text}'")
        return cls(*map(int, found.groups()))

    def select(self, groups: Sequence[Group], seconds: Callable[[Group], float]) -> list[Group]:
        """Return the groups of this part, in the order given.

        Groups are assigned longest first, each to the part with the least work, so that the times
        of two parts differ by at most one group.
        """
        # Whole microseconds: sums are exact, and no machine rounds the last bit another way.
        costs = [round(seconds(group) * 1e6) for group in groups]
        loads = [0] * self.of
        ours = set()
        for place in sorted(range(len(groups)), key=lambda place: -costs[place]):
            part = loads.index(min(loads))
            loads[part] += costs[place]
            if part == self.part - 1:
                ours.add(place)
        return [group for place, group in enumerate(groups) if place in ours]
