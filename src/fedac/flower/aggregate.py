"""From the clients' replies to one state: the mean, and three that resist bad clients.

- **mean** survives no bad client and costs nothing: it is what the theorems are about.
- **median**, of every coordinate, survives just under half of the clients. It needs all replies in
  memory, its noise has pi/2 times the variance of the mean's, and where clients' data differ it is
  not the mean, so the run ends elsewhere.
- **trimmed-mean** leaves out a share `trim` of the replies, rounded down, at either end of every
  coordinate, and survives so many clients. All replies in memory; the median's bias, smaller.
- **clipped-mean** survives none, but lets each move the state by its share of the bound at most.
  One more pass over each reply, for its norm; a bound below the honest clients' slows all down.

Only the mean heeds weights: they are what clients say of themselves.

Every rule is applied to all sequences at once and takes the replies in the order of their
clients' numbers, so that a run does not depend on who answered first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError, unknown_name
from fedac.require import require_nonnegative, require_positive

Array = npt.NDArray[np.generic]
Arrays = Mapping[str, Array]

RULES = ("mean", "median", "trimmed-mean", "clipped-mean")
TRIM = 0.1


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How replies become one.

    Parameters
    ----------
    rule : "mean", "median", "trimmed-mean" or "clipped-mean"
        See the table above.
    trim : float, optional
        Share of the replies that "trimmed-mean" leaves out at either end, below 1/2; 0.1 unless
        given.
    clip_norm : float, optional
        How far "clipped-mean" lets one client move the state; by default as far as the median
        client wants to.

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
        if self.trim is not None:
            if self.rule != "trimmed-mean":
                raise InputError(f"trim is for 'trimmed-mean', not for '{self.rule}'")
            if not 0 < require_nonnegative("trim", self.trim) < 0.5:
                raise InputError(f"trim must be above 0 and below 1/2, got {self.trim!r}")
        if self.clip_norm is not None:
            if self.rule != "clipped-mean":
                raise InputError(f"clip_norm is for 'clipped-mean', not for '{self.rule}'")
            object.__setattr__(self, "clip_norm", require_positive("clip_norm", self.clip_norm))
        if self.rule == "trimmed-mean":
            object.__setattr__(self, "trim", TRIM if self.trim is None else float(self.trim))

    @property
    def weighs(self) -> bool:
        """Whether the rule heeds weights."""
        return self.rule == "mean"

    def left_out(self, replies: int) -> int:
        """Return how many of some replies "trimmed-mean" leaves out at either end."""
        # 1/49 of 49 is one, whatever the rounding.
        return 0 if self.trim is None else math.floor(self.trim * replies + 1e-9)

    def __call__(
        self,
        replies: Sequence[Arrays],
        before: Arrays,
        weights: Sequence[float] | None = None,
    ) -> dict[str, Array]:
        """Return the aggregate of `replies`, which all started from `before`."""
        if not replies:
            raise InputError("nothing to aggregate")
        weights = [1.0] * len(replies) if weights is None else weights
        with np.errstate(over="ignore"):  # see _as_type
            if self.rule == "mean":
                return mean(replies, weights)
            if self.rule == "median":
                return _by_coordinate(replies, lambda stack: np.median(stack, axis=0))
            if self.rule == "trimmed-mean":
                out = self.left_out(len(replies))
                return _by_coordinate(replies, lambda stack: trimmed_mean(stack, out))
            return mean(clipped(replies, before, self.clip_norm), weights)


def mean(replies: Sequence[Arrays], weights: Sequence[float]) -> dict[str, Array]:
    """Return the weighted mean, summed in float64, in the replies' own precision.

    Examples
    --------
    >>> mean([{"w": np.array([1.0])}, {"w": np.array([5.0])}], [3, 1])
    {'w': array([2.])}
    """
    # Divided by the largest first: weights near the largest float must not overflow.
    shares = np.asarray(weights, dtype=np.float64) / max(weights)
    shares = shares / shares.sum()
    result: dict[str, Array] = {}
    for name, like in replies[0].items():
        # Shares first: the sum of convex shares cannot overflow where no reply does.
        total = sum(
            share * reply[name].astype(np.float64)
            for share, reply in zip(shares.tolist(), replies, strict=True)
        )
        result[name] = _as_type(np.asarray(total), like.dtype)
    return result


def trimmed_mean(stack: npt.NDArray[np.float64], out: int) -> npt.NDArray[np.float64]:
    """Return the mean over the first axis without the `out` smallest and largest values.

    Examples
    --------
    >>> trimmed_mean(np.array([[1.0], [2.0], [3.0], [400.0]]), 1)
    array([2.5])
    """
    kept = np.sort(stack, axis=0)[out : len(stack) - out]
    trimmed: npt.NDArray[np.float64] = (kept / len(kept)).sum(axis=0)
    return trimmed


def clipped(
    replies: Sequence[Arrays], before: Arrays, bound: float | None = None
) -> list[dict[str, Array]]:
    """Shorten every reply's way from `before` to at most `bound`, by default the median way.

    A client's sequences are shortened by one factor: they stay the pair they were.

    Examples
    --------
    >>> clipped([{"w": np.array([3.0, 4.0])}], {"w": np.zeros(2)}, bound=1.0)
    [{'w': array([0.6, 0.8])}]
    """
    norms = [_distance(reply, before) for reply in replies]
    limit = 2 * float(np.median(np.array(norms) / 2)) if bound is None else bound
    short = []
    for reply, norm in zip(replies, norms, strict=True):
        factor = 1.0 if norm <= limit else limit / norm
        short.append({name: _between(before[name], reply[name], factor) for name in reply})
    return short


def _between(start: Array, end: Array, factor: float) -> Array:
    """Return the point on the way, written so that huge ends cannot overflow."""
    if factor == 1.0:
        return end
    a, b = start.astype(np.float64), end.astype(np.float64)
    return _as_type(np.asarray((1 - factor) * a + factor * b), end.dtype)


def _distance(reply: Arrays, before: Arrays) -> float:
    """Return the length of a client's way, as large as floats go if it is longer."""
    ways = [
        (reply[name].astype(np.float64) / 2 - before[name].astype(np.float64) / 2).ravel()
        for name in reply
    ]
    largest = max((float(np.abs(way).max(initial=0.0)) for way in ways), default=0.0)
    if largest == 0.0:
        return 0.0
    root = math.sqrt(sum(float(np.sum((way / largest) ** 2)) for way in ways))
    return min(2 * largest * root, float(np.finfo(np.float64).max))


def _by_coordinate(
    replies: Sequence[Arrays],
    rule: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
) -> dict[str, Array]:
    result: dict[str, Array] = {}
    for name, like in replies[0].items():
        # Halved, because a median is the mean of two values whose sum may overflow.
        stack = np.stack([reply[name].astype(np.float64) / 2 for reply in replies])
        result[name] = _as_type(2 * rule(stack), like.dtype)
    return result


def _as_type(value: npt.NDArray[np.float64], dtype: np.dtype[np.generic]) -> Array:
    """Round to a type; what lies between floats but was rounded beyond the largest is that one."""
    largest = float(np.finfo(dtype).max)  # type: ignore[type-var] # all are floats
    return np.asarray(np.clip(value, -largest, largest), dtype)
