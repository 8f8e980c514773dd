"""Weighted means, and the two ways to weight clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.validate import unknown_name

WEIGHTINGS = ("uniform", "examples")


def require_weighting(weighting: str) -> str:
    """Return a weighting; raise InputError if it is unknown."""
    if weighting not in WEIGHTINGS:
        raise unknown_name("weighting", str(weighting), WEIGHTINGS)
    return weighting


def weighted_mean(
    values: Sequence[npt.ArrayLike], weights: Sequence[float]
) -> npt.NDArray[np.floating[Any]]:
    """Return the weighted mean in the dtype of the values, summed in float64 to avoid overflow."""
    total = sum(weights)
    mean = np.zeros(np.shape(values[0]))
    for value, weight in zip(values, weights, strict=True):
        mean += weight / total * np.asarray(value, np.float64)
    return mean.astype(np.result_type(np.asarray(values[0]).dtype, np.float16))


def mean_by_key(
    mappings: Sequence[Mapping[str, Any]], weights: Sequence[float]
) -> dict[str, npt.NDArray[np.floating[Any]]]:
    """Return the weighted mean for each key, over the mappings that have it.

    >>> means = mean_by_key([{"loss": 1.0}, {"loss": 5.0, "accuracy": 0.5}], [3, 1])
    >>> {key: float(value) for key, value in means.items()}
    {'loss': 2.0, 'accuracy': 0.5}
    """
    means = {}
    for key in dict.fromkeys(key for mapping in mappings for key in mapping):
        having = [i for i, mapping in enumerate(mappings) if key in mapping]
        means[key] = weighted_mean([mappings[i][key] for i in having], [weights[i] for i in having])
    return means
