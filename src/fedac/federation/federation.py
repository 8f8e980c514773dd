"""The federation: the clients of a round, their draws and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from fedac.data.clients import Clients
from fedac.errors import InputError
from fedac.federation.sampling import clients_in, epoch_order, participants, sample_batch
from fedac.federation.schedule import Span
from fedac.federation.spec import FULL, Spec
from fedac.objectives.base import Objective, RowNumbers
from fedac.validate import Array, require_positive

F = TypeVar("F", bound=Objective)


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

    @property
    def taking_part(self) -> int:
        """The number of clients in a round."""
        return self.M if self.count is None else self.count

    @cached_property
    def equal_weights(self) -> bool:
        """Whether all clients have the same weight."""
        if self.clients is None or self.weighting == "uniform":
            return True
        return int(np.ptp(self.clients.sizes)) == 0

    @property
    def largest(self) -> int:
        """The largest number of rows of a client."""
        return self.n if self.clients is None else int(self.clients.sizes.max())

    @property
    def batch_rows(self) -> int | RowNumbers:
        """Rows of a local step: one number for all clients, or an array."""
        return batch_rows(self.batch, self.n, self.clients)

    def members(self, r: int) -> RowNumbers:
        """Return the numbers of the clients in round r, in ascending order."""
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

    def share(self, r: int) -> float:
        """Return the total weight of the clients in round r; all clients together weigh 1."""
        if self.count is None:
            return 1.0
        if self.equal_weights:
            return self.count / self.M
        return float(self.sizes(self.members(r)).sum() / self.n)

    def mean(self, values: Array, members: RowNumbers) -> Array:
        """Return the weighted mean of an array with a row for each of these clients."""
        if self.equal_weights:
            return np.asarray(values.mean(axis=0))
        return np.asarray(self.weights(members) @ values)

    def gradients(self, objective: Objective, W: Array, members: RowNumbers, step: int) -> Array:
        """Return the gradient of each of these clients at its row of W."""
        if self.batch is None:
            return self._full_gradients(objective, W, members)
        rows = sample_batch(self.seed, members, step, self.sizes(members), self.batch)
        if self.clients is not None:
            rows = self.clients.rows[self.clients.bounds[members][:, None] + rows]
        total = objective.stochastic_gradients(W, rows[:, 0])
        for others in rows.T[1:]:
            total = total + objective.stochastic_gradients(W, others)
        return total / self.batch if self.batch > 1 else total

    def steps(self, members: RowNumbers, this_round: Span) -> RowNumbers:
        """Return the number of local steps of each of these clients in a round."""
        if self.epochs is None:
            return np.full(len(members), this_round.gap)
        sizes = self.sizes(members)
        return self.epochs * -(-sizes // (sizes if self.batch is None else self.batch))

    @property
    def mean_steps(self) -> int:
        """K of a round of epochs: the weighted mean of the clients' steps, rounded up."""
        everyone = np.arange(self.M)
        mean = self.weights(everyone) @ self.steps(everyone, Span(0, 0, 1))
        return int(np.ceil(mean - 1e-9))

    def batches(self, members: RowNumbers, this_round: Span) -> RowNumbers | list[list[RowNumbers]]:
        """Return the rows of every step of each of these clients, by client and step.

        An array if all steps have the same number of rows, else lists.
        """
        if self.epochs is not None:
            return [self._epochs_of(m, this_round.number) for m in members.tolist()]
        steps = range(this_round.t, this_round.t + this_round.gap)
        if self.batch is None:
            everything = np.arange(self.n)
            own = self.clients.rows_of if self.clients is not None else lambda m: everything
            return [[own(m)] * len(steps) for m in members.tolist()]
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

    def queries(self, this_round: Span) -> int:
        """Return the number of single-row gradients that one run takes in a round."""
        if self.epochs is not None:
            return int(self.sizes(self.members(this_round.number)).sum()) * self.epochs
        if self.batch is not None:
            return self.taking_part * self.batch * this_round.gap
        if self.clients is None:  # all have the same rows: count one worker
            return self.n * this_round.gap
        return int(self.sizes(self.members(this_round.number)).sum()) * this_round.gap

    def _full_gradients(self, objective: Objective, W: Array, members: RowNumbers) -> Array:
        if self.clients is None:  # all have the same rows, so all are at the same point
            return np.broadcast_to(objective.gradient(W[0]), W.shape)
        sizes = self.sizes(members)
        rows = np.concatenate([self.clients.rows_of(m) for m in members])
        of_rows = objective.stochastic_gradients(np.repeat(W, sizes, axis=0), rows)
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


def batch_rows(batch: int | None, n: int, clients: Clients | None) -> int | RowNumbers:
    """Return the rows of a batch (None: full), one number for all clients or an array."""
    if batch is not None:
        return batch
    return n if clients is None else clients.sizes


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
