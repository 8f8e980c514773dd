# SPDX-License-Identifier: Apache-2.0
"""The timeline of a run: which clients work when, and whose messages each server step takes.

Durations do not depend on numbers, so the timeline comes first, as a pure function of federation,
link, mode, availability and seed; engines then execute it. Times are whole nanoseconds.

A client's work takes latency + transfer + local steps (``gradient + row x rows`` each), the latter
times its lasting speed and its stragglers' factor. Work of a client that becomes unavailable before
its end is lost. The modes:

- ``rounds``: all clients of a round start together; the server steps when all have replied or are
  lost.
- ``until(10s)``: likewise, and every client takes as many local steps as end within this time.
- ``deadline(30s)``: the server steps when the wanted number has replied, or after this time. The
  replies of all others are lost. With ``oversample`` 1.3 it starts 30% more clients than wanted.
- ``buffer(Z)``: asynchronous. A given number of clients is always at work; the server steps after
  every Z messages. A place that becomes free goes to a client drawn from those that are available
  and idle, the one that has just finished included.

>>> from fedac.federation.federation import Federation
>>> who = Federation(M=3, n=3, seed=1)
>>> link = Link(gradient=1.0, speeds=[1, 1, 5])
>>> line = make_timeline(who, Schedule.every(2, steps=8), Work(link=link, mode=Mode("buffer", 2)))
>>> line.seconds.tolist()
[0.0, 2.0, 4.0, 6.0, 8.0]
>>> [update.members.tolist() for update in line.updates()]
[[0, 1], [0, 1], [0, 1], [0, 1]]
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.algorithms import Algorithm
from fedac.errors import InputError
from fedac.federation.availability import ALWAYS, NANOSECONDS, Availability, Times
from fedac.federation.federation import Federation, Update
from fedac.federation.link import DEFAULT_LINK, LONGEST, Link
from fedac.federation.mode import ROUNDS, Mode, started
from fedac.federation.sampling import GOLDEN, mix, participants, start_draws, take
from fedac.federation.schedule import Schedule, Span
from fedac.objectives.base import RowNumbers
from fedac.validate import Array

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Draws for one place before the available clients are listed.
TRIES = 32
# Works whose random numbers are drawn together.
AT_ONCE = 1024
# Further draws if most of many clients are away.
MORE_TRIES, MANY = 4096, 50_000
# A run in which fewer than one work in so many counts would hardly end.
WORTHWHILE = 1000
# The server step of a work whose message does not arrive, or has not yet.
LOST, UNDER_WAY = -1, -2


@dataclass(frozen=True, kw_only=True)
class Work:
    """What decides on durations and on whose messages count, besides the federation.

    `up` and `down` are the bytes that a client sends and receives.
    """

    link: Link = DEFAULT_LINK
    mode: Mode = ROUNDS
    availability: Availability = ALWAYS
    oversample: float = 1.0  # of a deadline: clients started, relative to those wanted
    up: float = 0.0
    down: float = 0.0
    minibatch: bool = False
    full_gradient: bool = False

    @property
    def matters(self) -> bool:
        """Whether durations decide whose messages count, and not only how long a run takes."""
        return self.mode.kind != "rounds" or not self.availability.is_always

    @property
    def is_asynchronous(self) -> bool:
        """Whether clients start at any time."""
        return self.mode.is_asynchronous

    def require_method(self, algorithm: Algorithm) -> None:
        """Raise InputError if a method cannot run in this mode, or with clients that are away."""
        self.mode.require_method(algorithm, absent=not self.availability.is_always)

    def messages_a_place(self, federation: Federation) -> float:
        """Return how many messages a client that is always at work sends per server step."""
        return self.mode.number / federation.taking_part if self.is_asynchronous else 1.0


@dataclass(frozen=True, eq=False)
class Timeline:
    """Works of clients, one entry each, ordered by server step, client and start.

    Attributes
    ----------
    times : array of int
        Nanoseconds at which the server started (0) and took each step.
    client, version, number, steps : arrays of int
        Who worked, from which version of the server, with the draws of which round, and how far.
    begun, ended : arrays of int
        Nanoseconds. Lost work ends when it is lost.
    update : array of int
        The server step that took the message; -1 if it was lost.
    """

    schedule: Schedule
    times: Times
    client: RowNumbers
    version: RowNumbers
    number: RowNumbers
    steps: RowNumbers
    begun: Times
    ended: Times
    update: RowNumbers

    @property
    def seconds(self) -> Array:
        """Seconds before the first step of the server, and after each."""
        return self.times / NANOSECONDS

    @cached_property
    def is_synchronous(self) -> bool:
        """Whether every message arrives at the version that its client started from."""
        taken = self.update >= 0
        return bool((self.version[taken] == self.update[taken]).all())

    @cached_property
    def equal_steps(self) -> bool:
        """Whether all messages of a server step are of the same number of local steps."""
        together = (np.diff(self.update) == 0) & (self.update[1:] >= 0)
        return not np.diff(self.steps)[together].any()

    @cached_property
    def lengths(self) -> RowNumbers:
        """Return the numbers of local steps of messages that arrive, in ascending order."""
        return np.unique(self.steps[self.update >= 0])

    @property
    def most_members(self) -> int:
        """The largest number of messages that a server step takes."""
        return int(np.diff(self._bounds).max())

    @cached_property
    def _bounds(self) -> RowNumbers:
        return np.searchsorted(self.update, np.arange(self.schedule.rounds + 1))

    def members(self, r: int) -> RowNumbers:
        """Return the clients whose messages server step r takes, in ascending order."""
        return self.client[self._bounds[r] : self._bounds[r + 1]]

    def updates(self) -> Iterator[Update]:
        """Yield the steps of the server."""
        # Rows are drawn by counters: no two rounds of a client share any.
        K = self.schedule.K
        stride = max(K, int(self.steps.max(initial=0)))
        taken, one_length = self.update >= 0, len(self.lengths) == 1
        # The members of each server step that draw as in another round than its own.
        others = np.bincount(
            self.update[taken], self.number[taken] != self.update[taken], self.schedule.rounds
        )
        for span in self.schedule:
            some = slice(self._bounds[span.number], self._bounds[span.number + 1])
            members, versions, steps = (
                column[some] for column in (self.client, self.version, self.steps)
            )
            number: Any = self.number[some]
            gap: Any = span.gap
            if len(steps):
                gap = int(steps[0]) if one_length or not np.ptp(steps) else steps
            if stride == K and not others[span.number]:
                draws = span._replace(gap=gap)
            else:
                draws = Span(number, number * stride, gap)
            yield Update(span, members, versions, steps, draws)

    @cached_property
    def last_uses(self) -> RowNumbers:
        """Return the last server step that needs each version; -1 for one that none needs."""
        found = np.full(self.schedule.rounds + 1, -1)
        taken = self.update >= 0
        np.maximum.at(found, self.version[taken], self.update[taken])
        return found

    def to_frame(self) -> pd.DataFrame:
        """Return a row for every work: client, times in seconds, server step and staleness."""
        import pandas as pd

        order = np.lexsort((self.client, self.begun))
        lost = self.update < 0
        columns: dict[str, Any] = {
            "client": self.client, "begun": self.begun / NANOSECONDS,
            "ended": self.ended / NANOSECONDS, "version": self.version, "steps": self.steps,
            "update": np.where(lost, np.nan, self.update),
            "staleness": np.where(lost, np.nan, self.update - self.version), "lost": lost,
        }  # fmt: skip
        return pd.DataFrame({name: column[order] for name, column in columns.items()})

    def plot(
        self, ax: Axes | None = None, *, clients: int = 40, until: float | None = None
    ) -> Axes:
        """Draw who works when: a line for each of the first clients, and the server's steps.

        The colour is the staleness of the message; lost work is grey. `until` is the end in
        seconds (default: about 20 steps of the server).
        """
        from matplotlib.collections import LineCollection

        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.figure(layout="constrained").add_subplot()
        few = min(20, self.schedule.rounds)
        end = self.seconds[few] if until is None else until
        frame = self.to_frame()
        shown = sorted(frame["client"].unique())[:clients]
        place = {client: i for i, client in enumerate(shown)}
        frame = frame[frame["client"].isin(shown) & (frame["begun"] < end)]
        for lost, some in frame.groupby("lost"):
            rows = [place[client] for client in some["client"]]
            lines = [
                [(a, y), (b, y)] for a, b, y in zip(some["begun"], some["ended"], rows, strict=True)
            ]
            drawn = LineCollection(lines, linewidths=3.5, capstyle="butt")
            if lost:
                drawn.set(color="0.8", label="lost")
            else:
                drawn.set(array=some["staleness"].to_numpy(), cmap="viridis_r")
                drawn.set_clim(0, max(1.0, float(some["staleness"].max())))
                if some["staleness"].max() > 0:
                    ax.figure.colorbar(drawn, ax=ax, label="staleness (server steps)")
            ax.add_collection(drawn)
        for time in self.seconds[1:]:
            if time <= end:
                ax.axvline(time, color="0.4", linewidth=0.4, zorder=0)
        ax.set(xlim=(0, end), ylim=(-1, len(shown)), xlabel="seconds", ylabel="client")
        ax.set_yticks(range(len(shown)), [str(client) for client in shown], fontsize=5)
        return ax


def make_timeline(federation: Federation, schedule: Schedule, work: Work) -> Timeline:
    """Return the timeline of a run with one server step for each round of the schedule."""
    mode = work.mode
    availability = work.availability.for_seed(federation.seed)
    availability.require_clients(federation.M)
    if mode.kind == "until" and (federation.epochs or federation.local_steps is not None):
        raise InputError(f"{mode} decides on the steps of every client: use K, not epochs")
    if mode.kind == "buffer":
        if len({*schedule.gaps}) > 1:
            raise InputError(f"{mode} needs rounds of equal length")
        mode.require_places(federation.taking_part, option="participation")
        return _buffered(federation, schedule, work, int(mode.number), availability)
    return _in_rounds(federation, schedule, work, mode, availability)


class _Durations:
    """Nanoseconds that a client's work takes."""

    def __init__(self, federation: Federation, work: Work) -> None:
        self.federation, self.work, link = federation, work, work.link
        self.transfer = link.round_seconds(up=work.up, down=work.down, steps=0)
        everyone = np.arange(federation.M)
        timing = federation.timing(full_gradient=work.full_gradient)
        self._rows = np.broadcast_to(np.asarray(timing["rows"], np.float64), federation.M)
        self._first = np.zeros(federation.M)
        self._lasting = link.factors(federation.seed, federation.M)
        if work.full_gradient:
            first = np.asarray(timing["first"], np.float64)
            self._first = self._lasting * (link.gradient + link.row * first)
        self.steps = federation.steps(everyone, Span(0, 0, 0))

    def steps_of(self, members: RowNumbers, gap: int) -> RowNumbers:
        """Return the local steps of clients in a round of this length."""
        federation = self.federation
        if federation.epochs is None and federation.local_steps is None:
            return np.full(len(members), gap)
        return np.asarray(self.steps[members])

    def of(self, members: RowNumbers, steps: RowNumbers, straggling: Array) -> Times:
        """Return how long these clients work."""
        link = self.work.link
        if self.work.minibatch:  # all rows are one batch
            local = link.gradient + link.row * self._rows[members] * steps
        else:
            local = (link.gradient + link.row * self._rows[members]) * steps
        seconds = (
            self.transfer + (self._first[members] + self._lasting[members] * local) * straggling
        )
        return _nanoseconds(seconds)

    def steps_within(self, seconds: float, members: RowNumbers, straggling: Array) -> RowNumbers:
        """Return how many local steps end within this time."""
        link = self.work.link
        each = self._lasting[members] * (link.gradient + link.row * self._rows[members])
        left = seconds - self.transfer - self._first[members] * straggling
        with np.errstate(divide="ignore", invalid="ignore"):
            fit = np.floor(left / (each * straggling) + 1e-9)
        if not np.isfinite(fit).all():
            raise InputError("until(...) needs a link whose local steps take time: set gradient")
        return np.maximum(fit, 0).astype(np.int64)


