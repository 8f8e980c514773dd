# SPDX-License-Identifier: Apache-2.0
"""Rows of a network as tensors: what users pass as inputs, targets or labels, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedac.errors import InputError

# PyTorch's cross-entropy leaves out targets with this number.
IGNORED = -100


def first_line(error: BaseException, most: int = 90) -> str:
    """Return the start of an error's message, or the name of an error without one."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= most else f"{lines[0][: most - 3]}..."


def is_map_style(X: Any) -> bool:
    """Return whether X yields its rows by number or in a loop, and is no array, list or table."""
    if hasattr(X, "shape") or hasattr(X, "__array__") or isinstance(X, Sequence | Mapping):
        return False
    return hasattr(X, "__getitem__") or hasattr(X, "__iter__")


def read_pairs(X: Any, what: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the inputs and targets of a map-style Dataset."""
    if not (hasattr(X, "__len__") and hasattr(X, "__getitem__")):
        raise InputError(
            f"{what} must be arrays or a map-style Dataset, with len(data) and data[i]; got "
            f"{type(X).__name__}"
        )
    inputs: list[npt.NDArray[Any]] = []
    targets: list[npt.NDArray[Any]] = []
    for i in range(len(X)):
        try:
            item = X[i]
        except Exception as error:  # a user's Dataset may fail in any way
            raise InputError(f"item {i} of {what} cannot be read: {first_line(error)}") from error
        if not (isinstance(item, tuple | list) and len(item) == 2):
            found = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
            raise InputError(f"item {i} of {what} must be a pair (input, target), got {found}")
        for kind, values, value in zip(("input", "target"), (inputs, targets), item, strict=True):
            values.append(np.asarray(value))
            if values[i].shape != values[0].shape:
                raise InputError(
                    f"the {kind} of item {i} of {what} has shape {values[i].shape}, that of item 0 "
                    f"{values[0].shape}: pad or crop them to one shape"
                )
    if not inputs:
        raise InputError(f"X of {what} has no rows")
    return np.stack(inputs), np.stack(targets)


def as_array(values: Any, what: str) -> npt.NDArray[Any]:
    """Return values as an array with a row for each example."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{what} must be an array, with rows of one shape") from error
    if array.ndim == 0:
        raise InputError(f"{what} must have a row for each example, got {values!r:.40}")
    return array


def as_tensor(values: Any, what: str) -> Tensor:
    """Return finite numbers as a tensor; whole numbers become int64, others float32 or float64."""
    if hasattr(values, "toarray"):
        values = values.toarray()  # of a sparse matrix
    if isinstance(values, Tensor) and values.ndim:
        tensor = values.detach().cpu()
    else:
        array = as_array(values, what)
        if array.dtype.kind not in "iufbc":
            raise InputError(f"{what} must be numbers, got {array.dtype}")
        tensor = torch.as_tensor(np.ascontiguousarray(array))
    if tensor.is_complex():
        raise InputError(f"{what} must be real numbers, got {str(tensor.dtype).partition('.')[2]}")
    if not tensor.is_floating_point():
        return tensor.to(torch.int64)
    if tensor.dtype != torch.float64:
        tensor = tensor.float()
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        place = tuple(int(i) for i in bad.nonzero()[0])
        raise InputError(f"{what} has {float(tensor[place])} in row {place[0]}")
    return tensor


def encode(
    labels: npt.NDArray[Any], what: str, classes: tuple[Any, ...] | None = None
) -> tuple[Tensor, tuple[Any, ...]]:
    """Return labels as numbers from 0, and their classes in order; () for numbers from 0.

    Pass the classes of the training data to encode a test set in the same way.
    """
    if labels.dtype.kind == "O":
        labels = _of_one_type(labels, what)
    numbers = labels.dtype.kind in "iuf"
    if numbers:
        _require_whole(labels, what)
    if classes is None:
        found = np.unique(labels).tolist()
        classes = () if numbers and found[0] >= 0 else tuple(found)
    if not classes:
        if not numbers or labels.min() < 0:
            other = labels.min() if numbers else labels.flat[0]
            raise InputError(f"{what} has the label {other.item()!r}, the data does not")
        return torch.as_tensor(labels.astype(np.int64)), ()
    places = {label: place for place, label in enumerate(classes)}
    try:
        codes = [places[label] for label in labels.ravel().tolist()]
    except KeyError as error:
        raise InputError(f"{what} has the label {error.args[0]!r}, the data does not") from None
    return torch.tensor(codes).view(labels.shape), classes


def _of_one_type(labels: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    kinds = {type(label) for label in labels.flat}
    if kinds <= {str}:
        return labels.astype(str)
    if all(issubclass(kind, int | float | np.number | np.bool_) for kind in kinds):
        return labels.astype(np.float64)
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InputError(
        f"y of {what} must be numbers or labels of one type, got {names}; drop rows without a label"
    )


def _require_whole(labels: npt.NDArray[Any], what: str) -> None:
    if labels.dtype.kind == "f":
        as_tensor(labels, f"y of {what}")  # raises if a number is not finite
        if (fractions := labels[labels % 1 != 0]).size:
            raise InputError(
                f"y of {what} has numbers such as {fractions[0]:g}, which are not classes; use "
                "loss='mse'"
            )
    if (labels == IGNORED).any():
        raise InputError(
            f"y of {what} has {IGNORED}, PyTorch's mark for targets to ignore: drop these rows, or "
            "use loss=torch.nn.functional.cross_entropy"
        )
