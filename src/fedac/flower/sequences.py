"""From a model's arrays to the algorithm's sequences of them."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from fedac.algorithms import Algorithm
from fedac.errors import InputError
from fedac.flower.messages import BUFFER, NDArray, from_record


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
    initial = from_record(initial_arrays)
    if not initial:
        raise InputError("initial_arrays is empty: there is nothing to train")
    for key, array in initial.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(
                f"initial_arrays['{key}'] is {array.dtype}; only floating-point arrays can be "
                "averaged. For PyTorch models use fedac.flower.torch_arrays, which skips counters"
            )
        if not np.isfinite(array).all():
            raise InputError(f"initial_arrays['{key}'] has NaN or infinite entries")
    buffers = {key: array for key, array in initial.items() if key.startswith(BUFFER)}
    starts = {key: algorithm.start(initial[key]) for key in initial if key not in buffers}
    return buffers | {
        f"{sequence}/{key}": np.asarray(start[i])
        for i, sequence in enumerate(algorithm.sequences)
        for key, start in starts.items()
    }
