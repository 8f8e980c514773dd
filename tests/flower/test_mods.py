# SPDX-License-Identifier: Apache-2.0
"""Flower's modifiers on clients of ours, with the wrappers they belong to."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.clientapp import mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
)

from fedac.flower import InProcessGrid, QuorumError, client_app


def fixed(strategy, norm):
    return DifferentialPrivacyClientSideFixedClipping(
        strategy, noise_multiplier=0.0, clipping_norm=norm, num_sampled_clients=8
    )


def adaptive(strategy, norm):
    return DifferentialPrivacyClientSideAdaptiveClipping(
        strategy,
        noise_multiplier=0.0,
        num_sampled_clients=8,
        initial_clipping_norm=norm,
        clipped_count_stddev=0.0,
    )


def run(federation, mods, wrap=None, norm=1e9, rounds=2, **options):
    app = client_app(lambda context: federation.F, federation.Model, mods=mods)
    strategy = federation.strategy(**options)
    wrapper = None if wrap is None else wrap(strategy, norm)
    return strategy.start(
        InProcessGrid(app, 8), federation.initial_arrays(), num_rounds=rounds, wrapper=wrapper
    )


CLIPPING = pytest.mark.parametrize(
    ("modifier", "wrap"), [(mod.fixedclipping_mod, fixed), (mod.adaptiveclipping_mod, adaptive)]
)


@CLIPPING
def test_clipping_on_the_client_with_its_wrapper(federation, vector, modifier, wrap):
    """Evaluations have no arrays to clip, and take place all the same."""
    result, plain = run(federation, [modifier], wrap), federation.run(rounds=2)
    np.testing.assert_allclose(vector(result.arrays), vector(plain.arrays), rtol=1e-12)
    assert len(result.history.metric("loss")) == 2
    assert not result.history.dropped
    near = run(federation, [modifier], wrap, norm=1e-3, rounds=1)
    assert 0 < np.linalg.norm(vector(near.arrays) - federation.w_0) <= 1e-3 * (1 + 1e-9)


@CLIPPING
def test_clipping_without_its_wrapper_is_explained(federation, modifier, wrap):
    with pytest.raises(Exception, match=r"clipping_norm|clipping norm|KEY_CLIPPING"):
        run(federation, [modifier], retries=0)


def test_local_differential_privacy(federation, vector):
    far = mod.LocalDpMod(clipping_norm=1e9, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    result, plain = run(federation, [far]), federation.run(rounds=2)
    np.testing.assert_allclose(vector(result.arrays), vector(plain.arrays), rtol=1e-12)
    assert len(result.history.metric("loss")) == 2
    np.random.seed(0)  # noqa: NPY002 - Flower's noise comes from there
    noisy = mod.LocalDpMod(clipping_norm=1e9, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    moved = vector(run(federation, [noisy]).arrays) - vector(plain.arrays)
    assert np.linalg.norm(moved) > 0.1


def test_modifiers_that_only_watch_see_training_and_evaluation(federation):
    seen = []

    def watch(message, context, call_next):
        seen.append(message.metadata.message_type)
        return call_next(message, context)

    result = run(federation, [mod.message_size_mod, mod.arrays_size_mod, watch], rounds=1)
    assert sorted(seen) == ["evaluate"] * 8 + ["train"] * 8
    assert not result.history.dropped


@CLIPPING
def test_a_wrapper_whose_modifier_is_missing_uses_nobody(federation, modifier, wrap):
    """Otherwise nothing would clip, and the noise would protect nobody."""
    name = modifier.__name__
    with pytest.raises(QuorumError, match=f"does the client have Flower's {name}"):
        run(federation, [], wrap, norm=1e-3, retries=0)
