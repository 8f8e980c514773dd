# SPDX-License-Identifier: Apache-2.0
"""Options and inputs that are refused before any node is asked."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from dataclasses import replace
from functools import partial

from flwr.app import ArrayRecord

from fedac.algorithms import FEDAVG, MB_SGD
from fedac.errors import InputError, NotAcceleratedWarning
from fedac.flower import Aggregation, FedAc, InProcessGrid, LocalStrategy, client_app

CLIPPED = replace(
    FEDAVG,
    name="clipped",
    update=lambda state, w_md, g, hp: (w_md - hp.eta * np.clip(g, -1, 1),),
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fedac-3"}, "unknown algorithm 'fedac-3'"),
        ({"eta": -1.0}, "eta must be"),
        ({"local_steps": 0}, "local_steps must be"),
        ({"quorum": 9}, "quorum=9, but a round may ask only 8"),
        ({"quorum": 3, "sample": 2}, "quorum=3, but a round may ask only 2"),
        ({"weighting": "size"}, "unknown weighting"),
        ({"aggregation": "mode"}, "unknown aggregation"),
        ({"aggregation": "median", "weighting": "examples"}, "has no weights"),
        ({"aggregation": "trimmed-mean", "trim": 0.5}, "trim must be above 0 and below 1/2"),
        ({"aggregation": "trimmed-mean", "trim": "0.2"}, "trim must be a finite number"),
        ({"aggregation": "trimmed-mean"}, r"would drop no reply .* needs a trim of at least 0\.2$"),
        (
            {"aggregation": "trimmed-mean", "quorum": 2},
            "quorum of 2; it needs a quorum of at least 3",
        ),
        ({"aggregation": "median", "quorum": 2}, "'median' of 2 good replies is the plain mean"),
        (
            {"aggregation": "median", "mode": "buffer(1)"},
            "'median' of 1 good reply is the plain mean; .* a buffer",
        ),
        ({"aggregation": "clipped-mean", "clip_norm": 0.0}, "clip_norm must be"),
        ({"aggregation": "clipped-mean", "weighting": "examples"}, "has no weights"),
        ({"trim": 0.2}, "trim is for 'trimmed-mean', not for 'mean'"),
        ({"clip_norm": 1.0}, "clip_norm is for 'clipped-mean', not for 'mean'"),
        ({"algorithm": MB_SGD}, "takes no local steps"),
        ({"algorithm": CLIPPED}, "'clipped' is not linear"),
        ({"algorithm": "adamw"}, "'adamw' is not linear in its state and gradient"),
        ({"algorithm": "dualavg"}, r"'dualavg\(0.001\)' is not linear in its state and gradient"),
        ({"algorithm": "fedexp", "aggregation": "median"}, "mean of the clients' moves, which a"),
        (
            {"algorithm": "fednova", "aggregation": "clipped-mean"},
            "mean of the clients' steps, which a single bad client can make as large as it likes",
        ),
        ({"algorithm": "feddyn", "aggregation": "median"}, "add up over rounds"),
        ({"deadline": 0.0}, "deadline must be"),
        ({"seed": 2**63}, "seed must be at most"),
    ],
)
def test_impossible_options_are_refused(options, message):
    options = {"eta": 0.5, "mu": 0.5, "local_steps": 4, "min_nodes": 8} | options
    with pytest.raises(InputError, match=message):
        LocalStrategy(options.pop("algorithm", "fedac-i"), **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"initial_arrays": [np.ones(3)]}, "must be an ArrayRecord, got list"),
        ({"timeout": 0}, "timeout must be a finite number above 0"),
        ({"timeout": "3"}, "timeout must be a finite number above 0"),
        ({"evaluate_fn": lambda *_: (1, 2)}, "must return a MetricRecord or None, got tuple"),
        ({"num_rounds": 2.5}, "num_rounds must be a whole number"),
    ],
)
def test_impossible_starts_are_refused_before_any_node_is_asked(federation, given, message):
    grid = federation.grid()
    start = {"grid": grid, "initial_arrays": federation.initial_arrays(), "num_rounds": 2}
    with pytest.raises(InputError, match=message):
        federation.strategy().start(**(start | given))
    assert grid.asked == []


def test_the_suggested_trim_is_accepted():
    for quorum in range(3, 60):
        trim = np.ceil(1000 / quorum) / 1000
        assert Aggregation(rule="trimmed-mean", trim=trim).trimmed(quorum) == 1
        assert Aggregation(rule="trimmed-mean", trim=1 / quorum).trimmed(quorum) == 1


def test_numpy_numbers_can_be_checkpointed(federation, tmp_path):
    path = tmp_path / "run.npz"
    for options in (
        {"aggregation": "clipped-mean", "clip_norm": np.float32(1)},
        {"aggregation": "trimmed-mean", "trim": np.float32(0.3)},
    ):
        federation.run(rounds=1, checkpoint=path, **options)
        federation.run(rounds=2, checkpoint=path, resume_from=path, **options)


def test_a_model_that_is_never_evaluated_needs_no_evaluate(federation):
    class Blind:
        n_examples = 5

        def gradient(self, w, step):
            return w

    app = client_app(lambda context: None, lambda data: Blind())
    strategy = federation.strategy(min_nodes=2, evaluate_every=0)
    result = strategy.start(InProcessGrid(app, 2), federation.initial_arrays(), num_rounds=1)
    assert result.history.rounds[0].good == 2


@pytest.mark.parametrize(
    ("path", "message"), [("", "is a folder"), ("file/run.npz", "cannot be written")]
)
def test_a_checkpoint_that_cannot_be_written_is_refused_at_once(
    federation, tmp_path, path, message
):
    (tmp_path / "file").touch()
    grid = federation.grid()
    with pytest.raises(InputError, match=message):
        federation.run(grid=grid, checkpoint=tmp_path / path)
    assert grid.asked == []


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "nothing to train"),
        ([np.arange(3)], "only floating-point"),
        ([np.array([1.0, np.nan])], "NaN or infinite"),
    ],
)
def test_impossible_models_are_refused(federation, arrays, message):
    with pytest.raises(InputError, match=message):
        federation.strategy().start(federation.grid(), ArrayRecord(arrays), num_rounds=1)


@pytest.mark.parametrize("make", [partial(LocalStrategy, "fedac-i"), FedAc])
def test_fedac_that_is_fedavg_is_announced_once_and_logged(make, caplog) -> None:
    caplog.set_level(logging.WARNING, "flwr.fedac")
    with pytest.warns(NotAcceleratedWarning) as caught:
        make(eta=0.1, mu=0.1, local_steps=128)
    text = (
        "FedAc-I degenerates to FedAvg with eta=0.1, mu=0.1, local_steps=128, because "
        "eta mu local_steps >= 1; to accelerate, use mu < 1/(eta local_steps) = 0.0781"
    )
    assert [str(one.message) for one in caught] == [text]
    assert [record.message for record in caplog.records] == [text]
