"""An algorithm's local step rebuilt from its coefficients."""

from __future__ import annotations

from collections.abc import Sequence

from fedac.algorithms.combinations import Rows, apply_rows, combine
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.linear import Linear
from fedac.algorithms.record import Algorithm, State, Vector
from fedac.errors import InputError


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
