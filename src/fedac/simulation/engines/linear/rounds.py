# SPDX-License-Identifier: Apache-2.0
"""Groups of lanes, and their rounds: local steps, or one step on all samples of the round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property, partial
from itertools import groupby, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.algorithms import Algorithm, RoundInfo
from fedac.algorithms.algorithm import serve_mean
from fedac.federation.compression import FLOAT32
from fedac.federation.federation import Round, Update
from fedac.federation.round import squared_moves
from fedac.federation.schedule import Span
from fedac.simulation.engines.linear import dense
from fedac.simulation.engines.linear.coefficients import (
    Affine,
    affine_form,
    client_form,
    echoes_of,
    round_tables,
)
from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.interface import Closing, Draws, Tables
from fedac.simulation.engines.linear.kernels.simd import Template, aligned, vector_width
from fedac.simulation.engines.linear.workers import (
    FEWEST_STRANDS,
    STRANDS,
    Context,
    StreamedWorkers,
    Threads,
    Widths,
    sum_strands,
)
from fedac.simulation.problem import DIVERGED, Lane, Problem, Snapshot
from fedac.validate import Array

# Lanes in one vector: with these a state of a9a's width fits the first-level cache.
LANES = {np.dtype(np.float32): 16, np.dtype(np.float64): 8}
# Lanes in one vector of a minibatch, whose gradients are summed in double precision.
BATCH_LANES = 16
BATCH_STRANDS = 16
BATCH_BYTES = 2**29
# Smaller minibatches, relative to the rows of the data, are listed instead of counted.
SPARSE_BATCH = 0.25
# At the end of a round, so many numbers of the state are as much work as a step.
NUMBERS_A_STEP = 16
# Draws that make counting on other nodes worth the round trip.
WORTH_SENDING = 2**22


class LaneGroup:
    """Lanes that can be advanced together: the same number of vectors, and one kind of round.

    `state`, of shape (d, T, number of lanes), holds the sequences after the last round. `server`,
    of shape (d, Q, number of lanes), is the server's own state; algorithms with fewer than Q
    vectors use the first ones. `indices` are the lanes in the problem.
    """

    def __init__(self, indices: list[int], problem: Problem) -> None:
        self.problem = problem
        self._equal_steps = not problem.lengths
        self._round = 0
        self.spread: Array = np.zeros(len(indices))  # of the last round
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
        """Whether clients work on the broadcast sequences, and send them back without rounding.

        Then only the sum of all messages matters, and the kernels need not form any of them. It is
        not enough if moves are asked for, if clients take different numbers of steps, or if they
        started from different versions.
        """
        return self.sums_moves and self.problem.is_synchronous

    @property
    def sums_moves(self) -> bool:
        """Whether this holds, but that clients may have started from different versions."""
        plain = self.lanes[0].algorithm.is_plain and self.problem.wire == FLOAT32
        return plain and self._equal_steps and not self.asks_moves

    @property
    def asks_moves(self) -> bool:
        """Whether the servers' rules ask for the lengths of the clients' moves."""
        return "moves" in self.lanes[0].algorithm.asks

    @property
    def asks_gradient(self) -> bool:
        """Whether clients send something of the gradient of all their rows."""
        return "gradient" in self.lanes[0].algorithm.asks

    def with_gradients(self, G: Array) -> Array:
        """Return what the mean message has of the mean full gradient, of shape (d, lanes)."""
        forms = [client_form(lane, self.problem.schedule.K) for lane in self.lanes]
        found: Array = np.stack([form.gradient for form in forms], axis=-1) * G[:, None]
        return found

    def query(self) -> Array:
        """Return where every lane takes its gradient, shape (d, number of lanes)."""
        return _side_by_side([
            algorithm.query(tuple(self.state[:, :, where].transpose(1, 0, 2)), hp)
            for algorithm, hp, where in self._stretches
        ])  # fmt: skip

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
            named = zip(algorithm.sequences, message, strict=True)
            sent = tuple(vector for name, vector in named if name in algorithm.sent)
            if self.asks_moves:
                by_lane = (tuple(v.T for v in vectors) for vectors in (sent, sequences))
                moved = squared_moves(algorithm, *by_lane)
                this = replace(this, spread=self.spread[where], moved=moved)
            sequences, server = algorithm.serve(sent, sequences, server, hp, this)
            for s, vector in enumerate(sequences):
                self.state[:, s, where] = vector
            for q, vector in enumerate(server):
                self.server[:, q, where] = vector

    def snapshots(self, step: int) -> list[Snapshot]:
        """Return the state of every lane."""
        # One copy for all lanes.
        state, server = (vectors.transpose(2, 1, 0).copy() for vectors in (self.state, self.server))
        counts = [len(lane.algorithm.server) for lane in self.lanes]
        return [
            Snapshot(index, step, (*state[place], *server[place, : counts[place]]))
            for place, index in enumerate(self.indices)
        ]

    def drop_diverged(self, step: int) -> list[Snapshot]:
        """Remove the lanes that have diverged, and return them."""
        # Cheap tests of all lanes, which no NaN passes; only suspects are checked one by one.
        both = (self.state, self.server)
        if all(np.vdot(v, v) <= DIVERGED**2 for v in both):
            return []
        if all(v.min(initial=0) >= -DIVERGED and v.max(initial=0) <= DIVERGED for v in both):
            return []
        vectors = np.concatenate([self.state, self.server], axis=1)
        dropped = {}
        for place in np.flatnonzero(~(np.abs(vectors).max(axis=(0, 1)) <= DIVERGED)):
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
    local, sent, sequences, server = (
        (ones,) * len(names)
        for names in (
            algorithm.local_sequences, algorithm.sent, algorithm.sequences, algorithm.server
        )
    )  # fmt: skip
    this = RoundInfo(spread=ones[0], moved=ones[0], steps=1.0)
    try:
        after = algorithm.update(local, algorithm.query(local, hp), ones, hp)
        served, kept = algorithm.serve(sent, sequences, server, hp, this)
    except Exception:  # a user's functions may fail on arrays in any way
        return False
    return all(np.shape(vector) == ones.shape for vector in (*after, *served, *kept))


def make_groups(problem: Problem) -> list[LaneGroup]:
    """Group the lanes of a problem by what can be advanced together."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for index, lane in enumerate(problem.lanes):
        a = lane.algorithm
        sizes = (len(a.local_sequences), len(a.sequences), len(a.memory))
        asks = tuple(what in a.asks for what in ("moves", "gradient"))
        # Where points count differently from others, all have the same; likewise for what is not
        # sent.
        differ = "moves" in a.asks or not problem.is_synchronous
        points = differ and tuple(name in a.points for name in a.sequences)
        sent = tuple(name in a.sent for name in a.sequences)
        kind = (*sizes, a.is_plain, a.minibatch, echoes_of(a), sent, points, asks)
        kinds.setdefault(kind, []).append(index)
    return [LaneGroup(indices, problem) for indices in kinds.values()]


