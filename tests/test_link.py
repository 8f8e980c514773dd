"""Seconds by a link, against computations by hand."""

import math

import numpy as np
import pytest

from fedac import Link, LogisticRegression, load, simulate
from fedac.errors import InputError
from fedac.link import LINKS, slowest
from fedac.sampling import participants


def test_seconds_by_hand() -> None:
    link = Link.parse("latency=50ms up=20Mbit down=100Mbit gradient=2ms")
    # A model of 1000 numbers: 4000 bytes are 32,000 bits.
    expected = 0.05 + 32_000 / 20e6 + 32_000 / 100e6 + 16 * 0.002
    assert link.round_seconds(up=4000, down=4000, steps=16) == pytest.approx(expected, rel=1e-15)
    after = link.elapsed(up=4000, down=4000, gaps=[16] * 10)
    assert after == pytest.approx(expected * np.arange(11), rel=1e-14)
    uneven = link.elapsed(up=0, down=0, gaps=[1, 5, 2])
    assert uneven == pytest.approx([0, 0.052, 0.112, 0.166], rel=1e-14)


def test_a_run_on_a_link_by_hand() -> None:
    data = load("synthetic")
    F = LogisticRegression(data.X, data.y, l2=1e-2)
    link = Link(latency=0.1, up=8e3, down=16e3, gradient=0.25)
    for wire, bytes_up in (("float32", 4), ("bfloat16", 2)):
        result = simulate(F, ["fedavg", "fedac-i", "mb-ac-sgd"], M=3, K=4, T=12, eta=0.1,
                          wire=wire, record_every=4, engine="reference")  # fmt: skip
        for run, vectors in zip(result.runs, (1, 2, 1), strict=True):
            up, down = vectors * F.dim * bytes_up, vectors * F.dim * 4
            a_round = 0.1 + up * 8 / 8e3 + down * 8 / 16e3 + 4 * 0.25
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
    for link in (*LINKS.values(), Link.parse("up=1.5MB/s down=300kbit")):
        text = str(link)
        if "unlimited" not in text:
            assert Link.parse(text) == link
    assert str(LINKS["home"]).startswith("latency=30ms up=20Mbit down=100Mbit gradient=10ms")
    assert Link.parse("up=1MB/s").up == 8e6


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "a link is datacenter, wan, home, phone, or numbers"),
        ("wam", "unknown link 'wam'; did you mean 'wan'"),
        ("latency=50", r"latency is a number with a unit \(s, ms, us\), such as latency=50ms"),
        ("latency=fast", "got 'fast'"),
        ("up=20ms", "up is a number with a unit"),
        ("up=0Mbit", "up .bits per second. must be a finite number above 0"),
        ("latency=-5ms", "latency .seconds. must be a finite number, at least 0"),
        ("speed=3Mbit", "unknown part of a link 'speed'"),
        ("up=1Mbit up=2Mbit", "gives up twice"),
        ("stragglers=normal(1)", "stragglers must be lognormal"),
        ("stragglers=lognormal(-1)", "stragglers must be lognormal"),
    ],
)
def test_bad_links(text, error) -> None:
    with pytest.raises(InputError, match=error):
        Link.parse(text)
