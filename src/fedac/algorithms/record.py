"""What an algorithm is: a frozen record of plain functions.

The functions use only ``+ - * /`` on their arguments, so they work on floats, NumPy arrays and
tensors. The simulator, the PyTorch optimizer and the Flower client all call these functions; no
update is written anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedac.algorithms.couplings import Coupling

BYTES_PER_NUMBER = 4  # models travel as float32

# A float, an array or a tensor: anything with + - * /.
Vector = Any
State = tuple[Vector, ...]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One optimization algorithm, for every runtime.

    Parameters
    ----------
    name : str
        The name users type.
    label : str
        The name that figures show.
    sequences : tuple of str
        What a worker keeps and what a synchronization averages.
    couple : Coupling
        From ``eta`` (and ``mu``, ``K``) to ``hp``, the algorithm's own frozen record of
        hyperparameters, which its other functions are given.
    start : callable
        ``start(w_0) -> state``.
    query : callable
        ``query(state, hp) -> w_md``, where the gradient is taken.
    update : callable
        ``update(state, w_md, g, hp) -> state``, one local step.
    output : callable
        ``output(state, hp, t) -> w``, what is evaluated and reported after t steps.
    minibatch : bool
        One step per round, on the mean gradient of all M*K samples of the round.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=1)
    >>> state = FEDAVG.start(3.0)
    >>> w_md = FEDAVG.query(state, hp)
    >>> FEDAVG.update(state, w_md, 2.0, hp)
    (2.0,)
    """

    name: str
    label: str
    sequences: tuple[str, ...]
    couple: Coupling
    start: Callable[[Vector], State]
    query: Callable[[State, Any], Vector]
    update: Callable[[State, Vector, Vector, Any], State]
    output: Callable[[State, Any, int], Vector]
    minibatch: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle an algorithm of ours by its name: it is made of functions."""
        from fedac.algorithms import ALGORITHMS, get

        if ALGORITHMS.get(self.name) is self:
            return get, (self.name,)
        return object.__new__, (type(self),), self.__dict__

    def megabytes(self, *, dim: int, rounds: float) -> float:
        """Return what a worker sends in some rounds of a model with `dim` parameters.

        A minibatch algorithm sends its gradient; a local one each of its sequences.
        """
        vectors = 1 if self.minibatch else len(self.sequences)
        return vectors * dim * BYTES_PER_NUMBER * rounds / 1e6
