"""Groups of lanes: one array of states, advanced together."""

from __future__ import annotations

from dataclasses import fields
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedac.algorithms import Algorithm, RoundInfo
from fedac.algorithms.algorithm import serve_mean
from fedac.simulation.problem import DIVERGED, Lane, Problem, Snapshot
from fedac.validate import Array


class LaneGroup:
    """Lanes that can be advanced together: equally many vectors, and one kind of round.

    `state`, of shape (d, T, number of lanes), holds the sequences after the last round. `server`,
    of shape (d, Q, number of lanes), is the server's own state; algorithms with fewer than Q
    vectors use the first ones. `indices` are the lanes in the problem.
    """

    def __init__(self, indices: list[int], problem: Problem) -> None:
        self.problem = problem
        self._round = 0
        algorithms = [problem.lanes[i].algorithm for i in indices]
        starts = [a.split(a.start(problem.start)) for a in algorithms]
        sequences = [np.stack(sequences) for sequences, _ in starts]
        self.state: Array = np.ascontiguousarray(np.stack(sequences).transpose(2, 1, 0))
        most = max(len(a.server) for a in algorithms)
        self.server: Array = np.zeros((len(problem.start), most, len(indices)))
        for lane, (_, kept) in enumerate(starts):
            for q, vector in enumerate(kept):
                self.server[:, q, lane] = vector
        self._set_lanes(indices)

    @property
    def minibatch(self) -> bool:
        """Whether these lanes take one step per round."""
        return self.lanes[0].algorithm.minibatch

    @property
    def is_plain(self) -> bool:
        """Whether clients work on the broadcast sequences themselves, and send them back.

        Then only the sum of all messages matters, and the kernels need not form any of them.
        """
        return self.lanes[0].algorithm.is_plain and not self.problem.rounds_messages

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

    def serve(self, before: Array, this: RoundInfo) -> None:
        """Turn the mean messages, now in `state`, into the next state by the servers' rules.

        `before` holds the broadcast sequences.
        """
        for algorithm, hp, where in self._stretches:
            if algorithm.serve is serve_mean:
                continue
            Q = len(algorithm.server)
            message, sequences, server = (
                tuple(vectors[:, :, where].transpose(1, 0, 2))
                for vectors in (self.state, before, self.server[:, :Q])
            )
            sequences, server = algorithm.serve(message, sequences, server, hp, this)
            for s, vector in enumerate(sequences):
                self.state[:, s, where] = vector
            for q, vector in enumerate(server):
                self.server[:, q, where] = vector

    def snapshots(self, step: int) -> list[Snapshot]:
        """Return the state of every lane."""
        return [
            Snapshot(index, step, self._state_of(place)) for place, index in enumerate(self.indices)
        ]

    def drop_diverged(self, step: int) -> list[Snapshot]:
        """Remove the lanes that have diverged, and return them."""
        # One cheap test of all lanes, which no NaN passes; only suspects are checked one by one.
        if all(v.min(initial=0) >= -DIVERGED and v.max(initial=0) <= DIVERGED
               for v in (self.state, self.server)):  # fmt: skip
            return []
        largest = np.maximum(
            np.abs(self.state).max(axis=(0, 1)), np.abs(self.server).max(axis=(0, 1), initial=0.0)
        )
        dropped = {}
        for place in np.flatnonzero(~(largest <= DIVERGED)):
            state = self._state_of(int(place))
            if self.lanes[place].diverged(state, step):
                dropped[place] = Snapshot(self.indices[place], step, state, diverged=True)
        if dropped:
            self.state, self.server = (
                np.ascontiguousarray(np.delete(vectors, list(dropped), axis=2))
                for vectors in (self.state, self.server)
            )
            self._set_lanes([x for place, x in enumerate(self.indices) if place not in dropped])
        return list(dropped.values())

    def enter_round(self, r: int) -> None:
        """Set the hyperparameters of round r where a step size decays."""
        if self.decays:
            self._round = r
            self._set_lanes(self.indices)

    def _state_of(self, place: int) -> tuple[Array, ...]:
        """Return the sequences and server state of a lane."""
        Q = len(self.lanes[place].algorithm.server)
        state = np.concatenate([self.state[:, :, place], self.server[:, :Q, place]], axis=1)
        return tuple(state.T.copy())

    def _set_lanes(self, indices: list[int]) -> None:
        """Set the lanes, and find the stretches of them that share an algorithm.

        Their hyperparameters become arrays over lanes, so that one call of the algorithm's own
        functions advances all of them. An algorithm that does not take arrays (it may call ``min``
        or ``math.sqrt`` on a hyperparameter) is called lane by lane.
        """
        self.indices = indices
        self.lanes = [self.problem.lanes[index].at(self._round) for index in indices]
        self.decays = any(lane.eta is not None for lane in self.lanes)
        self.serves = any(lane.algorithm.serve is not serve_mean for lane in self.lanes)
        self._stretches: list[tuple[Algorithm, Any, slice]] = []
        first = 0
        for _, group in groupby(self.lanes, key=lambda lane: id(lane.algorithm)):
            lanes: list[Lane] = list(group)
            algorithm, where = lanes[0].algorithm, slice(first, first + len(lanes))
            names = [field.name for field in fields(lanes[0].hp)]
            hp = SimpleNamespace(
                **{name: np.array([getattr(lane.hp, name) for lane in lanes]) for name in names}
            )
            if _takes_arrays(algorithm, hp):
                self._stretches.append((algorithm, hp, where))
            else:
                for place, lane in enumerate(lanes, start=first):
                    self._stretches.append((algorithm, lane.hp, slice(place, place + 1)))
            first += len(lanes)


def _takes_arrays(algorithm: Algorithm, hp: Any) -> bool:
    """Return whether an algorithm can advance several lanes in one call."""
    ones = np.ones((1, len(hp.eta)))
    local, sequences, server = (
        (ones,) * len(names)
        for names in (algorithm.local_sequences, algorithm.sequences, algorithm.server)
    )
    try:
        after = algorithm.update(local, algorithm.query(local, hp), ones, hp)
        served, kept = algorithm.serve(sequences, sequences, server, hp, RoundInfo())
    except Exception:  # a user's functions may fail on arrays in any way
        return False
    return all(np.shape(vector) == ones.shape for vector in (*after, *served, *kept))


def make_groups(problem: Problem) -> list[LaneGroup]:
    """LaneGroup the lanes of a problem by what can be advanced together."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for index, lane in enumerate(problem.lanes):
        a = lane.algorithm
        sizes = (len(a.local_sequences), len(a.sequences), len(a.memory))
        kind = (*sizes, a.is_plain, a.minibatch, echoes_of(a))
        kinds.setdefault(kind, []).append(index)
    return [LaneGroup(indices, problem) for indices in kinds.values()]


def echoes_of(algorithm: Algorithm) -> tuple[int, ...]:
    """Return which vector of its message each vector of a client's memory follows; -1: none."""
    follows = {kept: algorithm.sequences.index(sequence) for sequence, kept in algorithm.echoes}
    return tuple(follows.get(kept, -1) for kept in algorithm.memory)
