"""Tell algorithms apart by what they compute, not by their names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedac.algorithms.record import Algorithm, State, serve_mean
from fedac.arrays import Array

# (eta, mu, K) that together meet every case of the couplings.
COUPLINGS = ((0.3, 0.7, 1), (0.3, 0.007, 1), (0.01, 0.3, 16), (0.002, 0.05, 256))
# Sizes of the probe vectors: a clipped gradient differs at large ones, a threshold at small ones.
SIZES = (1e-4, 0.1, 3.0, 1e4)
STEPS = (0, 1, 7)
# Machines differ in the last of 16 digits. With more digits than this, one of hundreds of numbers
# may be rounded up here and down there.
DIGITS = 9


def fingerprint(algorithm: Algorithm) -> str:
    """Return a short hash of what an algorithm does.

    It calls the algorithm's own functions on fixed values. Algorithms that compute the same
    numbers have the same fingerprint, whatever their names and however they are written; a
    changed update or coupling has another.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I, FEDAC_II, fedac
    >>> fingerprint(FEDAC_I) == fingerprint(FEDAC_II)
    False
    >>> same = [fedac(gamma=0.5, alpha=2.0, beta=3.0, name=name) for name in ("a", "b")]
    >>> fingerprint(same[0]) == fingerprint(same[1])
    True
    """
    lines = [f"{algorithm.sequences} minibatch={algorithm.minibatch}"]
    beyond_the_paper = (algorithm.local, algorithm.memory, algorithm.server)
    if any(beyond_the_paper):
        lines.append(repr(beyond_the_paper))
    for coupling in COUPLINGS:
        lines.append(repr(coupling))
        try:
            lines += [_rounded(values) for values in _probe(algorithm, *coupling)]
        except Exception as error:  # a coupling may refuse a value; so does its twin
            lines.append(type(error).__name__)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _probe(algorithm: Algorithm, eta: float, mu: float, K: int) -> Iterator[Any]:
    """Yield what every function of the algorithm returns."""
    hp = algorithm.couple(eta=eta, mu=mu, K=K)
    S, L = len(algorithm.sequences), len(algorithm.local_sequences)
    state_size, kept = len(algorithm.state_names), len(algorithm.memory)
    for size in SIZES:
        # New vectors for every call: a user's functions may work in place.
        yield from algorithm.start(*_vectors(1, size))
        yield algorithm.query(_vectors(L, size), hp)
        *state, w_md, g = _vectors(L + 2, size)
        yield from algorithm.update(tuple(state), w_md, g, hp)
        for t in STEPS:
            yield algorithm.output(_vectors(state_size, size), hp, t)
        if not algorithm.is_plain:
            sequences, memory = _cut(_vectors(S + kept, size), S)
            yield from algorithm.begin_memory(sequences)
            yield from algorithm.enter(sequences, memory, hp)
            local, rest = _cut(_vectors(L + S + kept, size), L)
            for steps in (1, 7):
                message, memory = algorithm.leave(local, *_cut(rest, S), hp, steps)
                yield from (*message, *memory)
        if algorithm.serve is not serve_mean:
            message, rest = _cut(_vectors(2 * S + len(algorithm.server), size), S)
            for r in STEPS:
                after, server = algorithm.serve(message, *_cut(rest, S), hp, r, 0.3)
                yield from (*after, *server)


def _cut(vectors: State, at: int) -> tuple[State, State]:
    return vectors[:at], vectors[at:]


def _vectors(count: int, size: float) -> tuple[Array, ...]:
    """Return vectors of numbers that are all different, the same in every process."""
    numbers = 0.5 + np.arange(3 * count) * 0.6180339887498949 % 1.5
    return tuple(size * numbers.reshape(count, 3))


def _rounded(values: Any) -> str:
    """Return numbers as text, rounded so that all machines agree."""
    return " ".join(f"{value:.{DIGITS}g}" for value in np.ravel(values).tolist())
