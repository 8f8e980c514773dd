# SPDX-License-Identifier: Apache-2.0
"""Timelines: properties that hold whatever the link, the mode and the availability."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac import Link
from fedac.data import Clients
from fedac.errors import InputError
from fedac.federation.availability import Availability
from fedac.federation.federation import Federation
from fedac.federation.mode import Mode
from fedac.federation.schedule import Schedule
from fedac.federation.timeline import Timeline, Work, make_timeline

M, K = 12, 3
OWNERS = np.repeat(np.arange(M), np.arange(1, M + 1))
SPREADS = st.sampled_from(["", "lognormal(0.5)", "lognormal(1.5)"])
AVAILABILITIES = st.sampled_from(
    ["always", "share(0.6, 20s)", "share(0.3, 2min)", "diurnal(9, 24)"]
)


@st.composite
def timelines(draw) -> tuple[Timeline, Federation, Work]:
    count = draw(st.sampled_from([None, 1, 3, 8]))
    places = count or M
    mode = draw(
        st.sampled_from(["rounds", "until(9s)", "deadline(4s)", "deadline(15s)"])
        | st.integers(1, places).map("buffer({})".format)
    )
    federation = Federation(
        M=M, n=len(OWNERS), seed=draw(st.integers(0, 2**40)), clients=Clients(OWNERS), count=count,
        weighting=draw(st.sampled_from(["examples", "uniform"])),
        epochs=None if "until" in mode else draw(st.sampled_from([None, 1])),
    )  # fmt: skip
    link = Link(latency=draw(st.sampled_from([0.0, 0.3])), gradient=1.0, speeds=draw(SPREADS),
                stragglers=draw(SPREADS))  # fmt: skip
    extra = 1.5 if "deadline" in mode else 1.0
    work = Work(link=link, mode=Mode.parse(mode), oversample=draw(st.sampled_from([1.0, extra])),
                availability=Availability.parse(draw(AVAILABILITIES)))  # fmt: skip
    rounds = draw(st.integers(1, 25))
    return make_timeline(federation, Schedule.every(K, steps=K * rounds), work), federation, work


@settings(max_examples=150, derandomize=True, deadline=None)
@given(timelines())
def test_whatever_the_mode(found) -> None:
    line, federation, work = found
    frame = line.to_frame()
    # Nobody works twice at a time.
    for _, mine in frame.groupby("client"):
        assert (mine["begun"].to_numpy()[1:] >= mine["ended"].to_numpy()[:-1] - 1e-9).all()
    # Time passes, and no version comes from the future.
    assert (np.diff(line.times) >= 0).all()
    arrived = frame[~frame["lost"]]
    assert (arrived["staleness"] >= 0).all()
    assert (line.times[line.version] <= line.begun).all()
    if (line.version < line.schedule.rounds).all():
        assert (line.begun <= line.times[line.version + 1]).all()
    ended = line.update >= 0
    assert (line.ended[ended] <= line.times[line.update[ended] + 1]).all()
    # Lost work is lost because of its client, the deadline, or the end of the run.
    updates, taken = list(line.updates()), 0
    assert len(updates) == line.schedule.rounds
    for update in updates:
        taken += len(update.members)
        assert (np.diff(update.members) >= 0).all()
        assert (update.steps > 0).all()
        if work.mode.kind == "buffer":
            assert len(update.members) == work.mode.number
        else:
            assert (update.staleness == 0).all()
            assert len(update.members) <= federation.taking_part
        # The weights of a step are those of its members, and its share their sum.
        if len(update.members):
            weights, share = federation.weights(update.members), federation.share(update.members)
            sizes = np.arange(1, M + 1) / len(OWNERS)
            p = sizes if federation.weighting == "examples" else np.full(M, 1 / M)
            np.testing.assert_allclose(weights * share, p[update.members], rtol=1e-12)
            assert sum(map(len, update.passes())) == len(update.members)
            for some in update.passes():
                assert len({*update.members[some].tolist()}) == len(some)
    assert taken == len(arrived)
    # At most so many are at work at once as there are places.
    if work.mode.kind == "buffer":
        events = pd.concat([frame["begun"], frame["ended"]]).to_numpy()
        change = np.repeat([1, -1], len(frame))
        order = np.lexsort((change, events))
        assert np.cumsum(change[order]).max() <= federation.taking_part
    # Work that arrives was done by a client that was there all the time.
    here = work.availability.for_seed(federation.seed)
    some = np.flatnonzero(ended)
    leaves = here.leaves(line.client[some], line.begun[some], line.ended[some])
    assert (leaves == line.ended[some]).all()


@settings(max_examples=40, derandomize=True, deadline=None)
@given(timelines(), st.integers(0, 5))
def test_draws_are_never_the_same_twice(found, again) -> None:
    line, federation, work = found
    seen: set[tuple[int, int]] = set()
    for update in line.updates():
        firsts = np.broadcast_to(
            federation.first_steps(update.members, update.draws), len(update.members)
        )
        for m, first, steps in zip(update.members, firsts, update.steps, strict=True):
            own = {(int(m), int(first) + k) for k in range(steps)}
            assert not own & seen
            seen |= own
    once_more = make_timeline(federation, line.schedule, work)
    assert (once_more.times == line.times).all()
    assert (once_more.client == line.client).all()


def test_short_periods_and_rare_clients_take_no_time_to_look_up() -> None:
    everyone = np.arange(3)
    # A period of a microsecond: a work of ten seconds has ten million of them.
    short = Availability.parse("share(0.99999999, 1us)").for_seed(1)
    ends = short.leaves(everyone, np.zeros(3, np.int64), 10**10)
    assert (ends % 1000 == 0).all()
    for m, end in zip(everyone, ends.tolist(), strict=True):
        assert end == 10**10 or not short.are_here(everyone[m : m + 1], end)[0]
        assert short.leaves(everyone[m : m + 1], np.zeros(1, np.int64), end)[0] == end
    rare = Availability.parse("share(1e-6)").for_seed(1)
    back = rare.returns(everyone, 0)
    assert back is not None
    assert back > 0
    assert rare.are_here(everyone, back).any()
    assert not rare.are_here(everyone, back - 1).any()


@pytest.mark.parametrize("seed", range(5))
def test_a_table_is_looked_up_as_written(seed) -> None:
    rng = np.random.default_rng(seed)
    drawn = zip(
        rng.integers(0, 9, 40), rng.integers(0, 50, 40), rng.integers(1, 9, 40), strict=True
    )
    rows = [(int(m), float(a), float(a + b)) for m, a, b in drawn]
    table = Availability.parse(rows)
    clients = np.repeat(np.arange(10), 60)
    seconds = np.tile(np.arange(60), 10)
    here = [any(m == c and a <= t < b for c, a, b in rows)
            for m, t in zip(clients, seconds, strict=True)]  # fmt: skip
    starts = seconds * 10**9
    assert ((table.leaves(clients, starts, starts + 1) > starts) == here).all()


@pytest.mark.slow
def test_a_run_whose_works_are_all_lost_ends_early() -> None:
    federation = Federation(M=5, n=5, seed=1)
    work = Work(link=Link(gradient=1.0), mode=Mode("buffer", 5),
                availability=Availability.parse("share(0.5, 1s)"))  # fmt: skip
    with pytest.raises(InputError, match="fewer than 1 work in 1000"):
        # 5,000,000 messages are wanted: the error does not wait for as many lost works.
        make_timeline(federation, Schedule.every(30, steps=30 * 10**6), work)


def test_lasting_speeds_of_each_client() -> None:
    link = Link(gradient=1.0, speeds="lognormal(1)")
    factors = link.factors(1, 100_000)
    # Standard errors of mean and deviation are 0.0032 and 0.0022: beyond 6 of them once in 10^8.
    assert np.log(factors).mean() == pytest.approx(0, abs=0.02)
    assert np.log(factors).std() == pytest.approx(1, abs=0.014)
    assert (link.factors(1, 10) == factors[:10]).all()
    assert str(Link(gradient=1.0, speeds=[1, 2.5])).endswith("speeds=[1, 2.5]")
    assert Link.parse("wan speeds=lognormal(1)").speeds == "lognormal(1)"
    for bad in ([1, 0], [1, -2], "lognormal(-1)", "normal(1)"):
        with pytest.raises(InputError):
            Link(gradient=1.0, speeds=bad)
