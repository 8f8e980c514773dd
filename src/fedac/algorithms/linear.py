"""An algorithm's step as linear combinations, for runtimes that want their own fused operations.

The coefficients are found by calling the algorithm's own functions on unit values, so that no
runtime writes an update.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedac.algorithms.combinations import Rows, probes
from fedac.algorithms.contract import check_functions
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.record import Algorithm
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
    update: Rows


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
