# SPDX-License-Identifier: Apache-2.0
"""The rules by which runs are compared, with numbers worked out by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from fedac.experiments.summary import (
    edge_note,
    eta_text,
    fewest_note,
    fewest_rounds,
    rounds_text,
    seeds_note,
    summarize,
    tuned,
)

F_STAR = 0.25
STEPS = 64


def run(K=1, suboptimality=0.1, *, eta=0.1, seed=1, algorithm="fedac-i", **other):
    """Return a row of a store; None as the suboptimality is a diverged run."""
    loss = math.nan if suboptimality is None else F_STAR + suboptimality
    row = {
        "dataset": "data",
        "l2": 1e-3,
        "T": STEPS,
        "federation": "",
        "algorithm": algorithm,
        "M": 4,
        "K": K,
    }
    row |= {"eta": eta, "seed": seed, "trained_loss": loss, "f_star": F_STAR}
    return row | other


def best(*runs):
    return tuned(pd.DataFrame(runs))


def rounds(target, *runs):
    (row,) = fewest_rounds(best(*runs), target).itertuples()
    return row


def test_every_cell_and_seed_has_its_own_best_step_size():
    found = best(
        run(1, 0.3, eta=0.1),
        run(1, 0.2, eta=0.5),
        run(1, None, eta=1.0),
        run(1, 0.1, eta=0.1, seed=2),
        run(2, 0.9, eta=0.2),
        run(2, 0.1, eta=0.2, T=32),
    ).sort_values(["K", "T", "seed"])
    assert list(found["eta"]) == [0.5, 0.1, 0.2, 0.2]
    assert list(found["suboptimality"]) == pytest.approx([0.2, 0.1, 0.1, 0.9])


def test_the_best_step_size_at_an_edge_is_said_to_be_so():
    def edge(**suboptimality):
        runs = [run(1, value, eta=float(eta[1:])) for eta, value in suboptimality.items()]
        return best(*runs)["edge"].item()

    assert edge(_1=0.3, _2=0.2, _3=0.3) == ""
    assert edge(_1=0.1, _2=0.2, _3=0.3) == "smallest"
    assert edge(_1=0.3, _2=0.2, _3=0.1) == "largest"
    assert edge(_1=0.3, _2=0.2, _3=None) == "", "the larger one was tried: it diverged"
    assert edge(_1=0.3) == "only one"


def test_a_cell_is_the_median_and_the_range_of_its_seeds():
    (cell,) = summarize(
        best(
            run(1, 0.4, eta=0.1, seed=1),
            run(1, 0.5, eta=0.2, seed=1),
            run(1, 0.2, eta=0.2, seed=2),
            run(1, 0.1, eta=0.2, seed=3),
        )
    ).itertuples()
    assert (cell.low, cell.middle, cell.high) == pytest.approx((0.1, 0.2, 0.4))
    assert (cell.seeds, cell.eta, cell.edge) == (3, 0.2, "largest")


def test_a_cell_may_be_a_mean_with_a_confidence_interval():
    runs = [run(1, value, seed=seed) for seed, value in enumerate((0.1, 0.2, 0.3, 0.6))]
    (cell,) = summarize(best(*runs), "confidence").itertuples()
    half = 3.182446305284263 * math.sqrt(0.14 / 3) / 2
    assert (cell.middle, cell.low, cell.high) == pytest.approx((0.3, 0.3 - half, 0.3 + half))
    (cell,) = summarize(best(*runs), "quartiles").itertuples()
    assert (cell.middle, cell.low, cell.high) == pytest.approx((0.25, 0.175, 0.375))


def test_the_accuracy_of_a_cell_is_that_of_its_best_runs():
    runs = [run(1, 0.1, eta=0.1, seed=seed, test_accuracy=0.7 + seed / 10) for seed in (0, 1, 2)]
    worse = [run(1, 0.2, eta=0.2, seed=seed, test_accuracy=0.1) for seed in (0, 1, 2)]
    (cell,) = summarize(best(*runs, *worse)).itertuples()
    accuracy = (cell.accuracy, cell.accuracy_low, cell.accuracy_high)
    assert accuracy == pytest.approx((0.8, 0.7, 0.9))
    (cell,) = summarize(best(run(1, test_accuracy=math.nan))).itertuples()
    assert math.isnan(cell.accuracy)


def test_federations_are_cells_of_their_own():
    found = best(run(1, 0.2), run(1, 0.1, eta=0.5, federation="split label"))
    assert list(found["edge"]) == ["only one", "only one"]
    cells = summarize(found).set_index("federation")["middle"]
    assert cells.to_dict() == pytest.approx({"": 0.2, "split label": 0.1})
    rounds = fewest_rounds(found, 0.15).set_index("federation")["rounds"]
    assert rounds.to_dict() == {"": math.inf, "split label": 64}


def test_the_note_on_seeds():
    one, three = best(run(1)), best(*(run(1, seed=seed) for seed in (1, 2, 3)))
    assert seeds_note(summarize(one)) == ""
    assert seeds_note(summarize(three)) == "Lines: median of 3 seeds; bands: range."


def test_a_seed_whose_runs_all_diverged_counts_as_infinite():
    found = best(run(1, 0.1, seed=1), run(1, None, seed=2), run(1, None, seed=3))
    (cell,) = summarize(found).itertuples()
    assert (cell.low, cell.middle, cell.high) == (pytest.approx(0.1), math.inf, math.inf)
    assert (cell.eta, cell.seeds) == (0.1, 3)
    (cell,) = summarize(best(run(1, None))).itertuples()
    assert math.isnan(cell.eta)
    assert (cell.middle, cell.edge) == (math.inf, "")


def test_fewest_rounds_of_one_seed():
    row = rounds(0.5, run(1, 0.125), run(2, 0.5), run(4, 0.5 + 2**-40))
    assert (row.rounds, row.K, row.middle) == (32, 2, 0.5)


def test_a_target_is_reached_exactly_or_not_at_all():
    row = rounds(0.5, run(1, 0.5 + 2**-40))
    assert rounds_text(row) == "not reached"
    assert math.isnan(row.eta)


def test_diverged_runs_reach_nothing():
    row = rounds(1e3, run(1, None), run(2, None))
    assert rounds_text(row) == "not reached"


def test_rounds_over_seeds():
    fast = [run(K, 1e-4, seed=seed) for K, seed in [(8, 1), (4, 2), (4, 3)]]
    row = rounds(1e-3, *fast)
    assert rounds_text(row) == "16 (8 to 16)"
    assert (row.K, row.seeds) == (4, 3)
    # Of an even number of seeds the upper median: 16 rounds, which two of them needed.
    assert rounds_text(rounds(1e-3, *fast, run(8, 1e-4, seed=4))) == "16 (8 to 16)"
    slow = [run(1, 1.0, seed=seed) for seed in (4, 5, 6)]
    assert rounds_text(rounds(1e-3, *fast, *slow[:1])) == "16 (8 to not reached)"
    assert rounds_text(rounds(1e-3, *fast, *slow)) == "not reached (8 to not reached)"


def test_rounds_at_the_edge_of_the_grid_say_so():
    # With 16 rounds nothing was tried that needs fewer; with 32, 16 rounds were not enough.
    at_edge, inside = ([run(2, 0.1), run(4, final)] for final in (0.1, 1.0))
    assert rounds_text(rounds(0.5, *at_edge)) == "16, fewest tried"
    assert rounds_text(rounds(0.5, *inside)) == "32"
    assert fewest_note(fewest_rounds(best(*at_edge), 0.5)).startswith("Fewest tried: a larger K")
    assert fewest_note(fewest_rounds(best(*inside), 0.5)) == ""
    # Another number of workers is another grid.
    other = fewest_rounds(best(*inside, run(4, 0.1, M=8)), 0.5)
    assert other.set_index("M")["text"].to_dict() == {4: "32", 8: "16, fewest tried"}


def test_fewest_rounds_of_several_curves():
    found = fewest_rounds(
        best(run(1), run(1, algorithm="fedavg"), run(2, algorithm="fedavg"), run(2, M=8)), 0.1
    )
    by_curve = found.set_index(["algorithm", "M"])["rounds"].to_dict()
    assert by_curve == {("fedac-i", 4): 64, ("fedac-i", 8): 32, ("fedavg", 4): 32}


def test_no_runs():
    empty = best(run())[:0]
    assert fewest_rounds(empty, 1.0).empty
    assert edge_note(summarize(empty)) == ""


def test_the_note_on_edges_counts_cells():
    cells = summarize(best(run(1, eta=0.1), run(2, 0.1, eta=0.1), run(2, 0.2, eta=0.2)))
    assert edge_note(cells) == (
        "Best step size at an edge of those tried in 2 of 2 cells: "
        "the only one in 1, the smallest in 1."
    )
    assert [eta_text(cell) for cell in cells.itertuples()] == [
        "0.1 (only one tried)",
        "0.1 (smallest tried)",
    ]
