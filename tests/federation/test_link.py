# SPDX-License-Identifier: Apache-2.0
"""Seconds by a link, against computations by hand."""

import math

import numpy as np
import pytest

from fedac import Link, LogisticRegression, load, simulate
from fedac.errors import InputError
from fedac.federation.link import LINKS, STRAGGLER_STREAM, slowest
from fedac.federation.sampling import GOLDEN, gaussians, mix, participants, worker_key


def test_seconds_by_hand() -> None:
    link = Link.parse("latency=50ms up=20Mbit down=100Mbit gradient=2ms")
    # A model of 1000 numbers: 4000 bytes are 32,000 bits.
    expected = 0.05 + 32_000 / 20e6 + 32_000 / 100e6 + 16 * 0.002
    assert link.round_seconds(up=4000, down=4000, steps=16) == pytest.approx(expected, rel=1e-15)
    after = link.elapsed(up=4000, down=4000, gaps=[16] * 10)
    assert after == pytest.approx(expected * np.arange(11), rel=1e-14)
    uneven = link.elapsed(up=0, down=0, gaps=[1, 5, 2])
    assert uneven == pytest.approx([0, 0.052, 0.112, 0.166], rel=1e-14)


def test_a_step_costs_time_for_every_row_of_its_batch() -> None:
    link = Link(latency=1.0, gradient="2s", row="500ms", stragglers="lognormal(0.5)")
    assert link.round_seconds(up=0, down=0, steps=3, rows=8) == 1 + 3 * (2 + 8 * 0.5)
    assert link.round_seconds(up=0, down=0, steps=3, rows=8, slowest=2.0) == 1 + 2 * 3 * 6
    alike = link.elapsed(up=0, down=0, gaps=[2, 2], rows=8, seed=5, M=50, taking_part=5)
    factors = slowest("lognormal(0.5)", 2, seed=5, M=50, taking_part=5)
    assert np.diff(alike) == pytest.approx(1 + 2 * 6 * factors)
    same = link.elapsed(up=0, down=0, gaps=[2, 2], rows=[8] * 50, seed=5, M=50, taking_part=5)
    assert same.tolist() == alike.tolist()
    with pytest.raises(InputError, match="one number, or one for each of 50 clients; got 3"):
        link.elapsed(up=0, down=0, gaps=[2, 2], rows=[1, 2, 3], M=50)


@pytest.mark.parametrize("taking_part", [2, 5, 6])
@pytest.mark.parametrize("s", [0, 0.7])
def test_the_slowest_of_unequal_clients(s: float, taking_part: int) -> None:
    """By a loop over the members: the slowest has many rows, or a bad round, or both."""
    sizes, seed = [3, 50, 1, 8, 20, 9], 7
    link = Link(latency=0.5, gradient=0.2, row=0.1, stragglers=f"lognormal({s})")
    expected = [0.0]
    for r in range(20):
        durations = []
        for m in participants(seed, r, 6, taking_part):
            with np.errstate(over="ignore"):
                stream = worker_key(np.uint64(seed) ^ STRAGGLER_STREAM, np.array([m], np.uint64))
                ((z,),) = gaussians(mix(stream + np.uint64(r) * GOLDEN), 1)
            durations.append(0.5 + 3 * (0.2 + 0.1 * sizes[m]) * math.exp(s * z))
        expected.append(expected[-1] + max(durations))
    found = link.elapsed(
        up=0, down=0, gaps=[3] * 20, rows=sizes, seed=seed, M=6, taking_part=taking_part
    )
    assert found == pytest.approx(expected, rel=1e-12)


def test_seconds_of_runs_by_batch() -> None:
    """Numbers by hand: three clients of 1, 2 and 3 rows."""
    F = LogisticRegression(np.eye(6), np.array([1, -1, 1, -1, 1, -1]), l2=1e-2)
    link = Link(latency=1.0, gradient=0.5, row=0.25)
    for clients, batch, step in (
        ([0, 1, 1, 2, 2, 2], "full", 0.5 + 3 * 0.25),
        ([0, 1, 1, 2, 2, 2], 4, 0.5 + 4 * 0.25),
        (None, "full", 0.5 + 6 * 0.25),
        (None, 1, 0.5 + 0.25),
    ):
        M = None if clients else 3
        result = simulate(F, "fedavg", M=M, clients=clients, batch=batch, K=2, T=4, eta=0.1)
        assert result.seconds_of(result.runs[0], link)[-1] == pytest.approx(2 * (1 + 2 * step))


