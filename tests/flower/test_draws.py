# SPDX-License-Identifier: Apache-2.0
"""Clients are drawn by their own numbers: a run repeats whatever ids Flower gives to nodes."""

from __future__ import annotations

import logging
import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp

from fedac.errors import InputError
from fedac.federation.sampling import participants
from fedac.flower import InProcessGrid, tell_number

CONFTEST = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
Five = CONFTEST["Five"]


def other_ids(grid: InProcessGrid, seed: int) -> InProcessGrid:
    """Give the nodes of a grid other ids, in another order."""
    ids = np.random.default_rng(seed).permutation(10 * len(grid.configs))[: len(grid.configs)]
    grid.configs = {int(i): c for i, c in zip(ids, grid.configs.values(), strict=True)}
    return grid


def partitions(grid: InProcessGrid) -> list[tuple[int, int]]:
    """Return the rounds and numbers of all clients that were asked, in any order."""
    return sorted((number, grid.configs[node]["partition-id"]) for number, node in grid.asked)


@pytest.mark.parametrize("sample", [3, 0.4])
def test_other_node_ids_draw_the_same_clients(federation, vector, sample):
    grids = [other_ids(federation.grid(), seed) for seed in (1, 2)]
    one, other = (federation.run(rounds=6, grid=grid, sample=sample) for grid in grids)
    assert {node for _, node in grids[0].asked} != {node for _, node in grids[1].asked}
    assert partitions(grids[0]) == partitions(grids[1])
    np.testing.assert_allclose(vector(one.arrays), vector(other.arrays), rtol=1e-12)


@pytest.mark.parametrize("algorithm", ["fedac-i", "scaffold"])
@pytest.mark.parametrize("sample", [2, 0.4])
def test_a_sample_is_the_simulators_participation(algorithm, sample, vector):
    federation = Five(2)
    grid = other_ids(federation.grid(), 3)
    result = federation.run(algorithm, 6, grid=grid, sample=sample, weighting="examples")
    run = federation.simulated(algorithm, 6, participation=sample, weighting="examples")
    np.testing.assert_allclose(vector(result.arrays), run.w, rtol=1e-9, atol=1e-12)
    assert partitions(grid) == [
        (r + 1, m) for r in range(6) for m in participants(CONFTEST["SEED"], r, 5, 2)
    ]


def test_a_resumed_run_with_other_ids_asks_the_same_clients(federation, vector, tmp_path):
    path, grids = tmp_path / "run.npz", [other_ids(federation.grid(), seed) for seed in range(3)]
    whole = federation.run(rounds=6, grid=grids[0], sample=3)
    federation.run(rounds=2, grid=grids[1], sample=3, checkpoint=path)
    resumed = federation.run(rounds=6, grid=grids[2], sample=3, resume_from=path)
    assert sorted(partitions(grids[1]) + partitions(grids[2])) == partitions(grids[0])
    np.testing.assert_allclose(vector(resumed.arrays), vector(whole.arrays), rtol=1e-12)


def test_retries_ask_the_same_clients_too(federation):
    grids = []
    for seed in (1, 2):
        lost = set()

        def answer(reply, node, number, lost=lost):
            key = (number, grids[-1].configs[node]["partition-id"])
            if key[1] % 2 and key not in lost:
                lost.add(key)
                return None
            return reply

        grids.append(other_ids(federation.grid(answer=answer), seed))
        federation.run(rounds=4, grid=grids[-1], sample=4, quorum=4, deadline=0.1, retries=5)
    assert partitions(grids[0]) == partitions(grids[1])
    assert len(grids[0].asked) > 16


def plain_app(federation):
    """Return a ClientApp that trains by fedac, but was not made by `client_app`."""
    ours, app = federation.app(), ClientApp()
    app.train()(lambda message, context: ours(message, context))
    app.evaluate()(lambda message, context: ours(message, context))
    return app


def test_nodes_that_do_not_tell_their_numbers_are_reported(federation, caplog):
    strategy = federation.strategy(sample=3)
    with caplog.at_level(logging.WARNING, logger="flwr.fedac"):
        strategy.start(
            InProcessGrid(plain_app(federation), 8), federation.initial_arrays(), num_rounds=2
        )
    (text,) = [r.message for r in caplog.records if "did not report a client id" in r.message]
    assert text.startswith("8 of 8 nodes")
    assert "call fedac.flower.tell_number(app)" in text
    caplog.clear()
    told = InProcessGrid(tell_number(plain_app(federation)), 8)
    with caplog.at_level(logging.WARNING, logger="flwr.fedac"):
        federation.strategy(sample=3).start(told, federation.initial_arrays(), num_rounds=2)
    assert not caplog.records


def test_without_a_sample_nobody_is_asked_for_a_number(federation):
    questions = []

    class Listening(InProcessGrid):
        def answer(self, message):
            questions.append(message.metadata.message_type)
            return super().answer(message)

    federation.run(rounds=1, grid=Listening(federation.app(), 8), evaluate_every=0)
    assert questions == ["train"] * 8


@pytest.mark.parametrize("sample", [0.0, 1.5, -1, 0, "all", True])
def test_impossible_samples_are_refused(federation, sample):
    with pytest.raises(InputError, match="sample must be"):
        federation.strategy(sample=sample)


def test_all_of_them_is_no_sample(federation, vector):
    scaffnew = federation.strategy("scaffnew", sample=1.0)  # which needs everybody
    assert scaffnew.sample is None
    whole = federation.run(rounds=2)
    np.testing.assert_array_equal(
        vector(federation.run(rounds=2, sample=1.0).arrays), vector(whole.arrays)
    )
    assert isinstance(whole.arrays, ArrayRecord)
