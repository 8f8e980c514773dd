# SPDX-License-Identifier: Apache-2.0
"""When clients are available for work: always, by chance, by day and night, or as a table says.

Times are whole nanoseconds from the start of the run, so that equal times are exactly equal.

>>> tenth = Availability.parse("share(0.1, 10min)")
>>> int(tenth.are_here(np.arange(1000), 0).sum())
93
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError
from fedac.federation.link import LONGEST, parse_seconds
from fedac.federation.sampling import GOLDEN, mix, worker_key
from fedac.validate import parse_piece, require_positive

NANOSECONDS = 10**9  # in a second
HOUR = 3600 * NANOSECONDS
DAY = 24 * HOUR
# How long a client of share(p) stays as it is, unless the second number says otherwise.
PERIOD = 60.0
# The smallest p of share(p), and how many chances are looked up together.
RAREST, TOGETHER = 1e-6, 2**20
KNOWN = "always, share(p), share(p, period), diurnal(hours, width), or a table of client, from, to"
_STREAM = np.uint64(0xE7037ED1A0B428DB)  # any odd number with no pattern
COLUMNS = ["client", "from", "to"]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Availability:
    """When each client is available; a client that goes away loses the work it is doing.

    `text` is what `parse` was given; `seed` determines the chances.
    """

    text: str = "always"
    seed: int = 0

    @classmethod
    def parse(cls, given: Any) -> Availability:
        """Return availability given as text, or as a table: rows of client, from and to (seconds).

        A table may be a CSV file with these three columns.
        """
        if isinstance(given, Availability):
            return given
        if not isinstance(given, str | Path):
            return Table.of("table", given)
        text = str(given).strip()
        if text == "always":
            return cls()
        if Path(text).is_file():
            return Table.of(text, _read(text))
        if text.lower().endswith(".csv"):
            raise InputError(f"availability: there is no file '{text}'")
        try:
            name, first, *others = _parse(text)
        except ValueError:
            name, first, others = "", 0.0, []
        if name == "share" and len(others) <= 1:
            (period,) = others or [PERIOD]
            if not RAREST <= first <= 1 or not 1e-9 <= period <= LONGEST:
                raise InputError(
                    f"share(p, period) needs 0 < p <= 1 (at least {RAREST:g}) and a period, "
                    f"got '{text}'"
                )
            return Share(text, p=first, period=round(period * NANOSECONDS))
        if name == "diurnal" and len(others) == 1:
            (width,) = others
            if not 0 <= width <= 24:
                raise InputError(f"width of diurnal is a number of hours up to 24, got {width:g}")
            if first > 24:
                raise InputError(f"hours of diurnal is a number up to 24, got {first:g}")
            hours = round(require_positive("hours of diurnal", first) * HOUR)
            return Diurnal(text, hours=hours, width=width)
        raise InputError(f"availability is {KNOWN}; got '{text}'")

    def __str__(self) -> str:
        return self.text

    @property
    def is_always(self) -> bool:
        """Whether all clients are always available."""
        return type(self) is Availability

    def for_seed(self, seed: int) -> Availability:
        """Return the same rule with other chances."""
        return replace(self, seed=seed)

    def require_clients(self, M: int) -> None:
        """Raise InputError if a table names a client that a federation of M does not have."""

    def leaves(self, clients: Times, start: Times, end: Any) -> Times:
        """Return the first time from `start` on at which each client is away, at most `end`.

        The result is `start` for a client that is away then, and `end` for one that stays.
        """
        return np.broadcast_to(np.asarray(end, np.int64), start.shape)

    def returns(self, clients: Times, now: int) -> int | None:
        """Return the first time after `now` at which any of these clients, all away, comes back."""
        return None

    def are_here(self, clients: Times, now: int) -> npt.NDArray[np.bool_]:
        """Return whether each client is available at a time."""
        start = np.full(len(clients), now, np.int64)
        return np.asarray(self.leaves(clients, start, now + 1) > now)

    def _chance(self, clients: Times, number: Any) -> npt.NDArray[np.float64]:
        """Return a number in [0, 1) for each client and counter."""
        with np.errstate(over="ignore"):  # wrap-around is the point
            key = worker_key(np.array([self.seed], np.uint64) ^ _STREAM, clients.astype(np.uint64))
            bits = mix(key + (np.asarray(number).astype(np.uint64) + np.uint64(1)) * GOLDEN)
        return np.asarray(bits >> np.uint64(11)) * 2.0**-53


ALWAYS = Availability()


@dataclass(frozen=True, eq=False)
class Share(Availability):
    """In every period, each client is available with probability p, independently."""

    p: float = 1.0
    period: int = 60 * NANOSECONDS

    def leaves(self, clients: Times, start: Times, end: Any) -> Times:
        """Return the first time from `start` on at which each client is away, at most `end`."""
        last = np.broadcast_to(np.asarray(end, np.int64), start.shape)
        now = start.copy()
        left, ahead = np.flatnonzero(now < last), 1
        while len(left):
            slot = now[left] // self.period
            # The number of the next periods in which each client stays.
            away = ~self._stay(clients[left], slot, ahead)
            stays = np.where(away.any(axis=1), away.argmax(axis=1), ahead)
            now[left] = np.where(
                stays > 0, np.minimum((slot + stays) * self.period, last[left]), now[left]
            )
            left = left[(stays == ahead) & (now[left] < last[left])]
            if len(left):
                needed = int((last[left] - now[left]).max()) // self.period + 1
                ahead = max(1, min(2 * ahead, needed, TOGETHER // len(left)))
        return now

    def are_here(self, clients: Times, now: int) -> npt.NDArray[np.bool_]:
        """Return whether each client is available at a time."""
        return np.asarray(self._chance(clients, now // self.period) < self.p)

    def _stay(self, clients: Times, slots: Any, ahead: int) -> npt.NDArray[np.bool_]:
        """Return whether each client is available in its next periods, a row for each client."""
        numbers = np.asarray(slots)[..., None] + np.arange(ahead)
        return np.asarray(self._chance(clients[:, None], numbers) < self.p)

    def returns(self, clients: Times, now: int) -> int | None:
        """Return the first time after `now` at which any of these clients comes back."""
        slot, ahead = now // self.period + 1, 1
        while not (found := self._stay(clients, slot, ahead).any(axis=0)).any():
            slot, ahead = slot + ahead, max(1, min(2 * ahead, TOGETHER // len(clients)))
        return int(slot + found.argmax()) * self.period


@dataclass(frozen=True, eq=False)
class Diurnal(Availability):
    """Each client is available for some hours a day, from its own time of day on.

    These times are spread evenly by chance over the first `width` hours of the day.
    """

    hours: int = DAY
    width: float = 0.0

    def _since(self, clients: Times, now: Any) -> Times:
        """Return how long ago each client's window began."""
        begins = np.floor(self._chance(clients, 0) * self.width * HOUR).astype(np.int64)
        return np.asarray((now - begins) % DAY)

    def leaves(self, clients: Times, start: Times, end: Any) -> Times:
        """Return the first time from `start` on at which each client is away, at most `end`."""
        if self.hours >= DAY:
            return super().leaves(clients, start, end)
        left = np.maximum(self.hours - self._since(clients, start), 0)
        return np.asarray(np.minimum(start + left, end))

    def are_here(self, clients: Times, now: int) -> npt.NDArray[np.bool_]:
        """Return whether each client is available at a time."""
        return np.asarray(self._since(clients, now) < self.hours)

    def returns(self, clients: Times, now: int) -> int | None:
        """Return the first time after `now` at which any of these clients comes back."""
        return int(now + (DAY - self._since(clients, now)).min())


