# SPDX-License-Identifier: Apache-2.0
"""The federation: the clients of a round, their draws and their weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedac.data.clients import Clients
from fedac.errors import InputError
from fedac.federation.sampling import clients_in, epoch_order, participants, sample_batch
from fedac.federation.schedule import Span
from fedac.federation.spec import FULL, Spec
from fedac.objectives.base import Objective, RowNumbers
from fedac.validate import Array, require_positive

F = TypeVar("F", bound=Objective)


class Update(NamedTuple):
    """A step of the server, and the clients whose messages it takes."""

    span: Span
    members: RowNumbers  # ascending; a client may be there twice
    versions: RowNumbers  # of the server that each started from: how many steps it had taken
    steps: RowNumbers  # local steps of each
    draws: Span  # whose rows and random numbers each draws; of numbers, or arrays of them

    @property
    def taking_part(self) -> int:
        """The number of messages."""
        return len(self.members)

    @property
    def staleness(self) -> RowNumbers:
        """How many steps the server has taken since each client started."""
        return self.span.number - self.versions

    @property
    def equal_steps(self) -> bool:
        """Whether all take the same number of local steps."""
        return bool((self.steps == self.steps[:1]).all())

    def part(self, some: RowNumbers) -> Update:
        """Return the update with some of its members only."""
        given: Any = self.draws
        draws = Span(*(each[some] if np.ndim(each) else each for each in given))
        return Update(self.span, self.members[some], self.versions[some], self.steps[some], draws)

    def passes(self, *, by_version: bool = False) -> Iterator[RowNumbers]:
        """Yield places of members to run together, so that no client is in one pass twice.

        With `by_version`, all clients of a pass started from the same version.
        """
        again = np.zeros(len(self.members), np.int64)  # works of a client are neighbours, in order
        for i in np.flatnonzero(self.members[1:] == self.members[:-1]) + 1:
            again[i] = again[i - 1] + 1
        if not (by_version or again.any()):
            yield np.arange(len(again))
            return
        keys = np.stack([again, self.versions if by_version else 0 * again], axis=1)
        for key in np.unique(keys, axis=0):
            yield np.flatnonzero((keys == key).all(axis=1))


class Round:
    """A round of all its participants; of millions, arrays are made only where they are needed."""

    def __init__(self, federation: Federation, span: Span) -> None:
        self._federation, self.span, self.draws = federation, span, span
        self.taking_part = federation.taking_part

    @cached_property
    def members(self) -> RowNumbers:
        """The participants, in ascending order."""
        return self._federation.members(self.span.number)

    @cached_property
    def steps(self) -> RowNumbers:
        """The local steps of each."""
        return self._federation.steps(self.members, self.span)


@dataclass(frozen=True, kw_only=True)
class Federation:
    """M clients, all or some of which are present in a round.

    >>> some = Federation(M=2, n=4, seed=1, clients=Clients([0, 1, 1, 1]))
    >>> some.weights(some.members(0))  # one row and three rows
    array([0.25, 0.75])
    """

    M: int
    n: int  # rows of the objective
    seed: int
    clients: Clients | None = None  # None: M workers that draw from all rows
    count: int | None = None  # clients in a round; None: all
    batch: int | None = 1  # rows per local step; None: all rows of the client
    weighting: str = "examples"
    epochs: int | None = None  # passes of a client through its rows in a round, instead of K steps
    local_steps: RowNumbers | None = None  # steps of every client in a round, instead of K

    @property
    def taking_part(self) -> int:
        """The number of clients in a round."""
        return self.M if self.count is None else self.count

    @cached_property
    def _everyone(self) -> RowNumbers:
        return np.arange(self.M)

    @cached_property
    def equal_weights(self) -> bool:
        """Whether all clients have the same weight."""
        if self.clients is None or self.weighting == "uniform":
            return True
        return int(np.ptp(self.clients.sizes)) == 0

    @cached_property
    def equal_steps(self) -> bool:
        """Whether all clients take the same number of steps in a round."""
        if self.local_steps is None and (self.epochs is None or self.clients is None):
            return True
        return int(np.ptp(self.steps(np.arange(self.M), Span(0, 0, 1)))) == 0

    @property
    def largest(self) -> int:
        """The largest number of rows of a client."""
        return self.n if self.clients is None else int(self.clients.sizes.max())

    def timing(self, *, minibatch: bool = False, full_gradient: bool = False) -> dict[str, Any]:
        """Return what `Link.elapsed` needs to know about the clients' work."""
        rows: Any = self.n if self.clients is None else self.clients.sizes
        found: dict[str, Any] = {
            "rows": rows if self.batch is None else self.batch, "minibatch": minibatch,
            "seed": self.seed, "M": self.M, "taking_part": self.taking_part,
        }  # fmt: skip
        if self.epochs is not None or self.local_steps is not None:
            found["steps"] = self.steps(np.arange(self.M), Span(0, 0, 1))
        if self.epochs is not None:  # the last batch of an epoch may be smaller
            found["rows"] = self.epochs * rows / found["steps"]
        if full_gradient:
            found["first"] = rows
        return found

    def members(self, r: int) -> RowNumbers:
        """Return the numbers of the clients in round r, in ascending order."""
        if self.count is None:
            return self._everyone
        return participants(self.seed, r, self.M, self.taking_part)

    def sizes(self, members: RowNumbers) -> RowNumbers:
        """Return the number of rows of each of these clients."""
        if self.clients is None:
            return np.full(len(members), self.n)
        return self.clients.bounds[members + 1] - self.clients.bounds[members]

    def weights(self, members: RowNumbers) -> Array:
        """Return the weights of these clients; the sum is 1."""
        if self.equal_weights:
            return np.full(len(members), 1 / len(members))
        sizes = self.sizes(members).astype(np.float64)
        return np.asarray(sizes / sizes.sum())

    def update(self, this_round: Span) -> Update:
        """Return a round in which all clients work from the server's last version."""
        members = self.members(this_round.number)
        versions = np.full(len(members), this_round.number)
        return Update(this_round, members, versions, self.steps(members, this_round), this_round)

    def share(self, members: RowNumbers) -> float:
        """Return the total weight of these clients; all clients together weigh 1."""
        if self.equal_weights:
            return len(members) / self.M
        return float(self.sizes(members).sum() / self.n)

    def mean(self, values: Array, members: RowNumbers) -> Array:
        """Return the weighted mean of an array with a row for each of these clients."""
        if self.equal_weights:
            return np.asarray(values.mean(axis=0))
        return np.asarray(self.weights(members) @ values)

    def work(self, objective: Objective, update: Update) -> ClientGradients:
        """Return the gradients that the clients of an update take."""
        batches = None if self.epochs is None else self.batches(update.members, update.draws)
        return ClientGradients(self, objective, update, batches)

    def gradients(
        self, objective: Objective, W: Array, members: RowNumbers, step: int | RowNumbers
    ) -> Array:
        """Return the gradient of each of these clients at its row of W.

        `step` is the number of its step, counted from the start of the run.
        """
        if self.batch is None:
            return self.full_gradients(objective, W, members)
        rows = sample_batch(self.seed, members, step, self.sizes(members), self.batch)
        if self.clients is not None:
            rows = self.clients.rows[self.clients.bounds[members][:, None] + rows]
        total = objective.stochastic_gradients(W, rows[:, 0])
        for others in rows.T[1:]:
            total = total + objective.stochastic_gradients(W, others)
        return total / self.batch if self.batch > 1 else total

    def steps(self, members: RowNumbers, this_round: Span) -> RowNumbers:
        """Return the number of local steps of each of these clients in a round."""
        if self.local_steps is not None:
            return self.local_steps[members]
        if self.epochs is None:
            return np.full(len(members), this_round.gap)
        sizes = self.sizes(members)
        return self.epochs * -(-sizes // (sizes if self.batch is None else self.batch))

    def first_steps(self, members: RowNumbers, this_round: Span) -> int | RowNumbers:
        """Return how many steps each of these clients takes before a round, if in all rounds."""
        if self.local_steps is not None:
            return this_round.number * self.local_steps[members]
        return this_round.t

    @property
    def mean_steps(self) -> int:
        """K if clients take different numbers of steps: their weighted mean, rounded up."""
        everyone = np.arange(self.M)
        mean = self.weights(everyone) @ self.steps(everyone, Span(0, 0, 1))
        return int(np.ceil(mean - 1e-9))

    @property
    def most_steps(self) -> int | None:
        """The largest number of local steps of a client; None if all take the same."""
        if self.equal_steps:
            return None
        return int(self.steps(np.arange(self.M), Span(0, 0, 1)).max())

    def batches(self, members: RowNumbers, this_round: Span) -> RowNumbers | list[list[RowNumbers]]:
        """Return the rows of every step of each of these clients, by client and step.

        An array if all steps have the same number of rows, else lists.
        """
        if self.epochs is not None:
            numbers = np.broadcast_to(this_round.number, len(members)).tolist()
            pairs = zip(members.tolist(), numbers, strict=True)
            return [self._epochs_of(m, number) for m, number in pairs]
        counts = self.steps(members, this_round)
        if self.batch is None:
            everything = np.arange(self.n)
            own = self.clients.rows_of if self.clients is not None else lambda m: everything
            each = zip(members.tolist(), counts.tolist(), strict=True)
            return [[own(m)] * count for m, count in each]
        firsts = np.broadcast_to(self.first_steps(members, this_round), len(members))
        if (counts == counts[0]).all():
            return self._drawn(members, firsts[:, None] + np.arange(counts[0]))
        every = zip(members.tolist(), firsts.tolist(), counts.tolist(), strict=True)
        return [
            list(self._drawn(np.array([m]), np.arange(first, first + count)[None])[0])
            for m, first, count in every
        ]

    def _drawn(self, members: RowNumbers, steps: RowNumbers) -> RowNumbers:
        """Return the rows that these clients draw, by client, step and place in the batch."""
        assert self.batch is not None
        sizes = self.sizes(members)[:, None]
        drawn = sample_batch(self.seed, members[:, None], steps, sizes, self.batch)
        if self.clients is None:
            return drawn
        return np.asarray(self.clients.rows[self.clients.bounds[members][:, None, None] + drawn])

    def _epochs_of(self, m: int, r: int) -> list[RowNumbers]:
        """Return the batches of a client in a round of epochs: every row once per epoch."""
        assert self.epochs is not None
        rows = np.arange(self.n) if self.clients is None else self.clients.rows_of(m)
        batch, found = self.batch or len(rows), []
        for epoch in range(r * self.epochs, (r + 1) * self.epochs):
            order = rows[epoch_order(self.seed, m, epoch, len(rows))]
            found += [order[first : first + batch] for first in range(0, len(rows), batch)]
        return found

    def queries_of(self, update: Update) -> int:
        """Return the number of single-row gradients of the local steps of an update."""
        if self.epochs is None and self.batch is not None:
            return self.batch * int(update.steps.sum())
        sizes = self.sizes(update.members)
        if self.epochs is not None:
            return int(sizes.sum()) * self.epochs
        if self.clients is None and update.equal_steps and not update.staleness.any():
            return self.n * int(update.steps[:1].sum())  # all do the same: count one worker
        return int((sizes * update.steps).sum())

    def queries(self, this_round: Span) -> int:
        """Return the number of single-row gradients that one run takes in a round."""
        if self.epochs is not None:
            return int(self.sizes(self.members(this_round.number)).sum()) * self.epochs
        if self.local_steps is None and self.batch is not None:
            return self.taking_part * self.batch * this_round.gap
        if self.local_steps is None and self.clients is None:
            return self.n * this_round.gap  # all are the same: count one worker
        members = self.members(this_round.number)
        rows = self.sizes(members) if self.batch is None else self.batch
        return int((rows * self.steps(members, this_round)).sum())

    def full_gradients(self, objective: Objective, W: Array, members: RowNumbers) -> Array:
        """Return the gradient of all rows of each of these clients at its row of W."""
        if self.clients is None:
            if (W[0] == W).all():
                return np.broadcast_to(objective.gradient(W[0]), W.shape)
            return np.stack([objective.gradient(w) for w in W])
        return mean_gradients(objective, W, [self.clients.rows_of(m) for m in members])


@dataclass(frozen=True)
class ClientGradients:
    """The gradients that the clients of an update take."""

    federation: Federation
    objective: Objective
    update: Update
    batches: Any = None  # of epochs: the rows of every step, by client

    def gradients(self, W: Array, active: RowNumbers, k: int) -> Array:
        """Return the gradients of step k = 0, 1, ... of members `active`, at its row of W each."""
        if self.batches is not None:
            return mean_gradients(self.objective, W, [self.batches[m][k] for m in active])
        update = self.update.part(active)
        steps = self.federation.first_steps(update.members, update.draws) + k
        return self.federation.gradients(self.objective, W, update.members, steps)

    def full_gradients(self, W: Array) -> Array:
        """Return the gradient of all rows of each member, at its row of W."""
        return self.federation.full_gradients(self.objective, W, self.update.members)


def mean_gradients(objective: Objective, W: Array, batches: list[RowNumbers]) -> Array:
    """Return the mean gradient of each batch of rows, at its row of W."""
    sizes = np.array([len(rows) for rows in batches])
    of_rows = objective.stochastic_gradients(np.repeat(W, sizes, axis=0), np.concatenate(batches))
    firsts = np.concatenate([[0], np.cumsum(sizes[:-1])])
    return np.asarray(np.add.reduceat(of_rows, firsts, axis=0) / sizes[:, None])


def make_federation(objective: Objective, spec: Spec, clients: Clients | None) -> Federation:
    """Build the federation of a checked Spec: its clients, or workers."""
    M = len(clients) if clients is not None else spec.workers
    assert M is not None
    count, batch = taking_part(spec.participation, M), batch_size(spec.batch)
    return Federation(
        M=M, n=objective.n_samples, seed=spec.seed, clients=clients, count=count, batch=batch,
        weighting=spec.weighting, epochs=spec.epochs,
    )  # fmt: skip


def minimized(objective: F, clients: Clients | None, weighting: str) -> F:
    """Return F: the mean loss over all rows or, with uniform weights, over all clients."""
    if clients is None or weighting != "uniform":
        return objective
    return objective.weighted(clients.row_weights)


def batch_size(batch: int | str) -> int | None:
    """Return the rows per local step, None for all rows of the client."""
    return None if batch == FULL else int(batch)


def taking_part(participation: float, M: int) -> int | None:
    """Return how many of M clients are in a round, None for all, given their share or number.

    >>> taking_part(0.1, 64), taking_part(20, 64), taking_part(1, 64)
    (6, 20, None)
    """
    if require_positive("participation", participation) <= 1:
        count = clients_in(participation, M)
    else:
        count = int(participation)
        if count != participation:
            raise InputError(
                f"participation above 1 must be a whole number of clients, got {participation}"
            )
        if count > M:
            raise InputError(f"participation={count} is more than the {M} clients there are")
    return None if count == M else count
