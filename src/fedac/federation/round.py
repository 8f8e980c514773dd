# SPDX-License-Identifier: Apache-2.0
"""One round of any algorithm, on plain vectors, for every runtime.

The reference engine calls these functions on arrays with a row for each client, PyTorch on the
tensors of one parameter, Flower on the arrays of one key. A runtime adds where gradients come
from, where memories are kept, and how the mean message is computed. A round, with the first memory
of a client given by ``algorithm.begin_memory(sequences)``::

    local = algorithm.enter(sequences, memory, hp)
    K times: w_md = algorithm.query(local, hp); g there; algorithm.update(local, w_md, g, hp)
    message, memory = leave(algorithm, local, sequences, memory, hp, ClientWork(steps=K))
    message, memory = compress(algorithm, message, sequences, memory, quantize)    optional
    mean message over the clients
    sequences, server = serve(algorithm, mean, sequences, server, hp, RoundInfo(...))

A Flower client has coefficients instead of functions, which
`fedac.algorithms.linear.with_boundary` turns into an algorithm.

If weights may change between rounds (clients join, or gain or lose rows), pass `weight_ratio`, the
previous weight over the new one: the client's weight to `leave`, the total weight to `serve`. The
server's control variate then stays the weighted mean, c = sum_m p_m c_m, and so does FedDyn's z.

SCAFFOLD with one client and one local step from x = 3 with c = 1 and c_m = 0.5:

>>> from fedac.algorithms import ClientWork, RoundInfo, get
>>> scaffold = get("scaffold")
>>> hp = scaffold.couple(eta=0.5, mu=1.0, K=1)
>>> sequences, memory = (3.0, 1.0), (0.5,)
>>> local = scaffold.enter(sequences, memory, hp)
>>> local = scaffold.update(local, scaffold.query(local, hp), 2.0, hp)
>>> message, memory = leave(scaffold, local, sequences, memory, hp, ClientWork(steps=1))
>>> message, memory
((1.75, 1.5), (2.0,))
>>> serve(scaffold, message, sequences, (), hp, RoundInfo(share=0.5))
((1.75, 1.75), ())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.algorithms.algorithm import Algorithm, ClientWork, RoundInfo, State, Vector
from fedac.federation.compression import Bytes, decode
from fedac.federation.spec import WEIGHTINGS
from fedac.validate import unknown_name

Quantize = Callable[[Vector, int], Vector]
"""``quantize(vector, t)`` returns vector number t of a message as the server receives it."""


def leave(
    algorithm: Algorithm,
    local: State,
    sequences: State,
    memory: State,
    hp: Any,
    done: ClientWork,
    *,
    weight_ratio: float = 1.0,
) -> tuple[State, State]:
    """Return a client's message and its new memory."""
    message, after = algorithm.leave(local, sequences, memory, hp, done)
    message = algorithm.reweigh_message(message, memory, weight_ratio)
    return message, algorithm.reweigh_memory(after, memory, weight_ratio)


def compress(
    algorithm: Algorithm, message: State, sequences: State, memory: State, quantize: Quantize
) -> tuple[State, State]:
    """Return a message as the server receives it, and the client's memory updated to match."""
    bases = algorithm.bases(sequences)
    sent = tuple(
        base + quantize(vector - base, t)
        for t, (vector, base) in enumerate(zip(message, bases, strict=True))
    )
    return sent, algorithm.remember_sent(message, sent, memory)


def decompress(algorithm: Algorithm, wire: str, data: Sequence[Bytes], sequences: State) -> State:
    """Return the message whose vectors were encoded as `data`, given what was broadcast."""
    bases = algorithm.bases(sequences)
    return tuple(
        base + decode(wire, part, len(base)) for part, base in zip(data, bases, strict=True)
    )


def serve(
    algorithm: Algorithm,
    mean: State,
    sequences: State,
    server: State,
    hp: Any,
    this: RoundInfo,
    *,
    weight_ratio: float = 1.0,
) -> tuple[State, State]:
    """Return the next sequences and server state, given the mean message."""
    sequences = algorithm.reweigh_sequences(sequences, weight_ratio)
    server = algorithm.reweigh_server(server, weight_ratio)
    return algorithm.serve(mean, sequences, server, hp, this)


def squared_moves(algorithm: Algorithm, values: State, sequences: State) -> Vector:
    """Return the squared length of the moves of all points, summed over the last axis.

    `values` are messages, or their mean. `this.spread` is the weighted mean of this number over the
    clients, `this.moved` this number for the mean message, both summed over the whole model.
    """
    came_from = dict(zip(algorithm.sequences, sequences, strict=True))
    pairs = zip(algorithm.sent, values, strict=True)
    moves = [value - came_from[name] for name, value in pairs if name in algorithm.points]
    total = (moves[0] ** 2).sum(-1)
    for move in moves[1:]:
        total = total + (move**2).sum(-1)
    return total


def arrive(
    algorithm: Algorithm, message: State, sequences: State, current: State, scale: Vector
) -> State:
    """Return a message to older sequences as it counts for the current ones.

    Points count by their moves, times `scale`; changes and means as they are.

    >>> from fedac.algorithms import get
    >>> arrive(get("scaffold"), (2.0, 0.5), sequences=(3.0, 1.0), current=(1.0, 1.0), scale=0.5)
    (0.5, 0.5)
    """
    named = dict(zip(algorithm.sequences, zip(sequences, current, strict=True), strict=True))
    found = []
    for name, value in zip(algorithm.sent, message, strict=True):
        old, new = named[name]
        found.append(new + scale * (value - old) if name in algorithm.points else value)
    return tuple(found)


def staleness_scale(staleness: Vector) -> Vector:
    """Return how much moves count that are so many server steps old (arXiv 2106.06639).

    >>> staleness_scale(0.0), staleness_scale(3.0)
    (1.0, 0.5)
    """
    return (1 + staleness) ** -0.5


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