@dataclass(frozen=True, eq=False)
class Table(Availability):
    """Each client is available in the listed intervals."""

    client: Times = ...  # type: ignore[assignment]
    begin: Times = ...  # type: ignore[assignment]
    end: Times = ...  # type: ignore[assignment]

    @classmethod
    def of(cls, text: str, rows: Iterable[Any]) -> Table:
        """Read rows of client, from and to, in seconds; touching intervals become one."""
        names = [str(name).strip() for name in getattr(rows, "columns", COLUMNS)]
        if names != COLUMNS:
            raise InputError(
                "availability: a table has the columns client, from, to, in this order; got "
                f"{', '.join(names):.60}"
            )
        try:
            table = np.asarray(getattr(rows, "values", rows), np.float64)
        except (TypeError, ValueError):
            table = np.zeros(0)
        if table.ndim != 2 or table.shape[1] != 3 or not len(table):
            raise InputError("availability as a table has rows of client number, from and to")
        if not np.isfinite(table).all() or (table < 0).any() or (table[:, 2] <= table[:, 1]).any():
            raise InputError("availability: every interval needs 0 <= from < to, in seconds")
        if (table[:, 0] % 1).any() or (table[:, 0] > 2**53).any():
            raise InputError("availability: the first column is the number of the client, from 0")
        if (table[:, 2] > LONGEST).any():
            raise InputError(
                f"availability: a run ends within 70 years, got {table[:, 2].max():g} s"
            )
        client = table[:, 0].astype(np.int64)
        begin, end = np.round(table[:, 1:].T * NANOSECONDS).astype(np.int64)
        order = np.lexsort((begin, client))
        joined: list[list[int]] = []
        for m, a, b in zip(*(each[order].tolist() for each in (client, begin, end)), strict=True):
            if joined and joined[-1][0] == m and a <= joined[-1][2]:
                joined[-1][2] = max(joined[-1][2], b)
            else:
                joined.append([m, a, b])
        columns = np.array(joined, np.int64).T
        digest = f"{text}:{hash_of(columns)}"
        return cls(digest, client=columns[0], begin=columns[1], end=columns[2])

    def require_clients(self, M: int) -> None:
        """Raise InputError if a table names a client that a federation of M does not have."""
        if self.client[-1] >= M:
            raise InputError(
                f"availability lists client {self.client[-1]}, but the clients are 0 to {M - 1}"
            )

    def _interval(self, clients: Times, now: Times) -> tuple[npt.NDArray[np.bool_], Times]:
        """Return whether each client is in an interval, and the place of its last begun one."""
        firsts = np.searchsorted(self.client, clients)
        lasts = np.searchsorted(self.client, clients, side="right")
        place = firsts - 1
        while (lasts - place > 1).any():  # bisect: what begins at `place` has begun
            middle = np.minimum((place + lasts) // 2, len(self.begin) - 1)
            split = lasts - place > 1
            begun = split & (self.begin[middle] <= now)
            place, lasts = np.where(begun, middle, place), np.where(split & ~begun, middle, lasts)
        inside = (place >= firsts) & (now < self.end[place])
        return inside, place

    def leaves(self, clients: Times, start: Times, end: Any) -> Times:
        """Return the first time from `start` on at which each client is away, at most `end`."""
        inside, place = self._interval(clients, start)
        return np.where(inside, np.minimum(self.end[place], end), start)

    def returns(self, clients: Times, now: int) -> int | None:
        """Return the first time after `now` at which any of these clients comes back."""
        later = self.begin[(self.begin > now) & np.isin(self.client, clients)]
        return int(later.min()) if later.size else None


def hash_of(columns: Times) -> str:
    """Return a short hash of a table, for the keys of stored runs."""
    return hashlib.sha256(columns.tobytes()).hexdigest()[:12]


def _read(path: str) -> Any:
    """Return the table of a CSV file."""
    import pandas as pd

    try:
        return pd.read_csv(path, skipinitialspace=True)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"availability: cannot read '{path}' as CSV: {reason}") from error


def _parse(text: str) -> tuple[Any, ...]:
    """Return the name and the numbers of "share(0.1, 10min)"; a period is a time."""
    found = re.fullmatch(r"share\(([^,]*),(.*)\)", text)
    if found is not None:
        return "share", float(found[1]), parse_seconds("the period of share", found[2].strip())
    piece = parse_piece(text)
    return () if piece.named else (piece.name, *piece.positional)  # by position only
