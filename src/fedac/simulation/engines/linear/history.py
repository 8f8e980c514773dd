# SPDX-License-Identifier: Apache-2.0
"""Asynchronous rounds: what the server sent to the clients at work, and rounds of plain methods.

The members of a server step started from different versions. Their messages count by their moves,
times a scale (`fedac.federation.round.arrive`). The kernels get all versions that are in use, and
for every client the number of its version and its scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.algorithms import Algorithm
from fedac.federation.federation import Round, Update
from fedac.federation.round import staleness_scale
from fedac.objectives.base import RowNumbers
from fedac.simulation.engines.linear.kernels.interface import Draws, Received
from fedac.simulation.engines.linear.kernels.simd import aligned
from fedac.simulation.engines.linear.rounds import LaneGroup, LocalRounds, MinibatchRounds
from fedac.simulation.engines.linear.workers import Context
from fedac.simulation.problem import Problem
from fedac.validate import Array


class VersionHistory:
    """The sequences of all versions that clients work from, of a group of lanes."""

    def __init__(
        self, problem: Problem, group: LaneGroup, chunks: list[tuple[int, int]], V: int,
        dtype: npt.DTypeLike,
    ) -> None:  # fmt: skip
        self.problem, self.group = problem, group
        self.chunks = [Broadcasts(group, slice(a, b), V, dtype) for a, b in chunks]
        self._rows: dict[int, int] = {}  # of the broadcasts, by version
        self._free: list[int] = []

    def stretches(self) -> Iterator[tuple[slice, Broadcasts]]:
        """Yield the places of lanes that share a vector, and what they were sent."""
        first = 0
        for chunk in self.chunks:
            last = first + len(chunk.indices)
            if last > first:
                yield slice(first, last), chunk
            first = last

    def receive(self, version: int) -> None:
        """Store the last version, of the lanes that have not diverged."""
        alive = set(self.group.indices)
        for chunk in self.chunks:
            chunk.keep([i for i in chunk.indices if i in alive])
        row = self._free.pop() if self._free else len(self._rows)
        self._rows[version] = row
        for where, chunk in self.stretches():
            chunk.store(row, self.group.state[:, :, where])

    def rows(self, update: Update) -> RowNumbers:
        """Return where the version is that each member of an update started from."""
        return np.array([self._rows[version] for version in update.versions.tolist()])

    def forget(self, now: int) -> None:
        """Drop the versions that no server step from `now` on needs."""
        needed = self.problem.keep_versions(self._rows, now)
        self._free += [row for version, row in self._rows.items() if version not in needed]
        self._rows = needed


class Broadcasts:
    """What the server has sent, as long as clients work from it, in lanes that share a vector.

    `sent` has the sequences of a version in each row, and `bases` the vectors that messages are
    differences from: some of the sequences, and zeros for changes.
    """

    def __init__(self, group: LaneGroup, where: slice, V: int, dtype: npt.DTypeLike) -> None:
        self.indices = group.indices[where]  # of the lanes, in the order of the columns
        bases = [bases_of(lane.algorithm).diagonal() for lane in group.lanes[where]]
        self.based = np.stack(bases, axis=-1)  # which of the sequences, by lane
        d, T = group.state.shape[:2]
        self.sent = self.bases = aligned((0, d, T, V), dtype)

    def store(self, row: int, state: Array) -> None:
        """Store a version."""
        everything, count = self.based.all(), state.shape[-1]
        if row == len(self.sent):
            self.sent = _doubled(self.sent)
            self.bases = self.sent if everything else _doubled(self.bases)
        self.sent[row, :, :, :count] = state
        if not everything:
            self.bases[row, :, :, :count] = self.based * state

    def weighted(self, weights: Array, rows: RowNumbers) -> Array:
        """Return the weighted sum of the bases of some versions, shape (d, T, lanes)."""
        by_row = np.bincount(rows, weights).astype(self.bases.dtype)
        # A matrix product would use threads, and their number would change the last digits.
        total: Array = np.einsum("r,rdtv->dtv", by_row, self.bases[: len(by_row)])
        return total[..., : len(self.indices)].astype(np.float64)

    def keep(self, indices: list[int]) -> None:
        """Remove all lanes but the given ones."""
        if indices != self.indices:
            columns = [self.indices.index(index) for index in indices]
            self.indices, self.based = indices, self.based[:, columns]
            for each in {id(each): each for each in (self.sent, self.bases)}.values():
                each[..., : len(columns)] = each[..., columns]


def _doubled(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array with space for twice as many rows."""
    larger = aligned((max(1, 2 * len(rows)), *rows.shape[1:]), rows.dtype)
    larger[: len(rows)] = rows
    return larger


def bases_of(algorithm: Algorithm) -> Array:
    """Return the vectors that messages are differences from, in terms of the sequences."""
    T = len(algorithm.sequences)
    found = np.zeros((T, T))
    found[np.isin(algorithm.sequences, algorithm.sent)] = np.stack(
        algorithm.bases(tuple(np.eye(T)))
    )
    return found


def scales_of(update: Update) -> Array:
    """Return how much the move of each member of an update counts."""
    return np.asarray(staleness_scale(update.staleness.astype(np.float64)))


def parts_of(
    context: Context, group: LaneGroup, draws: Draws, update: Update
) -> Iterator[tuple[Draws, Update]]:
    """Yield parts of an update whose clients work with the same hyperparameters, now the group's.

    If step sizes decay, clients use those of their version.
    """
    if not group.decays:
        yield draws, update
        return
    for some in update.passes(by_version=True):
        part = update.part(some)
        group.enter_round(int(part.versions[0]))
        yield context.draws(part), part
    group.enter_round(update.span.number)


class StaleRounds(LocalRounds):
    """Takes a group of lanes through server steps with messages of plain clients of any version.

    As in rounds, only the sum of all moves matters. The mean message is that of workers who all
    start from the weighted mean of the versions.
    """

    def __init__(self, context: Context, group: LaneGroup) -> None:
        super().__init__(context, group)
        V, dtype = self.workers.widths.V, self.workers.dtype
        self._history = VersionHistory(context.problem, group, self.chunks(), V, dtype)

    def round(
        self, draws: Draws, update: Update | Round, minibatch: MinibatchRounds | None
    ) -> None:
        """Advance every lane by one step of the server."""
        assert isinstance(update, Update)  # of a timeline
        self._history.receive(update.span.number)
        for where, chunk in self._history.stretches():
            weight = draws.total_weight()
            for part, those in parts_of(self.context, self.group, draws, update):
                rows, scales = self._history.rows(those), scales_of(those)
                weights = part.weights() * scales
                tables, closing = self.table(where, part.gap)
                received = Received(chunk.sent.reshape(-1), rows, scales)
                self.workers.run(part, tables, chunk.indices, received=received)
                before = chunk.weighted(weights / weight, rows)
                constant = closing.constant * (weights.sum() / weight)
                after = before.copy()
                self.finish(after, closing._replace(constant=constant), weight)
                self.group.state[:, :, where] += after - before
        self._history.forget(update.span.number + 1)
