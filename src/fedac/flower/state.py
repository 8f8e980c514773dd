"""What a server holds between rounds: all sequences of the model, and its buffers."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.errors import InputError
from fedac.flower.aggregate import Array
from fedac.flower.messages import BUFFER, OUTPUT, from_record, part, under

# Under the keys of the messages.
State = dict[str, Array]


def initial_state(algorithm: Algorithm, initial_arrays: ArrayRecord) -> State:
    """Return where every sequence starts, or say why a model cannot be averaged.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> initial_state(FEDAC_I, ArrayRecord([np.array([0.0])]))
    {'w_ag/0': array([0.]), 'w/0': array([0.])}
    """
    if not isinstance(initial_arrays, ArrayRecord):
        raise InputError(
            f"initial_arrays must be an ArrayRecord, got {type(initial_arrays).__name__}; "
            "ArrayRecord([w]) makes one of a list of arrays, torch_arrays(model) of a model"
        )
    initial = from_record(initial_arrays)
    _require_floats(initial)
    params, buffers = _apart(initial)
    starts = {name: algorithm.start(array) for name, array in params.items()}
    state = under(BUFFER, buffers)
    for i, sequence in enumerate(algorithm.sequences):
        state |= under(sequence, {name: np.asarray(start[i]) for name, start in starts.items()})
    return state


def output_of(algorithm: Algorithm, hp: Hyperparameters, state: State, t: int) -> State:
    """Return what is evaluated and reported after t steps, under the names it started with.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> hp = FedAcHyperparameters(eta=0.5, gamma=0.5, alpha=1.0, beta=2.0)
    >>> output_of(FEDAC_I, hp, {"w_ag/0": np.array([1.0]), "w/0": np.array([2.0])}, t=8)
    {'0': array([1.])}
    """
    sequences = [part(name, state) for name in algorithm.sequences]
    output: State = {
        name: np.asarray(algorithm.output(tuple(s[name] for s in sequences), hp, t), like.dtype)
        for name, like in sequences[0].items()
    }
    return output | under(BUFFER, part(BUFFER, state))


def keyed_for_clients(output: State) -> State:
    """Return an output under the keys of an evaluation's message."""
    params, buffers = _apart(output)
    return under(OUTPUT, params) | under(BUFFER, buffers)


def _apart(arrays: State) -> tuple[State, State]:
    """Return parameters, and buffers without their prefix."""
    params = {key: array for key, array in arrays.items() if not key.startswith(f"{BUFFER}/")}
    return params, part(BUFFER, arrays)


def _require_floats(arrays: State) -> None:
    if not _apart(arrays)[0]:
        raise InputError("initial_arrays is empty: there is nothing to train")
    for key, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(
                f"initial_arrays['{key}'] is {array.dtype}; only floating-point arrays can be "
                "averaged. For PyTorch models fedac.flower.torch_arrays leaves counters out"
            )
        if not np.isfinite(array).all():
            raise InputError(f"initial_arrays['{key}'] has NaN or infinite entries")
