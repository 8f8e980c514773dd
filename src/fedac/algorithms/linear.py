"""An algorithm's step, and how a client enters and leaves a round, as linear combinations.

They are for runtimes that want their own fused operations, and for clients that have only numbers.

The coefficients are found by calling the algorithm's own functions on unit values, so that no
runtime writes an update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from operator import add

import numpy as np

from fedac.algorithms.contract import check_functions
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.record import Algorithm, State, Vector
from fedac.arrays import Array
from fedac.errors import InputError


@dataclass(frozen=True, slots=True)
class Linear:
    """The coefficients of one step.

    Attributes
    ----------
    query : tuple of float
        w_md as a combination of the sequences.
    update : tuple of tuples of float
        Each next sequence as a combination of the sequences, w_md and g, in this order.
    """

    query: tuple[float, ...]
    update: tuple[tuple[float, ...], ...]


@lru_cache(maxsize=256)  # called at every step, mostly with the same hyperparameters
def linear_form(algorithm: Algorithm, hp: Hyperparameters) -> Linear:
    """Find the coefficients of an algorithm's step, or refuse one that is not linear.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> from fedac.algorithms.couplings import FedAcHyperparameters
    >>> hp = FedAcHyperparameters(eta=0.5, gamma=1.0, alpha=2.0, beta=4.0)
    >>> linear_form(FEDAC_I, hp)  # of w_ag and w
    Linear(query=(0.75, 0.25), update=((0.0, 0.0, 1.0, -0.5), (0.0, 0.5, 0.5, -1.0)))
    """
    S = len(algorithm.local_sequences)
    try:
        query, update = _step(algorithm, np.eye(S + 2), hp)
        query = query[:S]
        exact = len(update) == S and _is_exact(query, update, algorithm, hp)
    except Exception:  # a user's functions may fail on our probes in any way
        exact = False
    if not exact:
        check_functions(algorithm, hp, np.ones(2))  # a broken record has a better reason
        raise InputError(
            f"algorithm '{algorithm.name}' is not linear in its state and gradient (or its numbers "
            "overflow); only the reference engine of simulate can run it"
        )
    return Linear(query=tuple(query.tolist()), update=tuple(map(tuple, update.tolist())))


@dataclass(frozen=True, slots=True)
class Boundary:
    """The coefficients of entering and leaving a round.

    Attributes
    ----------
    first_memory : tuple of tuples of float
        What a client remembers at first, as combinations of the sequences.
    enter : tuple of tuples of float
        What it works on, as combinations of the sequences and its memory, in this order.
    message, memory : tuple of tuples of float
        What it sends and what it remembers, as combinations of what it worked on, the sequences
        and its memory.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> scaffold = get("scaffold")
    >>> form = boundary_form(scaffold, scaffold.couple(eta=0.5, mu=1.0, K=4), 4)
    >>> form.enter_round((3.0, 1.0), (0.5,))  # x and c; c_m
    (3.0, 0.5, 0.0)
    >>> form.leave_round((1.0, 0.5, 8.0), (3.0, 1.0), (0.5,))
    ((1.0, 1.5), (2.0,))
    """

    first_memory: tuple[tuple[float, ...], ...]
    enter: tuple[tuple[float, ...], ...]
    message: tuple[tuple[float, ...], ...]
    memory: tuple[tuple[float, ...], ...]

    def begin_memory(self, sequences: State) -> State:
        """Return what a client remembers that has no memory yet."""
        return _apply(self.first_memory, sequences)

    def enter_round(self, sequences: State, memory: State) -> State:
        """Return what a client works on."""
        return _apply(self.enter, (*sequences, *memory))

    def leave_round(self, local: State, sequences: State, memory: State) -> tuple[State, State]:
        """Return what a client sends, and what it remembers."""
        vectors = (*local, *sequences, *memory)
        return _apply(self.message, vectors), _apply(self.memory, vectors)


@lru_cache(maxsize=256)
def boundary_form(algorithm: Algorithm, hp: Hyperparameters, steps: int) -> Boundary:
    """Find the coefficients of entering a round and of leaving it after some steps.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> scaffold = get("scaffold")
    >>> form = boundary_form(scaffold, scaffold.couple(eta=0.5, mu=1.0, K=4), 4)
    >>> form.enter  # w, the correction and the sum of gradients, of w, c and c_m
    ((1.0, 0.0, 0.0), (0.0, 1.0, -1.0), (0.0, 0.0, 0.0))
    >>> form.memory  # c_m
    ((0.0, 0.0, 0.25, 0.0, 0.0, 0.0),)
    """
    T, P, L = map(len, (algorithm.sequences, algorithm.memory, algorithm.local_sequences))

    def first_memory(values: Array) -> State:
        return algorithm.begin_memory(tuple(values))

    def enter(values: Array) -> State:
        return algorithm.enter(tuple(values[:T]), tuple(values[T:]), hp)

    def leave(values: Array) -> State:
        local, sequences, memory = values[:L], values[L : L + T], values[L + T :]
        message, after = algorithm.leave(tuple(local), tuple(sequences), tuple(memory), hp, steps)
        return (*message, *after)

    try:
        firsts, entered, left = (
            _matrix(function, inputs)
            for function, inputs in ((first_memory, T), (enter, T + P), (leave, L + T + P))
        )
    except Exception as error:  # a user's functions may fail on our probes in any way
        check_functions(algorithm, hp, np.ones(2))
        raise InputError(
            f"algorithm '{algorithm.name}' does not enter and leave a round linearly; only the "
            "reference engine of simulate can run it"
        ) from error
    return Boundary(firsts, entered, left[:T], left[T:])


def _matrix(function: Callable[[Array], State], inputs: int) -> tuple[tuple[float, ...], ...]:
    """Return the coefficients of a linear function of so many vectors, or raise ValueError."""
    units = np.eye(inputs)
    matrix = np.array([np.broadcast_to(row, inputs) for row in function(units.copy())])
    matrix = matrix.reshape(-1, inputs)
    values = _probes(inputs, 8)
    found = np.array([np.broadcast_to(row, 8) for row in function(values.copy())]).reshape(-1, 8)
    slack = 1e-9 * max(1.0, np.abs(matrix).max(initial=0.0))
    if not (np.abs(found - matrix @ values) <= slack).all():
        raise ValueError("not linear")
    return tuple(map(tuple, matrix.tolist()))


def _step(algorithm: Algorithm, values: Array, hp: Hyperparameters) -> tuple[Array, Array]:
    """Return w_md and the next states for every column of states, w_md and g."""
    # Copies: a user's functions may work in place.
    *state, _, g = values.copy()
    w_md = np.broadcast_to(algorithm.query(tuple(state), hp), g.shape)
    *state, given, g = values.copy()
    after = algorithm.update(tuple(state), given, g, hp)
    return w_md, np.stack([np.broadcast_to(sequence, g.shape) for sequence in after])


def _is_exact(query: Array, update: Array, algorithm: Algorithm, hp: Hyperparameters) -> bool:
    """Compare with the algorithm at values of all sizes.

    Clipping shows at large ones only, thresholds at small ones.
    """
    S = len(query)
    scale = np.repeat([1e-9, 1e-4, 1.0, 1e4, 1e9], 4)
    values = _probes(S + 2, len(scale)) * scale
    # Step sizes may be huge: their multiple of g must not hide all other terms.
    values[-1] /= max(1.0, np.abs(update[:, -1]).max())
    w_md, after = _step(algorithm, values, hp)
    slack = 1e-9 * scale * max(1.0, np.abs(query).max(), np.abs(update[:, :-1]).max())
    return bool(
        (np.abs(w_md - query @ values[:S]) <= slack).all()
        and (np.abs(after - update @ values) <= slack).all()
    )


@cache  # a step size that falls asks in every round
def _probes(rows: int, columns: int) -> Array:
    return np.random.default_rng(0).normal(size=(rows, columns))


def from_linear(
    name: str, sequences: tuple[str, ...], start: Sequence[float], step: Linear
) -> Algorithm:
    """Rebuild a local step from its coefficients, for a client that has only these numbers.

    The result is a plain algorithm whose sequences are what a client works on. Its hyperparameters
    are in the coefficients already. It outputs its first sequence: only the original knows more.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> hp = FEDAC_I.couple(eta=0.5, mu=0.5, K=4)
    >>> twin = from_linear("twin", FEDAC_I.sequences, (1.0, 1.0), linear_form(FEDAC_I, hp))
    >>> twin.update((8.0, 4.0), 7.0, 2.0, hp) == FEDAC_I.update((8.0, 4.0), 7.0, 2.0, hp)
    True
    """
    return Algorithm(
        name=name,
        label=name,
        sequences=sequences,
        couple=lambda *, eta, mu, K: Hyperparameters(eta=eta),
        start=lambda w_0: tuple(coefficient * w_0 for coefficient in start),
        query=lambda state, hp: _combine(step.query, state),
        update=lambda state, w_md, g, hp: _apply(step.update, (*state, w_md, g)),
        output=lambda state, hp, t: state[0],
    )


def _apply(rows: tuple[tuple[float, ...], ...], vectors: State) -> State:
    return tuple(_combine(row, vectors) for row in rows)


def _combine(coefficients: tuple[float, ...], vectors: State) -> Vector:
    terms = [c * v for c, v in zip(coefficients, vectors, strict=True) if c]
    return reduce(add, terms) if terms else 0.0 * vectors[0]