def _nanoseconds(seconds: Array) -> Times:
    with np.errstate(invalid="ignore"):
        found = np.round(np.asarray(seconds) * NANOSECONDS)
    if not (found < LONGEST * NANOSECONDS).all():
        raise InputError("some client's work takes longer than 70 years: check the link")
    return found.astype(np.int64)


def _in_rounds(
    federation: Federation, schedule: Schedule, work: Work, mode: Mode, availability: Availability
) -> Timeline:
    """Return a timeline in which all clients of a server step start together."""
    M, seed, wanted = federation.M, federation.seed, federation.taking_part
    extra = work.oversample if mode.kind == "deadline" else 1.0
    count = min(M, started(wanted, extra))
    durations = _Durations(federation, work)
    limit = round(mode.number * NANOSECONDS)
    now, times = 0, [0]
    works: list[tuple[Any, ...]] = []
    for r, _, gap in schedule:
        members = _available(federation, r, count, now, availability)
        while not len(members) and mode.kind != "deadline":  # wait for the first client to return
            now = _return(availability, np.arange(M), now)
            members = _available(federation, r, count, now, availability)
        straggling = work.link.straggling(seed, members, r)
        if mode.kind == "until":
            steps = durations.steps_within(mode.number, members, straggling)
        else:
            steps = durations.steps_of(members, gap)
        begun = np.full(len(members), now, np.int64)
        done = begun + durations.of(members, steps, straggling)
        done[steps == 0] = now + limit  # without a full step until then, a client is lost
        ended = gone = availability.leaves(members, begun, done)
        replied = (gone == done) & (steps > 0)
        close = int(ended.max(initial=now))
        if mode.kind == "deadline":
            close = now + limit
            replied &= done <= close
            # The first to reply count; ties by number.
            order = np.flatnonzero(replied)[np.argsort(done[replied], kind="stable")]
            if len(order) >= wanted:
                close = int(done[order[wanted - 1]])
                replied[order[wanted:]] = False
            ended = np.minimum(ended, close)
        full = np.full(len(members), r)
        works.append((members, full, full, steps, begun, ended, np.where(replied, r, LOST)))
        now = close
        times.append(now)
    return _assemble(schedule, times, works)


