"""An algorithm's step as linear combinations, for runtimes that want their own fused operations.

The coefficients are found by calling the algorithm's own functions on unit values, so that no
runtime writes an update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial, reduce
from operator import add

import numpy as np

from fedac.algorithms.algorithm import Algorithm, ClientWork, State, Vector
from fedac.algorithms.checks import check_functions
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError
from fedac.validate import Array


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
    update: Rows


@lru_cache(maxsize=256)  # called at every step, mostly with the same hyperparameters
def linear_form(algorithm: Algorithm, hp: Hyperparameters) -> Linear:
    """Find the coefficients of an algorithm's step, or refuse one that is not linear.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> from fedac.algorithms.hyperparameters import FedAcHyperparameters
    >>> hp = FedAcHyperparameters(eta=0.5, gamma=1.0, alpha=2.0, beta=4.0)
    >>> linear_form(FEDAC_I, hp)  # of w_ag and w
    Linear(query=(0.75, 0.25), update=((0.0, 0.0, 1.0, -0.5), (0.0, 0.5, 0.5, -1.0)))
    """
    S = len(algorithm.local_sequences)
    try:
        with np.errstate(all="ignore"):  # 0/0 at our probes says nothing about the user's run
            query, update = _step(algorithm, np.eye(S + 2), hp)
            query = query[:S]
            exact = len(update) == S and _is_exact(query, update, algorithm, hp)
    except Exception:  # a user's functions may fail on our probes in any way
        exact = False
    if not exact:
        check_functions(algorithm, hp, np.ones(2))  # a broken record has a better reason
        raise InputError(
            f"algorithm '{algorithm.name}' is not linear in its state and gradient (or its numbers "
            "overflow); only the reference engine of simulate can run it, not the fast one, "
            "PyTorch or Flower"
        )
    return Linear(query=tuple(query.tolist()), update=tuple(map(tuple, update.tolist())))


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
    values = probes(S + 2, len(scale)) * scale
    # Step sizes may be huge: their multiple of g must not hide all other terms.
    values[-1] /= max(1.0, np.abs(update[:, -1]).max())
    w_md, after = _step(algorithm, values, hp)
    slack = 1e-9 * scale * max(1.0, np.abs(query).max(), np.abs(update[:, :-1]).max())
    return bool(
        (np.abs(w_md - query @ values[:S]) <= slack).all()
        and (np.abs(after - update @ values) <= slack).all()
    )


# --- Linear combinations of vectors, and values to check that a function is one.

# Each row has the coefficients of one combination.
Rows = tuple[tuple[float, ...], ...]


def apply_rows(rows: Rows, vectors: State) -> State:
    """Return a combination of the vectors for each row.

    Examples
    --------
    >>> apply_rows(((1.0, 2.0), (0.0, -1.0)), (3.0, 4.0))
    (11.0, -4.0)
    """
    return tuple(combine(row, vectors) for row in rows)


def combine(coefficients: tuple[float, ...], vectors: State) -> Vector:
    """Return one combination of the vectors."""
    terms = [c * v for c, v in zip(coefficients, vectors, strict=True) if c]
    return reduce(add, terms) if terms else 0.0 * vectors[0]


@cache  # a step size that falls asks in every round
def probes(rows: int, columns: int) -> Array:
    """Return columns of values, the same in every call."""
    return np.random.default_rng(0).normal(size=(rows, columns))


# --- How a client enters and leaves a round, as linear combinations.
#
# They are for runtimes that want their own fused operations, and for clients that have only
# numbers.
# The coefficients are found by calling the algorithm's own functions on unit values.


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
    steps : int
        After how many local steps.
    slope_message, slope_memory : tuple of tuples of float, optional
        How `message` and `memory` change with 1/steps. None if they depend on the number of steps
        in another way.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> scaffold = get("scaffold")
    >>> form = boundary_form(scaffold, scaffold.couple(eta=0.5, mu=1.0, K=4), 4)
    >>> form.enter_round((3.0, 1.0), (0.5,))  # x and c; c_m
    (3.0, 0.5, 0.0)
    >>> form.leave_round((1.0, 0.5, 8.0), (3.0, 1.0), (0.5,))
    ((1.0, 1.5), (2.0,))
    >>> form.after(8).leave_round((1.0, 0.5, 8.0), (3.0, 1.0), (0.5,))  # a mean of 8 gradients
    ((1.0, 0.5), (1.0,))
    """

    first_memory: Rows
    enter: Rows
    message: Rows
    memory: Rows
    steps: int
    slope_message: Rows | None
    slope_memory: Rows | None

    def after(self, steps: int) -> Boundary:
        """Return the coefficients of leaving after another number of steps."""
        if steps == self.steps:
            return self
        if self.slope_message is None or self.slope_memory is None:
            raise InputError(
                f"this algorithm leaves a round in a way that is known for {self.steps} local "
                f"steps only, not for {steps}: its leave is not of the form A + B/steps"
            )
        return replace(
            self,
            steps=steps,
            message=self._shifted(self.message, self.slope_message, steps),
            memory=self._shifted(self.memory, self.slope_memory, steps),
        )

    def _shifted(self, rows: Rows, slope: Rows, steps: int) -> Rows:
        moved = np.array(rows) + (1 / steps - 1 / self.steps) * np.array(slope)
        return tuple(map(tuple, moved.tolist()))

    def begin_memory(self, sequences: State) -> State:
        """Return what a client remembers that has no memory yet."""
        return apply_rows(self.first_memory, sequences)

    def enter_round(self, sequences: State, memory: State) -> State:
        """Return what a client works on."""
        return apply_rows(self.enter, (*sequences, *memory))

    def leave_round(self, local: State, sequences: State, memory: State) -> tuple[State, State]:
        """Return what a client sends, and what it remembers."""
        vectors = (*local, *sequences, *memory)
        return apply_rows(self.message, vectors), apply_rows(self.memory, vectors)


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

    def leave(values: Array, steps: int) -> State:
        local, sequences, memory = values[:L], values[L : L + T], values[L + T :]
        message, after = algorithm.leave(
            tuple(local), tuple(sequences), tuple(memory), hp, ClientWork(steps=steps)
        )
        return (*message, *after)

    def left_after(steps: int) -> Rows:
        return _matrix(partial(leave, steps=steps), L + T + P)

    try:
        with np.errstate(all="ignore"):  # 0/0 at our probes says nothing about the user's run
            firsts, entered = _matrix(first_memory, T), _matrix(enter, T + P)
            left, slope = left_after(steps), _slope(left_after)
    except Exception as error:  # a user's functions may fail on our probes in any way
        check_functions(algorithm, hp, np.ones(2))
        raise InputError(
            f"algorithm '{algorithm.name}' does not enter and leave a round linearly; only "
            "PyTorch and the reference engine of simulate can run it, not the fast one or Flower"
        ) from error
    slope_message, slope_memory = (None, None) if slope is None else (slope[:T], slope[T:])
    return Boundary(firsts, entered, left[:T], left[T:], steps, slope_message, slope_memory)