def make_workers(context: Context, widths: Widths, *, own_start: bool) -> StreamedWorkers:
    """Return workers for the kind of rows that the context has.

    `own_start`: every client starts from its own state. Then workers share no products, and the
    kernel is faster on dense rows too.
    """
    rows = context.rows
    # Batches at the end of an epoch are smaller, which only the kernel knows.
    epochs = context.full.epochs is not None and context.full.batch is not None
    streamed = own_start or epochs or widths.S * widths.V * rows.outputs <= dense.FEW
    streamed = streamed or dense.multiplied_by_kernel(rows)
    products = rows.dense and (context.full.batch is None or not streamed)
    return (dense.DenseWorkers if products else StreamedWorkers)(context, widths)


class LocalRounds:
    """Takes a group of lanes through rounds of local steps, by streamed workers."""

    def __init__(self, context: Context, group: LaneGroup) -> None:
        self.context = context
        self.group = group
        # Widths stay when lanes diverge: others would have to be compiled.
        self.workers = make_workers(context, self.widths(), own_start=not group.is_plain)

    def widths(self) -> Widths:
        """Return what the kernels compute with."""
        S = self.group.state.shape[1]
        return Widths(S, self.padded_lanes(), S)

    def chunks(self) -> list[tuple[int, int]]:
        """Return which lanes share a vector: as few vectors as possible, evenly filled."""
        count = len(self.group.lanes)
        chunks = -(-count // LANES[self.context.rows.dtype])
        return list(pairwise(count * chunk // chunks for chunk in range(chunks + 1)))

    def padded_lanes(self) -> int:
        """Return how many lanes a vector has, a power of two."""
        return vector_width(max(last - first for first, last in self.chunks()))

    def forms(self, where: slice, gap: int) -> list[Affine]:
        """Return the affine forms of some lanes."""
        return list(map(affine_form, self.group.lanes[where]))

    def table(self, where: slice, gap: int) -> tuple[Tables, Closing]:
        """Return the tables of a round, padded for the kernels."""
        known, key = self.context.tables, (tuple(self.group.indices[where]), gap)
        if self.group.decays or key not in known:  # a decaying step size needs new ones every round
            dtype, V = self.context.rows.dtype, self.workers.widths.V
            l2, lengths = self.context.regularizer.l2, self.context.lengths or (gap,)
            tables, closing = round_tables(self.forms(where, gap), l2, lengths, dtype)
            q, r, e = (padded(table, V, dtype).ravel() for table in (tables.q, tables.r, tables.e))
            folds = padded(tables.folds, V, dtype)
            folds = folds.reshape(len(folds), math.prod(folds.shape[1:]))
            known[key] = Tables(q, r, e, tables.fold_after, folds), closing
        return known[key]

    def round(
        self, draws: Draws, update: Update | Round, minibatch: MinibatchRounds | None
    ) -> None:
        """Advance every lane by one round."""
        for first, last in self.chunks():
            self._advance(slice(first, last), draws)

    def _advance(self, where: slice, draws: Draws) -> None:
        """Take some lanes through a round."""
        state, workers = self.group.state[:, :, where], self.workers
        d, S, count = state.shape
        tables, closing = self.table(where, draws.gap)
        workers.start.reshape(d, S, -1)[:, :, :count] = state
        workers.run(draws, tables, self.group.indices[where])
        self.finish(state, closing, draws.total_weight())

    def finish(self, state: Array, closing: Closing, weight: float) -> None:
        """Turn the state before a round into the mean state after it, given the workers' moves."""
        (d, S, count), center = state.shape, self.context.regularizer.center
        closing = Closing(*(each[0] for each in closing))
        # In strands of coordinates, which do not depend on each other.
        bounds = [d * strand // STRANDS for strand in range(STRANDS + 1)]
        self.context.threads.run(
            lambda first, last: steps.finish_round(
                self.workers.total, state, closing, center, weight, bounds[first], bounds[last]
            ),
            strands=STRANDS,
            work=d * S * count // NUMBERS_A_STEP,
        )


def _side_by_side(points: list[Array]) -> Array:
    """Return points of several groups of lanes as one array."""
    return points[0] if len(points) == 1 else np.concatenate(points, axis=1)


def padded(array: Array, V: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Pad the last axis, lanes, to length V."""
    wide = aligned((*array.shape[:-1], V), dtype)
    wide[..., : array.shape[-1]] = array
    return wide


class MinibatchRounds:
    """Rounds of one step on all samples: minibatch algorithms, and K = 1 of plain ones.

    A minibatch of M*K draws with replacement is a histogram of rows: each distinct row is visited
    once, with its count as weight. If clients have weights, a row is also weighted by its client.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.rows = context.exact_rows
        # The same width from first to last: another one would have to be compiled.
        count = min(BATCH_LANES, len(context.problem.lanes))
        self.lanes = Template(np.float64, vector_width(count))
        size = (context.problem.objective.dim, len(self.lanes))
        self._points = aligned(size, np.float64)
        # Fewer strands where their totals would fill the memory.
        strands = max(FEWEST_STRANDS, min(BATCH_STRANDS, BATCH_BYTES // (8 * math.prod(size))))
        self._totals = aligned((strands, math.prod(size)), np.float64)
        self._counts = np.zeros((context.threads.count, len(self.rows.y)), np.int64)
        # A warm-up draws too few rows to count them: compile by counting nothing.
        update = context.problem.federation.update(Span(0, 0, 1))
        steps.count_rows(self._counts[0], context.draws(update), 0, 0)

    def round(self, groups: list[LaneGroup], draws: Draws) -> None:
        """Advance every lane of some groups by one step on all samples of a round."""
        points = [group.query() for group in groups]
        g = self._gradient(_side_by_side(points), *self._draw(draws))
        regularizer, queries = self.context.regularizer, draws.queries
        # The weights of a client's rows add up to the client's weight.
        listed = self.context.lists_batches and draws.batch
        g /= draws.total_weight() * (1 if listed else draws.gap * draws.batch or 1)
        first = 0
        for group, w_md in zip(groups, points, strict=True):
            count = len(group.lanes)
            pull = regularizer.l2 * (w_md - regularizer.center[:, None])
            group.update(w_md, g[:, first : first + count] + pull)
            first += count
            self.context.problem.on_progress(queries * count)

    def full_gradients(self, points: Array, draws: Draws) -> Array:
        """Return the mean gradient of all rows of all participants, shape (d, lanes)."""
        everything = draws._replace(batch=0)
        if not draws.bounds.size:  # all workers have the same rows
            everything = everything._replace(taking_part=1, members=draws.members[:0])
        held = int(everything.rows_held().sum())
        drawn, weights = self._draw(everything._replace(queries=held))
        regularizer = self.context.regularizer
        pull = regularizer.l2 * (points - regularizer.center[:, None])
        return self._gradient(points, drawn, weights) / everything.total_weight() + pull

    def _batches(self, draws: Draws) -> tuple[npt.NDArray[np.uint64], Array]:
        """Return the rows of all batches of a round, each with its share of its client's weight."""
        federation, place = self.context.problem.federation, self._places
        members = draws.client_ids(0, draws.taking_part)
        counts: Any = draws.lengths[draws.kinds] if draws.kinds.size else draws.gap
        batches = federation.batches(members, Span(draws.r, draws.t, counts))
        rows = [np.concatenate(each) for each in batches]
        weights = [
            np.repeat([weight / len(each) / len(one) for one in each], [len(one) for one in each])
            for weight, each in zip(draws.weights(), batches, strict=True)
        ]
        return place[np.concatenate(rows)].astype(np.uint64), np.concatenate(weights)

    @cached_property
    def _places(self) -> npt.NDArray[np.int64]:
        """Where the rows of the data are now that they are sorted by client."""
        clients, n = self.context.problem.federation.clients, len(self.rows.y)
        places = np.arange(n)
        if clients is not None:
            places[clients.rows] = np.arange(n)
        return places

    def _draw(self, draws: Draws) -> tuple[npt.NDArray[np.uint64], Array]:
        """Return the rows of a minibatch and how much each counts."""
        if self.context.lists_batches and draws.batch:
            return self._batches(draws)
        size, actors = draws.queries, self.context.actors
        if draws.batch == 0 or size <= SPARSE_BATCH * draws.n:
            weights = draws.weights()
            each = draws.rows_held() if draws.batch == 0 else draws.gap * draws.batch
            if draws.batch == 0:  # every row of a client once
                weights /= each
            if draws.batch == 0 or each != 1:
                weights = np.repeat(weights, each)
            drawn = np.empty(len(weights), np.uint64)
            steps.list_rows(drawn, draws)
            return drawn, weights
        if actors and size >= WORTH_SENDING:
            counts = actors.count(draws.t)
        else:
            counts = count_rows(self.context.threads, draws, self._counts)
        distinct = np.flatnonzero(counts)
        weights = counts[distinct].astype(np.float64)
        if draws.weighted:
            holders = np.searchsorted(draws.bounds, distinct, side="right") - 1
            weights *= np.diff(draws.bounds)[holders]
        return distinct.astype(np.uint64), weights

    def _gradient(self, points: Array, drawn: npt.NDArray[np.uint64], weights: Array) -> Array:
        """Return the sum of the weighted rows' gradients at every point, without the l2 term."""
        d, count = points.shape
        gradients = np.empty_like(points)
        strands = len(self._totals) if len(drawn) >= 1024 else 1
        V = len(self.lanes)
        sum_gradients: Callable[..., None] = steps.sum_gradients
        if self.rows.dense:
            by_kernel = dense.multiplied_by_kernel(self.rows)
            sum_gradients = steps.sum_gradients_of_classes if by_kernel else dense.sum_gradients
        for first in range(0, count, V):
            width = min(V, count - first)
            P, total = self._points, self._totals[:strands]
            P[:, :width] = points[:, first : first + width]
            P[:, width:] = 0.0
            total[:] = 0.0
            self.context.threads.run(
                partial(sum_gradients, self.lanes, self.rows, drawn, weights, P.reshape(-1), total),
                strands=strands,
                work=len(drawn) * self.rows.outputs,
            )
            gradients[:, first : first + width] = sum_strands(total).reshape(d, V)[:, :width]
        return gradients


def count_rows(
    threads: Threads,
    draws: Draws,
    by_thread: npt.NDArray[np.int64],
    first: int = 0,
    last: int = BATCH_STRANDS,
) -> npt.NDArray[np.int64]:
    """Return how often each row is drawn in a round by the clients of some strands.

    `by_thread`, of shape (threads, n), is working memory.
    """
    by_thread[:] = 0
    free = list(range(threads.count))

    def count(a: int, b: int) -> None:
        mine = free.pop()
        places = (draws.taking_part * strand // BATCH_STRANDS for strand in (a, b))
        steps.count_rows(by_thread[mine], draws, *places)
        free.append(mine)

    threads.run(count, first=first, strands=last - first, work=draws.queries)
    counts: npt.NDArray[np.int64] = by_thread.sum(axis=0)
    return counts
