# SPDX-License-Identifier: Apache-2.0
"""Aggregate the clients' replies.

The mean, and three rules that resist bad clients:

- **mean**: what the theorems are about. It tolerates no bad client.
- **median** of every coordinate: tolerates just under half of the clients, but is noisier than the
  mean, and if clients' data differs it converges to a different point.
- **trimmed-mean**: drops a share `trim` of the replies, rounded down, at both ends of every
  coordinate, and tolerates the same share of bad clients. It has a smaller bias than the median.
- **clipped-mean**: limits how far one client can move the state. A small bound slows everyone down.

Only the mean takes weights, because clients report their own. Replies are in the order of their
nodes, so a run does not depend on who answered first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedac.errors import InputError
from fedac.federation.round import mean_by_key
from fedac.flower._arrays import NamedArrays, NDArray
from fedac.validate import require_positive, unknown_name

RULES = ("mean", "median", "trimmed-mean", "clipped-mean")
TRIM = 0.1


@dataclass(kw_only=True)
class Aggregation:
    """How to combine replies.

    Parameters
    ----------
    rule : "mean" or "median" or "trimmed-mean" or "clipped-mean"
        The rule; the last three resist bad clients.
    trim : float, optional
        Share of the replies that "trimmed-mean" drops at each end, below 1/2. Default: 0.1.
    clip_norm : float, optional
        How far "clipped-mean" lets one client move the state. Default: the median distance that the
        clients moved.

    Examples
    --------
    >>> replies = [{"w": np.array([1.0])}, {"w": np.array([2.0])}, {"w": np.array([90.0])}]
    >>> for rule in RULES:
    ...     trim = 0.34 if rule == "trimmed-mean" else None
    ...     print(rule, Aggregation(rule=rule, trim=trim)(replies, {"w": np.array([0.0])})["w"])
    mean [31.]
    median [2.]
    trimmed-mean [2.]
    clipped-mean [1.66666667]
    """

    rule: str = "mean"
    trim: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise unknown_name("aggregation", str(self.rule), RULES)
        for option, rule in (("trim", "trimmed-mean"), ("clip_norm", "clipped-mean")):
            value = getattr(self, option)
            if value is not None:
                if self.rule != rule:
                    raise InputError(f"{option} is for '{rule}', not for '{self.rule}'")
                setattr(self, option, require_positive(option, value))
        if self.rule == "trimmed-mean":
            self.trim = TRIM if self.trim is None else self.trim
            if self.trim >= 0.5:
                raise InputError(f"trim must be above 0 and below 1/2, got {self.trim!r}")

    def trimmed(self, replies: int) -> int:
        """Return how many replies "trimmed-mean" drops at each end."""
        # 1/49 of 49 is 1, despite rounding.
        return 0 if self.trim is None else math.floor(self.trim * replies + 1e-9)

    def require_quorum(self, quorum: int) -> None:
        """Reject a rule that would drop no reply of a quorum: it is the plain mean."""
        if self.rule == "median" and quorum < 3:
            raise InputError(
                f"'median' of {quorum} good {'reply' if quorum == 1 else 'replies'} is the plain "
                "mean; it needs a quorum (in asynchronous rounds, a buffer) of at least 3"
            )
        if self.rule == "trimmed-mean" and not self.trimmed(quorum):
            least = math.ceil(1000 / quorum) / 1000
            needed = "a quorum of at least 3" if quorum < 3 else f"a trim of at least {least}"
            raise InputError(
                f"'trimmed-mean' would drop no reply of a quorum of {quorum}; it needs {needed}"
            )

    def __call__(
        self,
        replies: Sequence[NamedArrays],
        before: NamedArrays,
        weights: Sequence[float] | None = None,
    ) -> dict[str, NDArray]:
        """Return the aggregate of `replies`, which all started from `before`."""
        if self.rule in ("median", "trimmed-mean"):
            return {
                name: self._by_coordinate([reply[name] for reply in replies]).astype(array.dtype)
                for name, array in before.items()
            }
        if self.rule == "clipped-mean":
            replies = clip(replies, before, self.clip_norm)
        return mean_by_key(replies, [1.0] * len(replies) if weights is None else weights)

    def _by_coordinate(self, values: Sequence[NDArray]) -> NDArray:
        stack = np.sort(np.stack(values).astype(np.float64), axis=0)
        # The median drops all but the middle one or two.
        dropped = (len(stack) - 1) // 2 if self.rule == "median" else self.trimmed(len(stack))
        mean: NDArray = np.mean(stack[dropped : len(stack) - dropped], axis=0)
        return mean


def clip(
    replies: Sequence[NamedArrays], before: NamedArrays, bound: float | None = None
) -> list[NamedArrays]:
    """Move every reply towards `before`, to a distance of at most `bound`.

    Default: the median distance. All sequences of a client are scaled by one factor.
    """
    norms = [distance(reply, before) for reply in replies]
    limit = float(np.median(norms)) if bound is None else bound
    return [
        reply
        if norm <= limit
        else {
            name: (before[name] + limit / norm * (array - before[name])).astype(array.dtype)
            for name, array in reply.items()
        }
        for reply, norm in zip(replies, norms, strict=True)
    ]


def distance(reply: NamedArrays, before: NamedArrays) -> float:
    """Return how far a client has moved, over all arrays."""
    differences = [reply[name].astype(np.float64) - before[name] for name in reply]
    with np.errstate(over="ignore"):  # a liar may claim any number
        return math.hypot(*(float(np.linalg.norm(difference)) for difference in differences))


def not_finite(sequences: NamedArrays, server: NamedArrays) -> str | None:
    """Describe what is not finite in the server's state, if anything: a number or a length.

    A model whose squared length overflows has no loss.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        for key, array in sequences.items():
            numbers = array.astype(np.result_type(array.dtype, np.float32), copy=False)
            if not np.isfinite(np.vdot(numbers, numbers)):
                return f"the squared length of {key}"
    return next((key for key, array in server.items() if not np.isfinite(array).all()), None)