def _slope(left_after: Callable[[int], Rows]) -> Rows | None:
    """Return B if coefficients after some steps are A + B/steps, else None."""
    try:
        one, two, more = (np.array(left_after(steps)) for steps in (1, 2, 7))
    except Exception:  # a user's function may fail at other numbers of steps
        return None
    slope = 2 * (one - two)
    slack = 1e-9 * max(1.0, np.abs(one).max(initial=0.0))
    if not (np.abs(one + (1 / 7 - 1) * slope - more) <= slack).all():
        return None
    return tuple(map(tuple, slope.tolist()))


def _matrix(function: Callable[[Array], State], inputs: int) -> Rows:
    """Return the coefficients of a linear function of so many vectors, or raise ValueError."""
    units = np.eye(inputs)
    matrix = np.array([np.broadcast_to(row, inputs) for row in function(units.copy())])
    matrix = matrix.reshape(-1, inputs)
    values = probes(inputs, 8)
    found = np.array([np.broadcast_to(row, 8) for row in function(values.copy())]).reshape(-1, 8)
    slack = 1e-9 * max(1.0, np.abs(matrix).max(initial=0.0))
    if not (np.abs(found - matrix @ values) <= slack).all():
        raise ValueError("not linear")
    return tuple(map(tuple, matrix.tolist()))


# --- An algorithm's local step rebuilt from its coefficients.