def test_a_run_on_a_link_by_hand() -> None:
    data = load("synthetic")
    F = LogisticRegression(data.X, data.y, l2=1e-2)
    link = Link(latency=0.1, up=8e3, down=16e3, gradient=0.25)
    for wire, bytes_up in (("float32", 4), ("bfloat16", 2)):
        result = simulate(F, ["fedavg", "fedac-i", "mb-ac-sgd"], M=3, K=4, T=12, eta=0.1,
                          wire=wire, record_every=4, engine="reference")  # fmt: skip
        for run, vectors in zip(result.runs, (1, 2, 1), strict=True):
            up, down = vectors * F.dim * bytes_up, vectors * F.dim * 4
            steps = 1 if run.minibatch else 4  # its samples are one batch
            a_round = 0.1 + up * 8 / 8e3 + down * 8 / 16e3 + steps * 0.25
            assert result.seconds_of(run, link) == pytest.approx(a_round * np.arange(4))
            assert result.megabytes_of(run) == pytest.approx((up + down) / 1e6 * np.arange(4))


def test_the_slowest_of_those_who_take_part() -> None:
    """By hand for one round: the largest factor among the members only."""
    everybody = [
        slowest("lognormal(0.5)", 3, seed=5, M=1, taking_part=1),
        slowest("lognormal(0.5)", 3, seed=5, M=50, taking_part=50),
        slowest("lognormal(0.5)", 3, seed=5, M=50, taking_part=5),
    ]
    alone, all_of_them, some = everybody
    assert (all_of_them >= alone).all()  # client 0 is among them
    assert (all_of_them >= some).all()
    assert (some < all_of_them).any()
    twice = slowest("lognormal(1)", 3, seed=5, M=50, taking_part=5)
    assert twice == pytest.approx(some**2)
    assert len(participants(5, 0, 50, 5)) == 5
    link = Link(gradient=1.0, stragglers="lognormal(0.5)")
    after = link.elapsed(up=0, down=0, gaps=[2, 2, 2], seed=5, M=50, taking_part=5)
    assert np.diff(after) == pytest.approx(2 * some)


def test_stragglers_are_log_normal() -> None:
    # 5,000 draws: mean and standard deviation within 5 of their errors, 1.2e-6 to fail.
    logs = np.log(slowest("lognormal(0.5)", 5_000, seed=1, M=1, taking_part=1))
    assert abs(logs.mean()) < 5 * 0.5 / math.sqrt(5_000)
    assert abs(logs.std() - 0.5) < 5 * 0.5 / math.sqrt(10_000)


def test_a_link_reads_what_it_writes() -> None:
    for link in (
        *LINKS.values(),
        Link.parse("up=1.5MB/s down=300kbit"),
        Link.parse("latency=1.1ms row=0.3us"),
        Link(gradient=1.0, speeds=[1, 2.5, 4]),
    ):
        text = str(link)
        if "unlimited" not in text:
            assert Link.parse(text) == link
    assert str(LINKS["home"]).startswith("latency=30ms up=20Mbit down=100Mbit gradient=10ms")
    assert Link.parse("up=1MB/s").up == 8e6
    assert Link.parse("wan row=20us") == Link.parse("wan")
    assert Link(row="30us").in_words().endswith("; a local step takes 0 s plus 30 us per row")
    assert "row" not in str(Link(latency=1.0)) + Link(latency=1.0).in_words()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "a link is datacenter, wan, home, phone, or numbers"),
        ("wam", "unknown link 'wam'; did you mean 'wan'"),
        ("latency=50", r"latency is a number with a unit \(s, ms, us\), such as 50ms"),
        ("latency=fast", "got 'fast'"),
        ("up=20ms", "up is a number with a unit"),
        ("up=0Mbit", "up .bits per second. must be a finite number above 0"),
        ("row=20", r"row is a number with a unit \(s, ms, us\), such as 50ms"),
        ("row=2e2e2us", "got '2e2e2us'"),
        ("row=-5us", "row .seconds. must be a finite number, at least 0"),
        ("latency=-5ms", "latency .seconds. must be a finite number, at least 0"),
        ("speed=3Mbit", "unknown part of a link 'speed'"),
        ("up=1Mbit up=2Mbit", "gives up twice"),
        ("stragglers=normal(1)", "stragglers must be lognormal"),
        ("stragglers=lognormal(-1)", "stragglers must be lognormal"),
        ("home speeds=1,1,4", r"or a number per client, such as \[1, 1, 4\]; got '1'"),
        ("speeds=[1,fast]", r"a number per client, such as \[1, 1, 4\], got '\[1,fast\]'"),
        ("speeds=[1,0]", "a client's speed must be a finite number above 0"),
    ],
)
def test_bad_links(text, error) -> None:
    with pytest.raises(InputError, match=error):
        Link.parse(text)