def _available(
    federation: Federation, r: int, count: int, now: int, availability: Availability
) -> RowNumbers:
    """Return the clients that start round r: `count` of those available, in ascending order."""
    M, seed = federation.M, federation.seed
    if availability.is_always:
        return participants(seed, r, M, count)
    everyone = np.arange(M)
    here = everyone[availability.are_here(everyone, now)]
    return here[participants(seed, r, len(here), count)] if len(here) > count else here


def _return(availability: Availability, clients: RowNumbers, now: int) -> int:
    """Return when the first of these clients, who are all away, comes back."""
    later = availability.returns(clients, now)
    if later is None:
        raise _nobody_left(now)
    return later


def _nobody_left(now: int) -> InputError:
    return InputError(
        f"after {now / NANOSECONDS:g} seconds no client is ever available again: the run needs a "
        "longer table of availability, or fewer rounds"
    )


def _buffered(
    federation: Federation, schedule: Schedule, work: Work, Z: int, availability: Availability
) -> Timeline:
    """Return the timeline of an asynchronous run, by playing its events in order."""
    M, seed, R, K = federation.M, federation.seed, schedule.rounds, schedule.K
    durations = _Durations(federation, work)
    everyone = np.arange(M)
    steps = durations.steps_of(everyone, K)
    usual = durations.of(everyone, steps, np.ones(M)).tolist()
    transfer = int(_nanoseconds(np.array(durations.transfer)))
    always, spread = availability.is_always, bool(work.link.stragglers)
    # A client that leaves is replaced by the last one. In a list of a million numbers, every
    # look-up would wait for memory twice.
    idle = array("q", range(M))
    waiting: list[tuple[int, int, int]] = []  # end, client and number of the works under way
    client: list[int] = []
    version: list[int] = []
    begun: list[int] = []
    ended: list[int] = []
    update: list[int] = []
    times, taken, lost, now, free = [0], 0, 0, 0, federation.taking_part
    draws: list[int] = []
    factors: list[float] = []

    def draw_more() -> None:
        """Draw the clients, and the stragglers' factors, of the next works."""
        starts = np.arange(len(draws), len(draws) + AT_ONCE)
        draws.extend(start_draws(seed, starts).tolist())
        if spread:
            factors.extend(work.link.straggling(seed, starts, 0).tolist())

    def choose_available(start: int) -> int | None:
        """Return the place in `idle` of an available client, None if there is none."""
        for first, last in ((0, TRIES), (TRIES + 1, MORE_TRIES)):
            if first and len(idle) < MANY:
                break
            places = draw_from(draws[start], np.arange(first, last)) % np.uint64(len(idle))
            some = np.frombuffer(idle, np.int64)[places.astype(np.int64)]
            here = availability.are_here(some, now)
            if here.any():
                return int(places[here.argmax()])
        left = np.flatnonzero(availability.are_here(np.array(idle), now))
        return int(left[int(draw_from(draws[start], TRIES)) % len(left)]) if len(left) else None

    def draw_from(key: int, counter: Any) -> Any:
        with np.errstate(over="ignore"):
            return mix(key + np.asarray(counter).astype(np.uint64) * GOLDEN)

    while len(times) <= R:
        if lost > WORTHWHILE * (10 + taken + Z * (len(times) - 1)):
            raise InputError(
                f"fewer than 1 work in {WORTHWHILE} ends before its client goes away: use longer "
                "periods of availability, or shorter work"
            )
        while free and idle:
            start = len(client)
            if start == len(draws):
                draw_more()
            place = draws[start] % len(idle) if always else choose_available(start)
            if place is None:
                break
            m = take(idle, place)
            free -= 1
            duration = usual[m]
            if spread:
                duration = transfer + round((duration - transfer) * factors[start])
            end, fate = now + duration, UNDER_WAY
            if not always:
                leaves = int(availability.leaves(np.array([m]), np.array([now]), end)[0])
                end, fate = leaves, UNDER_WAY if leaves == end else LOST
            client.append(m)
            version.append(len(times) - 1)
            begun.append(now)
            ended.append(end)
            update.append(fate)
            heapq.heappush(waiting, (end, m, start))
        if free and idle:  # somebody may come back before the next client is done
            later = availability.returns(np.array(idle), now)
            if later is not None and (not waiting or later < waiting[0][0]):
                now = later
                continue
        if not waiting:
            raise _nobody_left(now)
        now = waiting[0][0]
        while waiting and waiting[0][0] == now and len(times) <= R:
            _, m, start = heapq.heappop(waiting)
            idle.append(m)
            free += 1
            lost += update[start] == LOST
            if update[start] == UNDER_WAY:
                update[start] = len(times) - 1
                taken += 1
                if taken == Z:
                    taken = 0
                    times.append(now)
    columns = [np.array(each, np.int64) for each in (client, version, begun, ended, update)]
    client_, version_, begun_, ended_, update_ = columns
    update_[update_ == UNDER_WAY] = LOST  # the run ends before they do
    # A client that starts twice from one version must not draw the same rows again.
    order = np.lexsort((begun_, version_, client_))
    same = (np.diff(client_[order]) == 0) & (np.diff(version_[order]) == 0)
    again = np.zeros(len(order), np.int64)
    for i in np.flatnonzero(same) + 1:
        again[i] = again[i - 1] + 1
    number_ = version_.copy()
    number_[order] += again * R
    ended_ = np.minimum(ended_, now)
    works = [(client_, version_, number_, steps[client_], begun_, ended_, update_)]
    return _assemble(schedule, times, works)


def _assemble(schedule: Schedule, times: list[int], works: list[tuple[Any, ...]]) -> Timeline:
    """Return the timeline with its works ordered by server step, client and start."""
    columns = [np.concatenate(column) for column in zip(*works, strict=True)]
    client, _, _, _, begun, _, update = columns
    order = np.lexsort((begun, client, update))
    return Timeline(schedule, np.array(times, np.int64), *(column[order] for column in columns))