def from_linear(
    name: str,
    sequences: tuple[str, ...],
    start: Sequence[float],
    step: Linear,
    *,
    eta: float,
    scales: bool = True,
) -> Algorithm:
    """Rebuild a local step from its coefficients, for a client that has only these numbers.

    The result is a plain algorithm whose sequences are what a client works on. Its hyperparameters
    are in the coefficients already. It outputs its first sequence: only the original knows more.

    Parameters
    ----------
    name, sequences, start, step
        Those of the original.
    eta : float
        The step size that the coefficients are for.
    scales : bool
        Whether it may take another step size, as from a scheduler: see `_scaled`.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> from fedac.algorithms.linear import linear_form
    >>> hp = FEDAC_I.couple(eta=0.5, mu=0.5, K=4)
    >>> step = linear_form(FEDAC_I, hp)
    >>> twin = from_linear("twin", FEDAC_I.sequences, (1.0, 1.0), step, eta=0.5)
    >>> twin.update((8.0, 4.0), 7.0, 2.0, hp) == FEDAC_I.update((8.0, 4.0), 7.0, 2.0, hp)
    True
    """

    def couple(*, eta: float, mu: float, K: int) -> Hyperparameters:
        if eta != nominal and not scales:
            raise InputError(
                f"'{name}' needs the step size of the server in all its local steps, {nominal:g}, "
                f"not {eta:g}; let it fall there instead, with eta=fedac.Decay(...)"
            )
        return Hyperparameters(eta=eta)

    def update(state: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
        return apply_rows(_scaled(step.update, start, hp.eta / nominal), (*state, w_md, g))

    nominal = eta
    return Algorithm(
        name=name,
        label=name,
        sequences=sequences,
        couple=couple,
        start=lambda w_0: tuple(coefficient * w_0 for coefficient in start),
        query=lambda state, hp: combine(step.query, state),
        update=update,
        output=lambda state, hp, t: state[0],
    )


def with_boundary(
    rule: Algorithm,
    boundary: Boundary,
    *,
    sequences: tuple[str, ...],
    memory: tuple[str, ...],
    changes: tuple[str, ...] = (),
    echoes: tuple[tuple[str, str], ...] = (),
) -> Algorithm:
    """Return the local steps of `rule` between an entry and an exit given by coefficients.

    `sequences`, `memory`, `changes` and `echoes` are those of the original algorithm. The server's
    part of the round is not known.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> scaffold = get("scaffold")
    >>> hp = scaffold.couple(eta=0.5, mu=1.0, K=4)
    >>> rule = from_linear(
    ...     "twin", scaffold.local_sequences, (1.0, 0.0, 0.0), linear_form(scaffold, hp), eta=0.5
    ... )
    >>> twin = with_boundary(
    ...     rule, boundary_form(scaffold, hp, 4), sequences=scaffold.sequences, memory=("c_m",)
    ... )
    >>> twin.enter((3.0, 1.0), (0.5,), hp)
    (3.0, 0.5, 0.0)
    """

    def leave(
        local: State, sequences: State, memory: State, hp: Hyperparameters, done: ClientWork
    ) -> tuple[State, State]:
        return boundary.after(done.steps).leave_round(local, sequences, memory)

    return replace(
        rule,
        sequences=sequences,
        local=rule.sequences,
        memory=memory,
        first_memory=boundary.begin_memory,
        enter=lambda sequences, memory, hp: boundary.enter_round(sequences, memory),
        leave=leave,
        changes=changes,
        echoes=echoes,
    )


def _scaled(rows: Rows, start: Sequence[float], factor: float) -> Rows:
    """Return the coefficients of a step whose size is multiplied by a factor.

    Iterates, which start at a multiple of w_0, then move by that multiple of the gradient and of
    momentum, which starts at 0. What is not an iterate adds up gradients as ever. It is exact for
    SGD, with and without momentum; for FedAc, eta and gamma are both multiplied.
    """
    if factor == 1:
        return rows
    moves = [*(value == 0 for value in start), False, True]  # w_md is an iterate, g is none
    return tuple(
        tuple(factor * c if move else c for c, move in zip(row, moves, strict=True))
        if start[s]
        else row
        for s, row in enumerate(rows)
    )
