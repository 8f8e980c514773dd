"""From a model's arrays to the algorithm's sequences of them, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord

from fedac.algorithms import Algorithm, State
from fedac.errors import InputError
from fedac.flower.layout import travelling
from fedac.flower.messages import NamedArrays, NDArray, buffers_of, with_prefix


def initial_sequences(algorithm: Algorithm, initial_arrays: ArrayRecord) -> dict[str, NDArray]:
    """Return the start of every sequence, or say why a model cannot be averaged.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> initial_sequences(FEDAC_I, ArrayRecord([np.array([0.0])]))
    {'w_ag/0': array([0.]), 'w/0': array([0.])}
    """
    if not isinstance(initial_arrays, ArrayRecord):
        raise InputError(
            f"initial_arrays must be an ArrayRecord, got {type(initial_arrays).__name__}; "
            "use ArrayRecord([w]) for a list of arrays, torch_arrays(model) for a PyTorch model"
        )
    initial = travelling(initial_arrays)
    if not initial:
        raise InputError("initial_arrays is empty: there is nothing to train")
    for key, array in initial.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(
                f"initial_arrays['{key}'] is {array.dtype}; only floating-point arrays can be "
                "averaged. For PyTorch models use fedac.flower.torch_arrays, which knows counters"
            )
        if not np.isfinite(array).all():
            raise InputError(f"initial_arrays['{key}'] has NaN or infinite entries")
    buffers = buffers_of(initial)
    starts = {
        key: algorithm.split(algorithm.start(initial[key]))[0]
        for key in initial
        if key not in buffers
    }
    return buffers | to_named(algorithm.sequences, starts)


def by_key(names: tuple[str, ...], arrays: NamedArrays) -> dict[str, State]:
    """Return for every array of the model its vectors, one for each name.

    The functions of an algorithm take the vectors of one array at a time.

    Examples
    --------
    >>> by_key(("w", "v"), {"w/bias": np.zeros(1), "v/bias": np.ones(1)})
    {'bias': (array([0.]), array([1.]))}
    """
    if not names:
        return {}
    first, *others = [with_prefix(name, arrays) for name in names]
    return {key: (array, *(other[key] for other in others)) for key, array in first.items()}


def to_named(
    names: tuple[str, ...], vectors: Mapping[str, State], like: NamedArrays | None = None
) -> dict[str, NDArray]:
    """Undo `by_key`; with `like`, give every array the type of the model's array of that key.

    Examples
    --------
    >>> to_named(("w", "v"), {"bias": (np.zeros(1), np.ones(1))})
    {'w/bias': array([0.]), 'v/bias': array([1.])}
    """
    return {
        f"{name}/{key}": np.asarray(vector[i], None if like is None else like[key].dtype)
        for i, name in enumerate(names)
        for key, vector in vectors.items()
    }
