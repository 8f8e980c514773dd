"""What the server keeps from round to round besides the sequences, and how it moves.

The server's rule is called on float64 arrays, whatever the type of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedac.algorithms import Algorithm, RoundInfo
from fedac.algorithms.algorithm import serve_mean
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.memory.control_variates import reweigh_sequences
from fedac.errors import InputError
from fedac.flower._arrays import NamedArrays, NDArray, buffers_of, by_key, to_named, with_prefix
from fedac.flower._client.labels import Labels


@dataclass
class ServerMemory:
    """What a server keeps to itself; a checkpoint has it.

    Attributes
    ----------
    arrays : dict
        The algorithm's server state, with keys such as ``w_u/0``, in float64.
    labels : Labels
        Which memories of the clients it knows of.
    """

    arrays: NamedArrays = field(default_factory=dict)
    labels: Labels = field(default_factory=Labels)


def begin_server(algorithm: Algorithm, sequences: NamedArrays) -> ServerMemory:
    """Return what the server keeps at the start of a run, given the sequences at the start.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> begin_server(get("outer-nesterov"), {"w/0": np.array([2.0])}).arrays
    {'w_u/0': array([2.]), 'w_z/0': array([2.])}
    """
    if not algorithm.server:
        return ServerMemory()
    kept = {
        key: algorithm.split(algorithm.start(_start_of(algorithm, vectors)))[1]
        for key, vectors in by_key(algorithm.sequences, _doubled(sequences)).items()
    }
    return ServerMemory(to_named(algorithm.server, kept))


def serve(
    algorithm: Algorithm,
    mean: NamedArrays,
    before: NamedArrays,
    kept: NamedArrays,
    hp: Hyperparameters,
    this: RoundInfo,
) -> tuple[NamedArrays, NamedArrays]:
    """Return the next sequences and what the server keeps.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> diloco = get("diloco(2, 0.5)")
    >>> hp = diloco.couple(eta=0.1, mu=1.0, K=1)
    >>> x, mean, u = {"w/0": np.array([3.0])}, {"w/0": np.array([2.5])}, {"w_u/0": np.array([1.0])}
    >>> serve(diloco, mean, x, u, hp, RoundInfo())
    ({'w/0': array([1.])}, {'w_u/0': array([1.])})
    """
    if algorithm.serve is serve_mean:
        return mean, kept
    messages, sequences, server = (
        by_key(names, _doubled(arrays))
        for names, arrays in (
            (algorithm.sequences, mean),
            (algorithm.sequences, before),
            (algorithm.server, kept),
        )
    )
    # A diverging run overflows on its way out; its clients' replies will not be finite.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        moved = {
            key: algorithm.serve(messages[key], sequences[key], server.get(key, ()), hp, this)
            for key in messages
        }
    model = with_prefix(algorithm.sequences[0], before)
    after = to_named(algorithm.sequences, {key: x for key, (x, _) in moved.items()}, model)
    return (
        buffers_of(mean) | after,
        to_named(algorithm.server, {key: state for key, (_, state) in moved.items()}),
    )


def rescale_changes(algorithm: Algorithm, sequences: NamedArrays, factor: float) -> NamedArrays:
    """Multiply the sequences of which clients send changes, such as the control variates' c.

    They are sums over clients divided by the weight of all clients, whose weight may be new.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> sequences = {"w/0": np.array([3.0]), "c/0": np.array([2.0])}
    >>> rescale_changes(get("scaffold"), sequences, 0.5)
    {'w/0': array([3.]), 'c/0': array([1.])}
    """
    states = by_key(algorithm.sequences, sequences)
    moved = {key: reweigh_sequences(algorithm, x, factor) for key, x in states.items()}
    model = with_prefix(algorithm.sequences[0], sequences)
    return buffers_of(sequences) | to_named(algorithm.sequences, moved, model)


def problem_of(sequences: NamedArrays, kept: NamedArrays) -> str | None:
    """Say what is wrong with what the server would hold: numbers or lengths that are not finite.

    A model whose squared length overflows has no loss.

    Examples
    --------
    >>> problem_of({"w/0": np.array([1e200])}, {"w_v/0": np.array([1.0])})
    'the squared length of w/0'
    """
    with np.errstate(over="ignore", invalid="ignore"):
        for key, array in sequences.items():
            numbers = array.astype(np.result_type(array.dtype, np.float32), copy=False)
            if not np.isfinite(np.vdot(numbers, numbers)):
                return f"the squared length of {key}"
    return next((key for key, array in kept.items() if not np.isfinite(array).all()), None)


def output_of(
    algorithm: Algorithm, sequences: NamedArrays, kept: NamedArrays, hp: Hyperparameters, t: int
) -> dict[str, NDArray]:
    """Return the output after t steps, with the names of the initial arrays, and the buffers."""
    model, server = with_prefix(algorithm.sequences[0], sequences), by_key(algorithm.server, kept)
    parameters = {
        key: np.asarray(algorithm.output((*vectors, *server.get(key, ())), hp, t), model[key].dtype)
        for key, vectors in by_key(algorithm.sequences, sequences).items()
    }
    return parameters | buffers_of(sequences)


def _start_of(algorithm: Algorithm, sequences: tuple[NDArray, ...]) -> NDArray:
    """Return w_0, given the sequences that start at multiples of it."""
    factors, _ = algorithm.split(algorithm.start(1.0))
    for factor, sequence in zip(factors, sequences, strict=True):
        if factor:
            w_0: NDArray = sequence / factor
            return w_0
    raise InputError(f"algorithm '{algorithm.name}': no sequence starts at a multiple of w_0")


def _doubled(arrays: NamedArrays) -> NamedArrays:
    return {key: np.asarray(array, np.float64) for key, array in arrays.items()}
