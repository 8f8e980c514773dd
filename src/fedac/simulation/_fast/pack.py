"""Lanes packed side by side: one array of states, advanced together."""

from __future__ import annotations

from dataclasses import fields
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.arrays import Array
from fedac.simulation.problem import DIVERGED, Lane, Problem, Snapshot


class Pack:
    """Lanes with equally many sequences, all local or all minibatch.

    Attributes
    ----------
    indices : list of int
        Which lanes of the problem these are.
    lanes : list of Lane
        The lanes, those of one algorithm next to each other.
    state : array, shape (d, S, number of lanes)
        The averaged state after the last synchronization.
    """

    def __init__(self, indices: list[int], problem: Problem) -> None:
        self.problem = problem
        self._round = 0
        starts = [np.stack(problem.lanes[i].algorithm.start(problem.start)) for i in indices]
        self.state: Array = np.ascontiguousarray(np.stack(starts).transpose(2, 1, 0))
        self._set_lanes(indices)

    @property
    def minibatch(self) -> bool:
        """Whether these lanes take one step per round, whatever its length."""
        return self.lanes[0].algorithm.minibatch

    def query(self) -> Array:
        """Return where every lane takes its gradient, shape (d, number of lanes)."""
        return np.concatenate(
            [
                algorithm.query(tuple(self.state[:, :, where].transpose(1, 0, 2)), hp)
                for algorithm, hp, where in self._stretches
            ],
            axis=1,
        )

    def update(self, w_md: Array, g: Array) -> None:
        """Take one step with gradients `g` at `w_md`, both of shape (d, number of lanes)."""
        for algorithm, hp, where in self._stretches:
            state = tuple(self.state[:, :, where].transpose(1, 0, 2))
            after = algorithm.update(state, w_md[:, where], g[:, where], hp)
            for s, sequence in enumerate(after):
                self.state[:, s, where] = sequence

    def snapshots(self, step: int) -> list[Snapshot]:
        """Return the state of every lane."""
        states = self.state.transpose(2, 1, 0).copy()
        return [
            Snapshot(index, step, tuple(state))
            for index, state in zip(self.indices, states, strict=True)
        ]

    def drop_diverged(self, step: int) -> list[Snapshot]:
        """Remove the lanes that have diverged, and return them."""
        # One cheap test of all lanes; only suspects are examined one by one.
        largest = np.abs(self.state).max(axis=(0, 1))
        dropped = {}
        for place in np.flatnonzero(~(largest <= DIVERGED)):
            state = tuple(self.state[:, :, place].T.copy())
            if self.lanes[place].diverged(state, step):
                dropped[place] = Snapshot(self.indices[place], step, state, diverged=True)
        if dropped:
            self.state = np.ascontiguousarray(np.delete(self.state, list(dropped), axis=2))
            self._set_lanes([x for place, x in enumerate(self.indices) if place not in dropped])
        return list(dropped.values())

    def enter_round(self, r: int) -> None:
        """Set the hyperparameters of round r where a step size falls."""
        if self.falling:
            self._round = r
            self._set_lanes(self.indices)

    @property
    def falling(self) -> bool:
        """Whether a step size falls over rounds."""
        return any(lane.eta is not None for lane in self.lanes)

    def _set_lanes(self, indices: list[int]) -> None:
        """Set the lanes, and find the stretches of them that share an algorithm.

        Their hyperparameters become arrays over lanes: the algorithm's own functions then
        advance all of them in one call. An algorithm that cannot be called so (it may take
        ``min`` or ``math.sqrt`` of a hyperparameter) is called lane by lane.
        """
        self.indices = indices
        self.lanes = [self.problem.lanes[index].at(self._round) for index in indices]
        self._stretches: list[tuple[Algorithm, Any, slice]] = []
        first = 0
        for _, group in groupby(self.lanes, key=lambda lane: id(lane.algorithm)):
            lanes: list[Lane] = list(group)
            algorithm, where = lanes[0].algorithm, slice(first, first + len(lanes))
            hp = _side_by_side([lane.hp for lane in lanes])
            if _takes_arrays(algorithm, hp):
                self._stretches.append((algorithm, hp, where))
            else:
                for place, lane in enumerate(lanes, start=first):
                    self._stretches.append((algorithm, lane.hp, slice(place, place + 1)))
            first += len(lanes)


def _side_by_side(hyperparameters: list[Hyperparameters]) -> SimpleNamespace:
    """Return hyperparameters whose values are arrays over lanes."""
    names = [field.name for field in fields(hyperparameters[0])]
    return SimpleNamespace(
        **{name: np.array([getattr(hp, name) for hp in hyperparameters]) for name in names}
    )


def _takes_arrays(algorithm: Algorithm, hp: Any) -> bool:
    """Say whether an algorithm can advance several lanes in one call."""
    ones = np.ones((1, len(hp.eta)))
    state = (ones,) * len(algorithm.sequences)
    try:
        after = algorithm.update(state, algorithm.query(state, hp), ones, hp)
    except Exception:  # a user's functions may fail on arrays in any way
        return False
    return all(np.shape(sequence) == ones.shape for sequence in after)


def make_packs(problem: Problem) -> list[Pack]:
    """Pack the lanes of a problem by what can be advanced together."""
    kinds: dict[tuple[int, bool], list[int]] = {}
    for index, lane in enumerate(problem.lanes):
        kind = (len(lane.algorithm.sequences), lane.algorithm.minibatch)
        kinds.setdefault(kind, []).append(index)
    return [Pack(indices, problem) for indices in kinds.values()]
