"""How a client enters and leaves a round, as linear combinations.

They are for runtimes that want their own fused operations, and for clients that have only numbers.
The coefficients are found by calling the algorithm's own functions on unit values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from fedac.algorithms.combinations import Rows, apply_rows, probes
from fedac.algorithms.contract import check_functions
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.record import Algorithm, State
from fedac.arrays import Array
from fedac.errors import InputError


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
        message, after = algorithm.leave(tuple(local), tuple(sequences), tuple(memory), hp, steps)
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
