# SPDX-License-Identifier: Apache-2.0
"""Clients: names of all kinds, the table, the picture."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fedac.data import Clients, Dataset, split
from fedac.data.splits import as_clients
from fedac.errors import InputError


@pytest.mark.parametrize(
    ("owners", "names", "numbers"),
    [
        ([10, 9, 10, -1], ("-1", "9", "10"), [2, 1, 2, 0]),
        (["10", "9", "10", "a b"], ("10", "9", "a b"), [0, 1, 0, 2]),
        ([2.0, 0.5, 2.0, -3.0], ("-3", "0.5", "2"), [2, 1, 2, 0]),
        ([b"rome", b"\xff", b"rome", "åbo".encode()], ("rome", "åbo", "\\xff"), [0, 2, 0, 1]),
        ([True, False, True, True], ("False", "True"), [1, 0, 1, 1]),
        (np.array([2**63, 1, 2**63, 1], np.uint64), ("1", str(2**63)), [1, 0, 1, 0]),
        (np.array(["b", "a", "b", "ä"], object), ("a", "b", "ä"), [1, 0, 1, 2]),
        (pd.Series(["b", "a", "b", "c"]), ("a", "b", "c"), [1, 0, 1, 2]),
        (pd.Series(["b", "a", "b", "c"], dtype="category"), ("a", "b", "c"), [1, 0, 1, 2]),
        (pd.Series([7, 7, 3, 7]), ("3", "7"), [1, 1, 0, 1]),
    ],
    ids=repr,
)
def test_names_of_all_kinds(owners, names, numbers):
    clients = Clients(owners)
    assert clients.names == names
    assert clients.owners.tolist() == numbers
    assert len(clients) == len(names)
    assert clients.sizes.tolist() == np.bincount(numbers).tolist()


@pytest.mark.parametrize(
    "owners",
    [
        *([], 3, None, "rome", [[1, 2], [3, 4]], [[1], [2, 3]], [1 + 2j], [None, "a"], {"a": 1}),
        pd.Series(["a", None]),
        pd.Series(["a", pd.NA], dtype="string"),
        pd.to_datetime(pd.Series(["2020-01-01"])),
    ],
    ids=repr,
)
def test_what_names_no_clients(owners):
    with pytest.raises(InputError, match="clients must be an array with a name or a number for"):
        Clients(owners)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_every_row_needs_a_client(bad):
    with pytest.raises(InputError, match="clients has NaN or infinite entries: every row needs"):
        Clients([1.0, bad])


def test_labels_are_as_many_as_rows():
    with pytest.raises(InputError, match="3 rows have clients, but 2 have labels"):
        Clients([0, 1, 1], labels=[1, 1])
    with pytest.raises(InputError, match="labels must be an array"):
        Clients([0, 1], labels=[[1], [1]])


def test_as_clients():
    clients = Clients([0, 0, 1])
    three = Dataset("three", np.eye(3), [1.0, -1.0, 1.0])
    assert as_clients(clients, three) is clients
    assert as_clients(["a", "b", "a"], three).names == ("a", "b")
    with pytest.raises(InputError, match="clients hold 4 rows, but three has 3"):
        as_clients([0, 0, 1, 1], three)


def test_the_fingerprint_is_of_who_holds_what():
    prints = [Clients(owners).fingerprint() for owners in ([0, 1, 0], ["a", "b", "a"], [0, 1, 1])]
    assert prints[0] == prints[1] != prints[2]
    assert Clients([0, 1, 0], [1, 2, 3], how="iid").fingerprint() == prints[0]


def test_counts_of_labels():
    clients = Clients([0, 1, 1, 0, 1], labels=[1.0, -1.0, 0.5, 1.0, -1.0])
    counts = clients.count_labels()
    assert {label: rows.tolist() for label, rows in counts.items()} == {
        "-1": [0, 2],
        "0.5": [0, 1],
        "1": [2, 0],
    }
    assert Clients([0, 1]).count_labels() == {}


def test_rare_labels_are_counted_together():
    clients = Clients([0, 1] * 6, labels=list("aaacbbbbcdde"))
    assert list(clients.count_labels(5)) == list("abcde")
    counts = clients.count_labels(3)
    assert list(counts) == ["a", "b", "3 others"]
    assert counts["3 others"].tolist() == [2, 3]
    assert sum(counts.values()).tolist() == clients.sizes.tolist()


def test_repr_is_one_line():
    assert repr(split(np.ones(10), 3, "iid")) == "Clients(3 clients, 10 rows, iid)"


def test_the_table_of_few():
    clients = Clients(["rome", "oslo", "rome", "a\nb", "oslo"], [1.0, 1.0, -1.0, 1.0, 1.0])
    assert str(clients).splitlines() == [
        "3 clients, 5 rows (given)",
        "",
        "                   least  median  most",
        "rows per client        1       2     2",
        "share of label -1     0%      0%   50%",
        "share of label 1     50%    100%  100%",
        "",
        "client  rows  label -1  label 1",
        "a b        1         0        1",
        "oslo       2         0        2",
        "rome       2         1        1",
    ]


def test_the_table_of_many_leaves_out_the_middle():
    labels = np.arange(40_000) % 20
    lines = str(split(labels, 1000, "iid")).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert lines[0] == "1,000 clients, 40,000 rows (iid)"
    shown = [line.split()[0] for line in lines[-14:]]
    assert shown[1:] == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "...",
        "994",
        "995",
        "996",
        "997",
        "998",
        "999",
    ]
    assert "16 others" in lines[-14]


def test_long_names_are_cut_in_the_table():
    lines = str(Clients(["x" * 1000, "y"])).splitlines()
    assert lines[-2] == "x" * 21 + "...     1"


@pytest.fixture
def drawn():
    """Return a function that plots clients, and fails if a text lies outside of the picture."""
    mpl.use("Agg")
    yield _draw
    plt.close("all")


def _draw(clients, ax=None):
    axes = clients.plot(ax)
    figure = axes.figure
    figure.canvas.draw()
    inside = figure.bbox.padded(1)
    for panel in figure.axes:
        box = panel.get_tightbbox()
        assert inside.contains(box.x0, box.y0)
        assert inside.contains(box.x1, box.y1)
    return axes


@pytest.mark.slow
@pytest.mark.parametrize("N", [1, 4, 30, 31, 100, 10_000])
@pytest.mark.parametrize("by", ["iid", "label", "dirichlet(0.1)", "power(1)"])
def test_the_picture_fits(drawn, N, by):
    labels = np.arange(20_000) % 2
    axes = drawn(split(labels, N, by))
    above = axes.figure.axes[1]
    assert above.get_title() == f"{N:,} clients, 20,000 rows ({by})"
    assert axes.get_xlim() == above.get_xlim() == (0, N)
    order = "labels" if by in ("label", "dirichlet(0.1)") else "size"
    assert axes.get_xlabel() == ("client" if N <= 30 else f"clients, sorted by {order}")
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["1", "0", "all rows"]


def test_the_picture_shows_the_shares(drawn):
    axes = drawn(Clients([0, 0, 0, 0, 1, 1, 1, 1], labels=list("aaab" + "abbb")))
    b, a = (patch.get_data().values.tolist() for patch in axes.patches)
    assert a == [0.75, 0.25]
    assert b == [1, 1]


def test_the_picture_has_a_row_panel(drawn):
    axes = drawn(Clients([0, 0, 0, 1], labels=[1, 1, 2, 2]))
    (rows,) = axes.figure.axes[1].patches
    assert rows.get_data().values.tolist() == [3, 1]


def test_columns_of_several_clients_show_means_and_ranges(drawn):
    sizes = np.resize([1, 3], 500)
    clients = Clients(
        np.repeat(np.arange(500), sizes), labels=np.repeat(np.resize([0, 1], 500), sizes)
    )
    axes = drawn(clients)
    above = axes.figure.axes[1]
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["range", "mean"]
    # Sorted by labels: 250 clients with one row of label 0, then 250 with three of label 1.
    means = above.patches[2].get_data().values
    assert means.tolist() == [1] * 125 + [3] * 125


def test_a_picture_without_labels_shows_sizes_only(drawn):
    axes = drawn(Clients(np.repeat(np.arange(40), np.arange(1, 41))))
    assert len(axes.figure.axes) == 1
    assert axes.patches[0].get_data().values.tolist() == list(range(40, 0, -1))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [3, 10, 11, 12, 200])
def test_a_picture_of_many_labels(drawn, kinds):
    axes = drawn(split(np.arange(6000) % kinds, 50, "dirichlet(0.1)"))
    assert len(axes.get_legend().get_texts()) == min(kinds, 11)


def test_odd_names_can_be_drawn(drawn):
    axes = drawn(Clients(["$a_{$", "b\nc", "x" * 100, "%"], labels=["$x^$", "$", "_", "é"]))
    names = [tick.get_text() for tick in axes.get_xticklabels()]
    assert names == ["$a_{$", "%", "b c", "xxxxxxxxx..."]


def test_a_place_among_others(drawn):
    figure, places = plt.subplots(1, 2, layout="constrained", figsize=(9, 4))
    clients = split(np.arange(100) % 2, 40, "label")
    assert drawn(clients, places[0]) is places[0]
    assert len(figure.axes) == 3
    loose = plt.figure().add_axes((0, 0, 1, 1))
    with pytest.raises(InputError, match=r"ax must come from plt.subplots"):
        clients.plot(loose)


@pytest.mark.parametrize("m", [-1, 2, "x"])
def test_numbers_of_clients_that_do_not_exist_are_refused(m):
    with pytest.raises(InputError, match="client"):
        Clients([0, 1]).rows_of(m)
