"""Several seeds as one number and a band around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedac.errors import look_up

CONFIDENCE = 0.95
PREDICTED = 0.90


class Band(NamedTuple):
    """The middle of some values, and from where to where they spread."""

    middle: float
    low: float
    high: float


class Spread(NamedTuple):
    """A way to summarize seeds, and what its two parts are called."""

    summarize: Callable[[Sequence[float]], Band]
    middle: str
    band: str


def over_seeds(values: Iterable[float], band: str = "range") -> Band:
    """Summarize the results of several seeds; a diverged one is infinite, a missing one NaN.

    ``"range"``, median, smallest and largest; ``"quartiles"``, median and quartiles;
    ``"confidence"``, mean and the 95% confidence interval of Student's t.

    Examples
    --------
    >>> over_seeds([1.0, 2.0, 6.0])
    Band(middle=2.0, low=1.0, high=6.0)
    >>> over_seeds([1.0, 2.0, 6.0], "quartiles")
    Band(middle=2.0, low=1.5, high=4.0)
    """
    numbers = [float(value) for value in values]
    if any(map(math.isnan, numbers)):
        return Band(math.nan, math.nan, math.nan)
    return find_spread(band).summarize(numbers)


def predict(values: Iterable[float], *, slack: float = 0.0) -> Band:
    """Return the geometric mean, and where that of as many further seeds will be.

    It will be there with a probability of 90%, if logarithms are normal (Student's t). `slack` is
    how far off values may be, as a share; an infinite value makes all infinite.

    Examples
    --------
    >>> band = predict([1.0, 2.0, 4.0])
    >>> round(band.middle, 6), round(band.low, 3), round(band.high, 3)
    (2.0, 0.383, 10.441)
    """
    numbers = [float(value) for value in values]
    if math.inf in numbers:
        return Band(math.inf, math.inf, math.inf)
    if min(numbers) <= 0:  # a target that is reached at the start
        return Band(min(numbers), min(numbers), max(numbers))
    n, logs = len(numbers), np.log(numbers)
    # The mean of these seeds and that of others both vary: twice the variance of one mean.
    half = stdtrit(n - 1, (1 + PREDICTED) / 2) * np.std(logs, ddof=1) * math.sqrt(2 / n)
    half += math.log1p(slack)
    middle = math.exp(float(logs.mean())) if len(set(numbers)) > 1 else numbers[0]
    return Band(middle, middle * math.exp(-float(half)), middle * math.exp(float(half)))


def predict_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Band:
    """Return how many times theirs ours are, seed by seed, and where as many further seeds will be.

    Both are of the same seeds, so what a seed does to both cancels.

    Examples
    --------
    >>> band = predict_ratio([2.0, 4.4, 8.0], [1.0, 2.0, 4.0])
    >>> [round(value, 2) for value in band]
    [2.06, 1.81, 2.35]
    """
    return predict([one / other for one, other in zip(ours, theirs, strict=True)])


def band_text(band: tuple[float, float, float], write: Callable[[float], str]) -> str:
    """Write a middle, and in brackets from where to where, unless all is the same.

    Examples
    --------
    >>> band_text(Band(2.0, 1.0, 6.0), "{:g}".format)
    '2 (1 to 6)'
    >>> band_text(Band(2.0, 2.0, 2.0), "{:g}".format)
    '2'
    """
    middle, low, high = map(write, band)
    return middle if low == high else f"{middle} ({low} to {high})"


def find_spread(band: str) -> Spread:
    """Return a way to summarize seeds by its name."""
    return look_up("band", band, SPREADS)


def _range(values: Sequence[float]) -> Band:
    return Band(_quantile(values, 0.5), min(values), max(values))


def _quartiles(values: Sequence[float]) -> Band:
    return Band(*(_quantile(values, q) for q in (0.5, 0.25, 0.75)))


def _confidence(values: Sequence[float]) -> Band:
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1 or math.isinf(mean):  # one seed says nothing about the others
        return Band(mean, mean, mean)
    half = stdtrit(n - 1, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / math.sqrt(n)
    return Band(mean, float(mean - half), float(mean + half))


def _quantile(values: Sequence[float], q: float) -> float:
    """Return a quantile, interpolated; NumPy's is NaN beside infinity."""
    place = q * (len(values) - 1)
    ordered = sorted(values)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    share = place % 1
    return below if below == above or not share else below + share * (above - below)


SPREADS = {
    "range": Spread(_range, "median", "range"),
    "quartiles": Spread(_quartiles, "median", "quartiles"),
    "confidence": Spread(_confidence, "mean", f"{CONFIDENCE:.0%} confidence interval"),
}
