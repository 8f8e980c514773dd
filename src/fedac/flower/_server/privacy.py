# SPDX-License-Identifier: Apache-2.0
"""Flower strategies that wrap one of ours, such as differential privacy.

Their own `start` is Flower's loop, which has no quorum, retries, checkpoints or sequences. So
`LocalStrategy.start(..., wrapper=private)` drives the round through the wrapper's hooks instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from flwr.supercore.differential_privacy import KEY_NORM_BIT

from fedac.algorithms.algorithm import serve_mean
from fedac.errors import InputError
from fedac.federation.compression import FLOAT32
from fedac.flower._arrays import NamedArrays
from fedac.flower._server.aggregate import distance
from fedac.flower._server.options import Options
from fedac.flower._server.replies import Reply

CLIPS_ON_CLIENT: dict[type, str] = {
    flower.DifferentialPrivacyClientSideFixedClipping: "fixedclipping_mod",
    flower.DifferentialPrivacyClientSideAdaptiveClipping: "adaptiveclipping_mod",
}
PRIVATE = (
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
    *CLIPS_ON_CLIENT,
)
OWN_LOOP = (
    "a strategy of fedac.flower cannot use Flower's own loop, which has no quorum, retries, "
    "checkpoints or history: call strategy.start(grid, arrays, ...) or, with a wrapper such as "
    "differential privacy, strategy.start(grid, arrays, ..., wrapper=private)"
)
SLACK = 1 + 1e-5  # float32 rounds the norm of what was clipped


class Wrappers:
    """The strategies around one of ours, the outermost first; usually there are none."""

    def __init__(self, outermost: object, strategy: Options) -> None:
        inner, self.layers = outermost, list[Any]()
        while inner is not strategy:
            self.layers.append(inner)
            inner = getattr(inner, "strategy", None)
            if not isinstance(inner, Strategy) or len(self.layers) > 100:
                raise InputError(
                    "wrapper must be a strategy around this one, such as "
                    "DifferentialPrivacyServerSideFixedClipping(strategy, ...)"
                )
        if self.layers and strategy.wire != FLOAT32:
            problem = f"with wire='{strategy.wire}' replies are bytes"
            raise InputError(f"{problem}, but a wrapper works on arrays; use wire='float32'")
        self.private: list[Any] = [layer for layer in self.layers if isinstance(layer, PRIVATE)]
        if self.private:
            self._require_private(strategy)

    def _require_private(self, strategy: Options) -> None:
        """Reject options with which Flower's noise would be too small.

        It is made for a uniform mean of num_sampled_clients clipped updates.
        """
        if strategy.algorithm.serve is not serve_mean or strategy.adds_up:
            raise InputError(
                f"'{strategy.algorithm.name}' and differential privacy cannot be combined: Flower "
                "adds its noise after the server's step, which keeps numbers without noise for "
                "later rounds; use an algorithm whose server takes the mean, such as 'fedavg' or "
                "'fedac-i'"
            )
        if strategy.weighting != "uniform" or strategy.aggregation.rule != "mean":
            raise InputError(
                "differential privacy needs weighting='uniform' and aggregation='mean': Flower's "
                "noise is for clients that count the same"
            )
        # Flower divides the noise by num_sampled_clients, but the sum by the number of replies.
        noisy = [layer.num_sampled_clients for layer in self.private if layer.noise_multiplier]
        clients = max(noisy, default=0)
        fewest = strategy.quorum_of(0)
        if clients > fewest:
            raise InputError(
                f"num_sampled_clients={clients}, but a round may have only {fewest} good replies, "
                "for which Flower's noise would be too small; give the wrapper "
                f"num_sampled_clients={fewest}, or the strategy quorum={clients}"
            )

    @property
    def names(self) -> list[str]:
        """Their names, for checkpoints: a private run must not continue without privacy."""
        return [type(layer).__name__ for layer in self.layers]

    @property
    def norms(self) -> list[float | None]:
        """Their clipping norms, which adaptive ones change from round to round."""
        return [getattr(layer, "clipping_norm", None) for layer in self.layers]

    def restore(self, norms: Sequence[float | None]) -> None:
        """Continue with the clipping norms of a checkpoint."""
        for layer, norm in zip(self.layers, norms, strict=True):
            if norm is not None and "Adaptive" in type(layer).__name__:
                layer.clipping_norm = norm

    def problem(self, reply: Reply, before: NamedArrays) -> str | None:
        """Return the reason why a wrapper cannot use a good reply, or None."""
        if not self.private:
            return None
        moved = distance(reply.arrays, before)
        if moved == 0:
            return "it has not moved at all, and Flower's clipping divides by the distance"
        for layer in self.private:
            modifier = CLIPS_ON_CLIENT.get(type(layer))
            if modifier is None:
                continue
            unclipped = moved > layer.clipping_norm * SLACK
            if unclipped or ("adaptive" in modifier and KEY_NORM_BIT not in reply.metrics):
                return (
                    f"it moved by {moved:.3g}, the clipping norm is {layer.clipping_norm:.3g}: "
                    f"does the client have Flower's {modifier}?"
                )
        return None
