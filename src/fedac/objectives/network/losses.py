# SPDX-License-Identifier: Apache-2.0
"""Losses and metrics of networks, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedac.errors import InputError
from fedac.objectives.network.data import first_line
from fedac.validate import look_up

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(output, target)`` returns the mean loss of a batch."""
Metric = Callable[[Tensor, Tensor], float]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of every row."""
    losses = functional.cross_entropy(output, target, reduction="none")
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error of every row, the mean over its outputs."""
    return ((output.reshape(target.shape) - target) ** 2).reshape(len(target), -1).mean(1)


def next_token(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of every sequence, the mean over its tokens."""
    losses = functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
    return losses.view(target.shape).mean(1)


LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "mse": mean_squared_error,
    "next-token": next_token,
}
"""The loss of every row, by name."""


def check_loss(loss: Any) -> None:
    """Raise InputError unless `loss` is a name or can be a function (output, target)."""
    if isinstance(loss, str):
        look_up("loss", loss, LOSSES)
        return
    if isinstance(loss, type):
        raise InputError(f"loss is a class: pass an instance, such as {loss.__name__}()")
    if not callable(loss):
        raise InputError(f"loss must be a name or a function (output, target), got {loss!r:.60}")
    if (reduction := getattr(loss, "reduction", "mean")) != "mean":
        raise InputError(
            f"loss must return the mean over the batch: use reduction='mean', not {reduction!r}"
        )


def _accuracy(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(-1) == target).double().mean())


def _top_5(output: Tensor, target: Tensor) -> float:
    best = output.topk(min(5, output.shape[-1]), dim=-1).indices
    return float((best == target[..., None]).any(-1).double().mean())


def _perplexity(output: Tensor, target: Tensor) -> float:
    losses = functional.cross_entropy(output.flatten(0, -2), target.flatten())
    return math.exp(min(float(losses), 700.0))


def _r2(output: Tensor, target: Tensor) -> float:
    rest = ((output.reshape(target.shape) - target) ** 2).sum()
    total = ((target - target.mean(0)) ** 2).sum()
    return float(1 - rest / total) if float(total) else math.nan


def _mae(output: Tensor, target: Tensor) -> float:
    return float((output.reshape(target.shape) - target).abs().mean())


OF_CLASSES: dict[str, Metric] = {"accuracy": _accuracy, "top-5": _top_5, "perplexity": _perplexity}
OF_NUMBERS: dict[str, Metric] = {"r2": _r2, "mae": _mae}
DEFAULT_METRICS = {
    "cross-entropy": ("accuracy",),
    "mse": ("r2", "mae"),
    "next-token": ("perplexity", "accuracy"),
}
# Names of what every record has anyway.
TAKEN = ("loss", "client-loss-spread", "client-loss-worst")


def find_metrics(
    given: Sequence[str] | Mapping[str, Metric] | None, loss: str | Loss
) -> dict[str, Metric]:
    """Return the metrics that a user asks for, or those that fit the loss, by name."""
    if given is None:
        given = DEFAULT_METRICS[loss] if isinstance(loss, str) else ()
    if isinstance(given, Mapping):
        for name, metric in given.items():
            if not isinstance(name, str) or name in TAKEN:
                raise InputError(f"{name!r} cannot be the name of a metric; choose another name")
            if not callable(metric):
                raise InputError(f"the metric '{name}' must be a function (output, target)")
        return dict(given)
    try:
        names = [given] if isinstance(given, str) else list(given)
    except TypeError:
        raise InputError(f"metrics must be names or functions by name, got {given!r:.60}") from None
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise InputError(
            f"metrics must be names, got {wrong[0]!r:.60}; give functions by name, as in "
            "metrics={'error': function}"
        )
    found = {name: look_up("metric", name, OF_CLASSES | OF_NUMBERS) for name in names}
    unfit = {"mse": OF_CLASSES, "cross-entropy": OF_NUMBERS, "next-token": OF_NUMBERS}
    for name in found:
        if isinstance(loss, str) and name in unfit[loss]:
            fits = "classes" if name in OF_CLASSES else "numbers"
            raise InputError(
                f"the metric '{name}' needs targets that are {fits}, not loss='{loss}'"
            )
    if loss != "cross-entropy":
        return found
    # Where a row has many targets, such as pixels, its classes are in the second axis.
    return {name: partial(_with_classes_last, metric) for name, metric in found.items()}


def _with_classes_last(metric: Metric, output: Tensor, target: Tensor) -> float:
    return metric(output.movedim(1, -1), target)


def measure(name: str, metric: Metric, output: Tensor, target: Tensor) -> float:
    """Return a metric; raises InputError if it fails or is not a number."""
    try:
        found: Any = metric(output, target)
    except Exception as error:  # a user's function may fail in any way
        raise InputError(
            f"the metric '{name}' failed on an output of shape {tuple(output.shape)} and targets "
            f"of shape {tuple(target.shape)}: {first_line(error, 70)}"
        ) from error
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError):
        shape = f" of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else ""
        kind = type(found).__name__
        raise InputError(f"the metric '{name}' must return one number, got {kind}{shape}") from None
