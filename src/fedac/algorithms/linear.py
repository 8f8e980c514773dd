# SPDX-License-Identifier: Apache-2.0
"""Algorithms as coefficients of linear combinations, found by calling them on unit vectors.

The fast engine and PyTorch fuse a local step into few operations, and a Flower client receives
numbers instead of code: no runtime needs its own update formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, reduce
from operator import add
from typing import Any

import numpy as np

from fedac.algorithms.algorithm import Algorithm, ClientWork, State, Vector
from fedac.algorithms.checks import check_functions
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError
from fedac.validate import Array

Rows = tuple[tuple[float, ...], ...]
"""One row of coefficients for each combination."""
_SCALE = np.repeat([1e-9, 1e-4, 1.0, 1e4, 1e9], 4)  # of the probes


@dataclass(frozen=True, slots=True)
class Linear:
    """The coefficients of a local step."""

    query: tuple[float, ...]  # w_md in terms of the local sequences
    update: Rows  # the next local sequences in terms of the current ones, w_md and g


@lru_cache(maxsize=256)  # called at every step, usually with the same hyperparameters
def linear_form(algorithm: Algorithm, hp: Hyperparameters) -> Linear:
    """Find the coefficients of an algorithm's local step, or raise InputError if it is not linear.

    >>> from fedac.algorithms import FEDAC_I
    >>> from fedac.algorithms.hyperparameters import FedAcHyperparameters
    >>> hp = FedAcHyperparameters(eta=0.5, gamma=1.0, alpha=2.0, beta=4.0)
    >>> linear_form(FEDAC_I, hp)  # of w_ag and w
    Linear(query=(0.75, 0.25), update=((0.0, 0.0, 1.0, -0.5), (0.0, 0.5, 0.5, -1.0)))
    """
    S = len(algorithm.local_sequences)

    def step(values: State) -> State:
        *local, w_md, g = values
        query = algorithm.query(tuple(vector.copy() for vector in local), hp)
        return (query, *algorithm.update(tuple(local), w_md, g, hp))

    try:
        query, *update = _matrix(step, S + 2)
        if len(update) != S:
            raise ValueError("wrong number of sequences")
    except Exception as error:  # a user's functions may fail on our probes in any way
        check_functions(algorithm, hp, np.ones(2))  # finds a better reason if one is broken
        raise InputError(
            f"algorithm '{algorithm.name}' is not linear in its state and gradient (or its numbers "
            "overflow); only the reference and network engines of simulate can run it, not the "
            "fast one, PyTorch or Flower"
        ) from error
    return Linear(query=query[:S], update=tuple(update))


@dataclass(frozen=True, slots=True)
class Boundary:
    """The coefficients of entering a round, and of leaving it after `steps` local steps.

    >>> from fedac.algorithms import get
    >>> scaffold = get("scaffold")
    >>> form = boundary_form(scaffold, scaffold.couple(eta=0.5, mu=1.0, K=4), 4)
    >>> form.enter  # w, the correction and the sum of gradients, of w, c and c_m
    ((1.0, 0.0, 0.0), (0.0, 1.0, -1.0), (0.0, 0.0, 0.0))
    >>> form.memory, form.after(8).memory  # c_m is the mean gradient
    (((0.0, 0.0, 0.25, 0.0, 0.0, 0.0),), ((0.0, 0.0, 0.125, 0.0, 0.0, 0.0),))
    """

    first_memory: Rows  # a client's first memory in terms of the sequences
    enter: Rows  # the local sequences in terms of the sequences and the memory
    # In terms of the local sequences, the sequences, the memory and, if asked for, the gradient.
    message: Rows
    memory: Rows  # the new memory, in terms of the same vectors
    steps: int
    # Derivative of `message` and `memory` with respect to 1/steps, if they are A + B/steps.
    slope: Rows | None

    def after(self, steps: int) -> Boundary:
        """Return the coefficients for another number of local steps."""
        if steps == self.steps:
            return self
        if self.slope is None:
            raise InputError(
                f"the coefficients of this algorithm's leave are known for {self.steps} local "
                f"steps only, not for {steps}: they are not of the form A + B/steps"
            )
        left = np.array((*self.message, *self.memory))
        rows = _rows(left + (1 / steps - 1 / self.steps) * np.array(self.slope))
        T = len(self.message)
        return replace(self, steps=steps, message=rows[:T], memory=rows[T:])


@lru_cache(maxsize=256)
def boundary_form(algorithm: Algorithm, hp: Hyperparameters, steps: int) -> Boundary:
    """Find the coefficients of entering a round and of leaving it after some local steps."""
    T, P, L = map(len, (algorithm.sequences, algorithm.memory, algorithm.local_sequences))
    asks, U = "gradient" in algorithm.asks, len(algorithm.sent)

    def left_after(steps: int) -> Rows:
        def leave(values: State) -> State:
            local, sequences, memory = values[:L], values[L : L + T], values[L + T : L + T + P]
            done = ClientWork(steps=steps, gradient=values[-1] if asks else None)
            message, after = algorithm.leave(local, sequences, memory, hp, done)
            return (*message, *after)

        return _matrix(leave, L + T + P + asks)

    try:
        first_memory = _matrix(algorithm.begin_memory, T)
        enter = _matrix(lambda values: algorithm.enter(values[:T], values[T:], hp), T + P)
        left, slope = left_after(steps), _slope(left_after)
    except Exception as error:  # a user's functions may fail on our probes in any way
        check_functions(algorithm, hp, np.ones(2))
        raise InputError(
            f"algorithm '{algorithm.name}' does not enter and leave a round linearly; only "
            "PyTorch and the reference engine of simulate can run it, not the fast one or Flower"
        ) from error
    return Boundary(first_memory, enter, left[:U], left[U:], steps, slope)


def is_linear(algorithm: Algorithm) -> bool:
    """Return whether an algorithm has both forms; others run on few engines.

    >>> from fedac.algorithms import get
    >>> is_linear(get("scaffold-m")), is_linear(get("dualavg"))
    (True, False)
    """
    try:
        hp = algorithm.couple(eta=0.1, mu=0.1, K=4)
        linear_form(algorithm, hp)
        boundary_form(algorithm, hp, 4)
    except InputError:
        return False
    return True


def _slope(left_after: Callable[[int], Rows]) -> Rows | None:
    """Return B if the coefficients after some steps are A + B/steps, else None."""
    try:
        one, two, seven = (np.array(left_after(steps)) for steps in (1, 2, 7))
    except Exception:  # a user's function may fail at other numbers of steps
        return None
    slope = 2 * (one - two)
    slack = 1e-9 * max(1.0, np.abs(one).max(initial=0.0))
    if not (np.abs(one + (1 / 7 - 1) * slope - seven) <= slack).all():
        return None
    return _rows(slope)


def _matrix(function: Callable[[State], State], inputs: int) -> Rows:
    """Return the coefficients of a linear function of vectors; raise ValueError for any other.

    It is probed at all sizes: clipping only shows at large values, thresholds at small ones.
    """

    def call(values: Array) -> Array:
        columns = values.shape[1]
        # Copies: a user's functions may work in place.
        found = function(tuple(values.copy()))
        return np.array([np.broadcast_to(row, columns) for row in found]).reshape(-1, columns)

    with np.errstate(all="ignore"):  # 0/0 at our probes says nothing about the user's run
        matrix = call(np.eye(inputs))
        # Large coefficients, such as a huge step size, must not hide the other terms.
        sizes = np.maximum(1.0, np.abs(matrix).max(axis=0, initial=0.0))
        values = _probes(inputs) / sizes[:, None]
        exact = (np.abs(call(values) - matrix @ values) <= 1e-9 * _SCALE).all()
    if not exact:
        raise ValueError("not linear")
    return _rows(matrix)


@cache  # a decaying step size needs them in every round
def _probes(inputs: int) -> Array:
    values: Array = np.random.default_rng(0).normal(size=(inputs, len(_SCALE))) * _SCALE
    return values


def _rows(matrix: Array) -> Rows:
    return tuple(map(tuple, matrix.tolist()))


def _apply(rows: Rows, vectors: State) -> State:
    return tuple(_combine(row, vectors) for row in rows)


def _combine(coefficients: tuple[float, ...], vectors: State) -> Vector:
    terms = [c * v for c, v in zip(coefficients, vectors, strict=True) if c]
    return reduce(add, terms) if terms else 0.0 * vectors[0]


def from_linear(
    name: str,
    sequences: tuple[str, ...],
    start: Sequence[float],
    step: Linear,
    *,
    eta: float,
    scales: bool = True,
) -> Algorithm:
    """Rebuild an algorithm's local steps from coefficients; its output is its first sequence.

    `sequences` are the local ones, `start` their initial values for w_0 = 1, and `eta` the step
    size of the coefficients. A different one, for example from a scheduler, is allowed if `scales`.
    """

    def couple(*, eta: float, mu: float, K: int) -> Hyperparameters:
        if eta != nominal and not scales:
            raise InputError(
                f"'{name}' needs the step size of the server in all local steps, {nominal:g}, not "
                f"{eta:g}; to decay it, pass eta=fedac.Decay(...) to the strategy"
            )
        return Hyperparameters(eta=eta)

    def update(state: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
        return _apply(_scaled(step.update, start, hp.eta / nominal), (*state, w_md, g))

    nominal = eta
    return Algorithm(
        name=name,
        label=name,
        sequences=sequences,
        couple=couple,
        start=lambda w_0: tuple(coefficient * w_0 for coefficient in start),
        query=lambda state, hp: _combine(step.query, state),
        update=update,
        output=lambda state, hp, t: state[0],
    )


def with_boundary(rule: Algorithm, boundary: Boundary, **names: Any) -> Algorithm:
    """Return an algorithm with the local steps of `rule` that enters and leaves by coefficients.

    `names` are the fields sequences, memory, changes, echoes, pooled, means, broadcast_only and
    asks of the original algorithm.
    """

    def leave(
        local: State, sequences: State, memory: State, hp: Hyperparameters, done: ClientWork
    ) -> tuple[State, State]:
        form, vectors = boundary.after(done.steps), (*local, *sequences, *memory)
        vectors = vectors if done.gradient is None else (*vectors, done.gradient)
        return _apply(form.message, vectors), _apply(form.memory, vectors)

    return replace(
        rule,
        local=rule.sequences,
        first_memory=lambda sequences: _apply(boundary.first_memory, sequences),
        enter=lambda sequences, memory, hp: _apply(boundary.enter, (*sequences, *memory)),
        leave=leave,
        **names,
    )


def _scaled(rows: Rows, start: Sequence[float], factor: float) -> Rows:
    """Return the coefficients of a step whose size is multiplied by a factor.

    Iterates, which start at a multiple of w_0, move by `factor` times the gradient and momentum.
    Momentum, which starts at 0, sums gradients as before. This is exact for SGD with or without
    momentum; for FedAc it multiplies both eta and gamma.
    """
    if factor == 1:
        return rows
    moves = [*(value == 0 for value in start), False, True]  # w_md is an iterate, g is not
    return tuple(
        tuple(factor * c if move else c for c, move in zip(row, moves, strict=True))
        if start[s]
        else row
        for s, row in enumerate(rows)
    )
