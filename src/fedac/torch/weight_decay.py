"""Decoupled weight decay: iterates shrink, apart from the gradient's step.

As in AdamW, parameters shrink by lr * weight_decay in every step, whatever the gradient is. An
algorithm with several sequences lets all of its iterates shrink alike, and so w_md too, which is an
average of them.
"""

from __future__ import annotations

from functools import lru_cache

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.linear import Linear, linear_form


@lru_cache(maxsize=256)
def decayed_form(algorithm: Algorithm, hp: Hyperparameters, weight_decay: float) -> Linear:
    """Return the coefficients of a step with weight decay.

    Every step makes an iterate an average of iterates plus a multiple of the gradient. The average
    is multiplied by 1 - eta * weight_decay, the gradient is not.

    An iterate is a sequence that starts at w_0 (or at a multiple of it). Others start at 0:
    momentum, sums of gradients or of iterates, corrections. They take their steps as ever. So does
    a sequence that no step moves, such as the point where the round began.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG, get
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=1)
    >>> decayed_form(FEDAVG, hp, 0.1).update  # of w, w_md and g: w <- 0.95 w_md - 0.5 g
    ((0.0, 0.95, -0.5),)
    >>> decayed_form(get("momentum(0.9)"), hp, 0.1).update  # w <- 0.95 w - 0.5 u; u <- 0.9 u + g
    ((0.0, -0.45, 0.95, -0.5), (0.0, 0.9, 0.0, 1.0))
    """
    form = linear_form(algorithm, hp)
    if weight_decay == 0:
        return form
    sequences, _ = algorithm.split(algorithm.start(1.0))
    starts = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
    is_iterate = [*(start != 0 for start in starts), True, False]  # w_md is one, g is none
    keep = 1 - hp.eta * weight_decay
    rows = []
    for s, row in enumerate(form.update):
        stays = all(factor == (column == s) for column, factor in enumerate(row))
        if is_iterate[s] and not stays:
            pairs = zip(row, is_iterate, strict=True)
            row = tuple(keep * factor if iterate else factor for factor, iterate in pairs)
        rows.append(row)
    return Linear(query=form.query, update=tuple(rows))
