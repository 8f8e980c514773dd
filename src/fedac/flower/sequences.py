"""Between a model's arrays and an algorithm's sequences of them."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.errors import InputError
from fedac.flower.messages import (
    BUFFER,
    NamedArrays,
    NDArray,
    add_prefix,
    from_record,
    split_buffers,
    with_prefix,
)


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
    parameters, buffers = split_buffers(initial)
    if not parameters:
        raise InputError("initial_arrays is empty: there is nothing to train")
    for key, array in initial.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(
                f"initial_arrays['{key}'] is {array.dtype}; only floating-point arrays can be "
                "averaged. For PyTorch models use fedac.flower.torch_arrays, which skips counters"
            )
        if not np.isfinite(array).all():
            raise InputError(f"initial_arrays['{key}'] has NaN or infinite entries")
    starts = {name: algorithm.start(array) for name, array in parameters.items()}
    arrays = add_prefix(BUFFER, buffers)
    for i, sequence in enumerate(algorithm.sequences):
        arrays |= add_prefix(sequence, {name: np.asarray(s[i]) for name, s in starts.items()})
    return arrays


def output_of(
    algorithm: Algorithm, hp: Hyperparameters, arrays: NamedArrays, t: int
) -> dict[str, NDArray]:
    """Return what is evaluated and reported after t steps, with the names of the initial arrays.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> output_of(FEDAVG, Hyperparameters(eta=0.5), {"w/0": np.array([2.0])}, t=8)
    {'0': array([2.])}
    """
    sequences = [with_prefix(name, arrays) for name in algorithm.sequences]
    output = {
        name: np.asarray(algorithm.output(tuple(s[name] for s in sequences), hp, t), array.dtype)
        for name, array in sequences[0].items()
    }
    return output | add_prefix(BUFFER, with_prefix(BUFFER, arrays))
