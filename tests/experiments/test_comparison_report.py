# SPDX-License-Identifier: Apache-2.0
"""What the report of a comparison holds."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from fedac.experiments.comparison.report import page_data, render_report, write_report

FAST, SLOW = ("fedac-i", 8, "float32"), ("fedavg", 8, "float32")
# After 0, 1, 2 and 3 rounds, on two seeds.
REACHED = {
    FAST: [[1.0, 0.1, 0.01, 0.01], [1.0, 0.4, 0.04, 0.01]],
    SLOW: [[1.0, 0.5, 0.2, 0.04], [1.0, 0.5, 0.2, 0.04]],
}
NOT_REACHED = {FAST: [[1.0, 0.2, 0.1], [1.0, 0.4, 0.04]], SLOW: [[1.0, 0.5, 0.2], [1.0, 0.5, 0.2]]}


def test_a_line_is_the_geometric_mean_and_the_range_of_the_seeds(made_up):
    page = page_data(made_up(REACHED))
    rows = page["rows"]
    assert page["records"] == [0, 1, 2, 3]
    assert rows["method"] == rows["line"] == ["FedAc-I", "FedAvg"]
    assert rows["middle"][0] == [1.0, 0.2, 0.02, 0.01]  # roots of 1 * 1, 0.1 * 0.4, ...
    assert rows["low"][0] == [1.0, 0.1, 0.01, 0.01]
    assert rows["high"][0] == [1.0, 0.4, 0.04, 0.01]
    assert rows["elapsed"][0] == [0.0, 3.0, 6.0, 9.0]  # the mean of 2 and 4 seconds
    assert rows["megabytes_per_round"] == [0.5, 0.5]


def test_a_row_has_the_cost_of_the_target_with_its_interval(made_up):
    page = page_data(made_up(REACHED))
    rounds, megabytes, seconds = (
        page["rows"][name][0] for name in ("rounds", "megabytes", "seconds")
    )
    # Both seeds reach 0.05 in round 2; half a round of slack is a quarter of it.
    assert rounds == [2.0, 1.6, 2.5]
    assert megabytes == [1.0, 0.8, 1.25]
    assert seconds[0] == pytest.approx(math.sqrt(4 * 8), rel=1e-5)
    assert seconds[1] < 4
    assert seconds[2] > 8
    # Within 4 seconds: two rounds of the first seed, one of the second.
    assert page["rows"]["suboptimality"][0][0] == pytest.approx(math.sqrt(0.01 * 0.4), rel=1e-5)
    assert page["rows"]["reached"] == [True, True]
    assert page["budget"] == "4 s"


def test_the_winner_the_runner_up_and_who_is_known(made_up):
    others = {
        ("scaffold", 8, "float32"): [[1.0, 0.5, 0.1, 0.04], [1.0, 0.5, 0.2, 0.04]],
        ("fedavg", 16, "float32"): [[1.0, 0.5, 0.3, 0.2], [1.0, 0.5, 0.3, 0.04]],
    }
    first, second, third, last = page_data(made_up(others | REACHED))["sentences"]
    assert first.startswith(
        "FedAc-I (K = 8, step size 0.5) is the fastest on this link: it reached a suboptimality of "
        "0.05 in 5.66 seconds ("
    )
    assert first.endswith("), 2 rounds (1.6 to 2.5), 1 MB (0.8 to 1.25).")
    # Round 3 instead of round 2 with both seeds: the ratio has no spread.
    assert second.startswith("Runner-up: SCAFFOLD (K = 8, step size 0.5): 8.49 seconds (")
    assert second.endswith("), 1.5 times as long.")
    assert third.startswith("FedAvg (K = 8, step size 0.5): 8.49 seconds (")
    assert last == "K = 8 is the smallest tried: another may be better."


def test_methods_that_seeds_do_not_tell_apart_are_level(made_up):
    level = {("scaffold", 8, "float32"): [[1.0, 0.5, 0.04, 0.04], [1.0, 0.5, 0.2, 0.04]]}
    first, second, third, *_ = page_data(made_up(REACHED | level))["sentences"]
    assert first == "FedAc-I and SCAFFOLD are level: 2 seeds cannot separate them."
    assert second.startswith("FedAc-I (K = 8, step size 0.5): it reached a suboptimality of 0.05")
    assert third.startswith("Runner-up: SCAFFOLD (K = 8, step size 0.5): 6.93 seconds (")
    assert third.endswith(") times as long; level.")


def test_who_wins_in_rounds_or_megabytes_is_said_where_it_is_another(made_up):
    comparison = made_up(REACHED)
    best, other = comparison.rows
    cheaper = replace(other, megabytes=best.megabytes._replace(middle=0.9))
    assert page_data(replace(comparison, rows=(best, cheaper)))["sentences"][-1] == (
        "Fewest megabytes: FedAvg (K = 8, step size 0.5), 0.9 MB (0.8 to 1.25)."
    )


def test_nothing_reached_the_target(made_up):
    page = page_data(made_up(NOT_REACHED))
    nothing, level, closest, runner_up = page["sentences"]
    assert nothing == "No method reached a suboptimality of 0.05 on all seeds in 2 rounds."
    assert level == "FedAc-I and FedAvg are level: 2 seeds cannot separate them."
    assert closest.startswith("FedAc-I (K = 8, step size 0.5): suboptimality 0.2 (")
    assert closest.endswith("; 1 of 2 seeds reached the target.")
    assert runner_up.startswith("Runner-up: FedAvg (K = 8, step size 0.5): suboptimality 0.316 (")
    assert page["rows"]["rounds"] == [[None] * 3] * 2
    assert page["rows"]["seeds_reached"] == [1, 0]


def test_without_a_target_what_was_reached_decides(made_up):
    apart = {FAST: [[1.0, 0.2, 0.1], [1.0, 0.2, 0.1]], SLOW: [[1.0, 0.4, 0.2], [1.0, 0.4, 0.2]]}
    page = page_data(made_up(apart, target=None))
    assert page["target"] is None
    first, second = page["sentences"]
    assert first.startswith("FedAc-I (K = 8, step size 0.5) came closest to the optimum within 4 s")
    assert second.endswith(", 2 times as much.")
    assert page["rows"]["reached"] == [None, None]


def test_a_method_that_diverged_has_no_line(made_up):
    gone = [math.inf] * 4
    page = page_data(made_up({**REACHED, SLOW: [REACHED[SLOW][0], gone]}))
    assert page["rows"]["middle"][1] is None
    assert page["rows"]["suboptimality"][1] == [None] * 3
    assert page["sentences"][1] == "No other method reached it on all seeds."
    assert page["sentences"][2] == "FedAvg (K = 8, step size 0.5): not reached (1 of 2 seeds)."
    page = page_data(made_up({FAST: [gone, gone]}))
    assert page["sentences"] == ["Every method diverged."]
    assert page["records"] == [0]


def test_lines_look_different_and_the_best_are_ticked(made_up):
    names = ("fedac-i", "mb-sgd", "mb-ac-sgd", "fedac-ii", "scaffold", "diloco", "slowmo", "fedavg")
    ends = {name: 0.01 * 1.1**place for place, name in enumerate(names)}
    page = page_data(
        made_up({
            (name, 8, wire): [[1.0, end], [1.0, end]]
            for name, end in ends.items()
            for wire in ("float32", "int8")
        })
    )  # fmt: skip
    lines = page["lines"]
    assert lines["label"][:2] == ["FedAc-I, float32", "FedAc-I, int8"]
    assert len(set(zip(lines["colour"], lines["symbol"], lines["dash"], strict=True))) == 16
    ticked = [
        label for label, is_ticked in zip(lines["label"], lines["ticked"], strict=True) if is_ticked
    ]
    assert ticked == [*lines["label"][:6], "FedAvg, float32"]
    assert set(page["rows"]["wire"]) == {"float32", "int8"}


def test_notes_say_how_it_was_made(made_up):
    notes = dict(page_data(made_up(REACHED, split="label", participation=0.2))["notes"])
    assert notes["data"] == "mine, 3 parameters"
    assert notes["model"] == "2 classes: ill, well; logistic regression"
    assert (notes["clients"], notes["split"]) == ("10", "label")
    assert notes["participation"] == "2 in every round"
    assert notes["link"].startswith("wan: a round trip takes 50 ms")
    assert notes["budget"] == "4 s, the time of the shortest run"
    assert notes["tuning"].startswith("20 settings for each method, K and wire on seed 1")
    assert " again on seeds 4 and 5. " in notes["tuning"]
    assert notes["fresh seeds"].startswith("2, 3: ")
    (edge,) = (text for term, text in notes.items() if "edge" in term)
    assert edge.startswith("FedAvg (K = 8, step size 0.5): largest step size")


def test_names_cannot_break_the_page(made_up, tmp_path):
    hostile = "</script><script>alert('$data')</script>&amp;"
    comparison = made_up(REACHED, dataset=hostile)
    text = write_report(comparison, tmp_path / "report.html").read_text()
    assert text == render_report(comparison), "the same runs give the same bytes"
    assert "&lt;/script&gt;&lt;script&gt;alert(&#x27;$data&#x27;)&lt;/script&gt;&amp;amp;" in text
    assert text.count("<script") == text.count("</script>") == 3
    assert not re.findall(r"""(?:src|href)=["']?(?!data:)[a-z/.]""", text)


def test_a_baseline_with_more_records_is_shown_at_the_records_of_the_others(made_up):
    comparison = made_up(REACHED)
    fast, slow = comparison.rows
    sparse = tuple(
        replace(c, rounds=2 * c.rounds, megabytes=2 * c.megabytes, seconds=2 * c.seconds)
        for c in slow.curves
    )
    rows = (replace(fast, all_clients=True), replace(slow, curves=sparse))
    page = page_data(replace(comparison, rows=rows))
    assert page["records"] == [0, 2, 4, 6]
    assert page["rows"]["middle"][0] == [1.0, 0.02]  # its rounds 0 and 2
    assert page["rows"]["elapsed"][0] == [0.0, 6.0]
