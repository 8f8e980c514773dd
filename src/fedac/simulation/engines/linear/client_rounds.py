# SPDX-License-Identifier: Apache-2.0
"""Rounds of methods with their own `enter` and `leave`, and the memories of their clients.

Such a client starts from its own state, so clients share nothing but the data. All coefficients are
found by calling the algorithm (`fedac.algorithms.linear.boundary_form`).
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError
from fedac.federation.compression import FLOAT32, WIRES
from fedac.federation.federation import Round, Update
from fedac.simulation.engines.linear.coefficients import (
    Affine,
    ClientForm,
    client_form,
    echoes_of,
    for_lengths,
    without_sums,
)
from fedac.simulation.engines.linear.history import VersionHistory, bases_of, parts_of, scales_of
from fedac.simulation.engines.linear.kernels.interface import (
    ClientCoefficients,
    Combinations,
    Draws,
    Memories,
)
from fedac.simulation.engines.linear.kernels.simd import aligned, vector_width
from fedac.simulation.engines.linear.rounds import (
    LaneGroup,
    LocalRounds,
    MinibatchRounds,
    padded,
)
from fedac.simulation.engines.linear.workers import Context, Widths, sum_strands
from fedac.simulation.problem import Lane
from fedac.validate import Array

# Clients whose memories are moved at a time when lanes leave.
AT_ONCE = 1024
# Python has a name for it from 3.13 on.
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class ClientRounds(LocalRounds):
    """Takes a group of lanes through rounds with their own `enter` and `leave`."""

    def __init__(self, context: Context, group: LaneGroup) -> None:
        super().__init__(context, group)
        problem, dtype, actors = context.problem, context.rows.dtype, context.actors
        N, chunks, V = problem.federation.M, self.chunks(), self.workers.widths.V
        size = problem.objective.dim * len(group.lanes[0].algorithm.memory)
        sizes = {"clients": N, "numbers": size, "runs": V * len(chunks)}
        if actors:
            actors.require_space(sizes, dtype.itemsize)
        elif problem.on is None:
            require_space(sizes, dtype.itemsize, [MemoryHost(1.0, free_bytes(), "")])
        # With actors, this process keeps no memories.
        here, sparse = 0 if actors else N, problem.on is not None
        self._memories = [
            ClientMemories(group.indices[a:b], here, size, V, dtype, sparse=sparse)
            for a, b in chunks
        ]
        self._synchronous = problem.is_synchronous
        self._history = VersionHistory(problem, group, chunks, V, dtype)
        first = group.lanes[0].algorithm
        self._moving = np.isin(first.sequences, first.points)
        # Means are differences from what was broadcast where messages are rounded, yet no moves.
        self._others_based = any(each.based[~self._moving].any() for each in self._history.chunks)

    def widths(self) -> Widths:
        """Return what the kernels compute with; the same in every round."""
        lane, gap = self.group.lanes[0], self.context.problem.schedule.K
        S, T = len(self._form(lane, gap).enter), self.group.state.shape[1]
        return Widths(S, self.padded_lanes(), T, self.group.asks_moves)

    def forms(self, where: slice, gap: int) -> list[Affine]:
        """Return the affine forms of some lanes, padded for the kernels."""
        return [self._form(lane, gap).steps for lane in self.group.lanes[where]]

    def round(
        self, draws: Draws, update: Update | Round, minibatch: MinibatchRounds | None
    ) -> None:
        """Advance every lane by one round: its state becomes the mean message."""
        group, alive = self.group, set(self.group.indices)
        group.spread = np.zeros(len(group.lanes))
        gradients: Array | None = None
        if not self._synchronous:
            self._history.receive(update.span.number)
        if group.asks_gradient and minibatch:
            gradients = self._gradients(draws, update, minibatch)
        first = 0
        for chunk, memory in enumerate(self._memories):
            memory.keep([i for i in memory.indices if i in alive])
            last = first + len(memory.indices)
            if last > first and self._synchronous:
                self._run_clients(slice(first, last), draws, memory)
            elif last > first:
                assert isinstance(update, Update)  # of a timeline
                self._run_stale_clients(slice(first, last), draws, update, chunk)
            first = last
        if gradients is not None:
            group.state += gradients
        self._history.forget(update.span.number + 1)

    def _run_clients(self, where: slice, draws: Draws, memory: ClientMemories) -> None:
        """Take some lanes through a round of clients that all start from the last version."""
        state, V, dtype = self.group.state[:, :, where], self.workers.widths.V, self.workers.dtype
        from_state = self._coefficients(where, draws.gap)[1]
        if from_state.ndim == 2:
            reference = from_state * state
        else:
            reference = np.einsum("tiv,div->dtv", from_state, state)
        moved, squared = self._moves(
            where, draws, memory,
            broadcast=padded(state, V, dtype).reshape(-1),
            reference=padded(reference, V, dtype).reshape(-1),
        )  # fmt: skip
        state[:] = reference + moved / draws.total_weight()
        self.group.spread[where] = squared / draws.total_weight()

    def _run_stale_clients(self, where: slice, draws: Draws, update: Update, chunk: int) -> None:
        """Take some lanes through a step of the server; `arrive` has the formula."""
        group, broadcasts = self.group, self._history.chunks[chunk]
        state, others, weight = group.state[:, :, where], ~self._moving, draws.total_weight()
        if others.any():
            state[:, others] = 0.0
        for part, those in parts_of(self.context, group, draws, update):
            rows = self._history.rows(those)
            moved, squared = self._moves(
                where, part, self._memories[chunk],
                broadcast=broadcasts.sent.reshape(-1),
                reference=broadcasts.bases.reshape(-1),
                versions=rows,
                scales=scales_of(those),
                moving=self._moving,
            )  # fmt: skip
            if self._others_based:
                moved[:, others] += broadcasts.weighted(part.weights(), rows)[:, others]
            state += moved / weight
            group.spread[where] += squared / weight

    def _moves(
        self, where: slice, draws: Draws, memory: ClientMemories, **received: Any
    ) -> tuple[Array, Array | float]:
        """Return the sum of the messages' differences from their references.

        With it comes the sum of the squared lengths of moves, where they are asked for.
        """
        workers, count = self.workers, where.stop - where.start
        tables, _ = self.table(where, draws.gap)
        coefficients = self._coefficients(where, draws.gap)[0]._replace(**received)
        workers.run(draws, tables, memory.indices, coefficients, memory)
        total, (d, T), V = sum_strands(workers.total), self.group.state.shape[:2], workers.widths.V
        moved = total[: d * T * V].reshape(d, T, V)[:, :, :count]
        squared = total[d * T * V : d * T * V + count] if self.group.asks_moves else 0.0
        return moved, squared

    def _gradients(self, draws: Draws, update: Update | Round, minibatch: MinibatchRounds) -> Array:
        """Return what the mean message has of the clients' full gradients, shape (d, T, lanes)."""
        group = self.group
        if self._synchronous:
            return group.with_gradients(minibatch.full_gradients(group.state[:, 0], draws))
        assert isinstance(update, Update)  # of a timeline
        total: Array = np.zeros_like(group.state)
        for version in np.unique(update.versions):
            part = update.part(np.flatnonzero(update.versions == version))
            some, row = self.context.draws(part), self._history.rows(part)[0]
            points = [
                chunk.sent[row, :, 0, : len(chunk.indices)]
                for _, chunk in self._history.stretches()
            ]
            found = minibatch.full_gradients(np.concatenate(points, axis=1), some)
            scale = np.where(self._moving, scales_of(part)[0], 1.0)
            share = some.total_weight() / draws.total_weight()
            total += share * scale[:, None] * group.with_gradients(found)
        return total

    def _coefficients(self, where: slice, gap: int) -> tuple[ClientCoefficients, Array]:
        """Return the coefficients of a round, and the matrices from the sequences to the reference.

        Of diagonal matrices, only the diagonals: that is a faster product.
        Broadcast and reference are left empty: they change from round to round.
        """
        known, key = self.context.coefficients, (tuple(self.group.indices[where]), gap)
        if key in known and not self.group.decays:
            return known[key]
        lanes, V = self.group.lanes[where], self.workers.widths.V
        closing = self.table(where, gap)[1]
        begin = np.stack([self._form(lane, gap).begin for lane in lanes], axis=-1)
        enter, leave = (  # by number of steps, output, input and lane
            np.stack(each, axis=-1)
            for each in zip(*[self._by_length(lane, gap) for lane in lanes], strict=True)
        )
        S, T = enter.shape[1], begin.shape[1]
        on_local, on_others = leave[:, :, :S], leave[:, :, S:]
        # The kernels have Y, not the local state: S_K = to_state Y + constant center'.
        on_y = np.einsum("nksv,nsiv->nkiv", on_local, closing.to_state)
        constant = np.einsum("nksv,nsv->nkv", on_local, closing.constant)
        algorithms, problem = [lane.algorithm for lane in self.group.lanes], self.context.problem
        if problem.wire == FLOAT32 and not self.group.asks_moves:
            reference = np.einsum("ksv,siv->kiv", on_local[-1, :T], enter[-1, :, :T])
            reference += on_others[-1, :T, :T]
        else:
            reference = np.stack([bases_of(algorithm) for algorithm in algorithms[where]], axis=-1)
        diagonal = np.einsum("ttv->tv", reference)
        if np.array_equal(reference, diagonal[:, None] * np.eye(T)[:, :, None]):
            reference = diagonal
        dtype, nothing = self.context.rows.dtype, np.zeros(0, self.context.rows.dtype)

        def sparse(coefficients: Array) -> Combinations:
            wide = padded(coefficients.reshape(-1, *coefficients.shape[-2:]), V, dtype)
            return Combinations(np.asarray(wide.any(axis=-1)), wide)

        first = algorithms[0]
        points = np.isin(first.sequences, first.points if self.group.asks_moves else ())
        known[key] = (
            ClientCoefficients(
                begin=sparse(begin),
                enter=sparse(enter),
                leave=sparse(np.concatenate([on_y, on_others], axis=2)),
                constant=padded(constant, V, dtype).reshape(-1),
                broadcast=nothing,
                reference=nothing,
                center=self.context.regularizer.center.astype(dtype),
                wire=WIRES.index(problem.wire),
                echoes=np.array(echoes_of(first), np.int64),
                places=np.cumsum(np.isin(first.sequences, first.sent), dtype=np.uint64)
                - np.uint64(1),
                points=points if points.any() else points[:0],
            ),
            reference,
        )
        return known[key]

    def _form(self, lane: Lane, gap: int) -> ClientForm:
        """Return the form of a lane for some number of steps, padded to the same size in all."""
        form = client_form(lane, gap)
        if self._without_sums:
            form = without_sums(form, gap, self.context.rows.dtype) or form
        # Vectors of a power of two are faster.
        return form.padded(vector_width(len(form.enter)))

    def _by_length(self, lane: Lane, gap: int) -> tuple[Array, Array]:
        """Return `enter` and `leave` of a lane for every number of steps that clients take."""
        found = for_lengths(partial(self._form, lane), self.context.lengths or (gap,))
        assert found is not None, "the engine refuses such methods"
        return found

    @cached_property
    def _without_sums(self) -> bool:
        """Whether no lane needs the sums of its gradients, decided before the first round."""
        # A decaying step size may become too small on the way. The fewer steps, the less is left
        # of a mean gradient after rounding.
        lengths = self.context.lengths[:1] or self.context.problem.gaps
        return not self.group.decays and all(
            without_sums(client_form(lane, gap), gap, self.context.rows.dtype) is not None
            for lane in self.group.lanes
            for gap in lengths
        )


class ClientMemories:
    """The memories of all clients in the lanes that share a vector.

    Pages of zeros take no space before a client's first round. With `sparse`, they may add up to
    more space than there is: every actor has an array for all clients, and uses a part of it.
    """

    def __init__(
        self, indices: list[int], clients: int, size: int, V: int, dtype: npt.DTypeLike, *,
        sparse: bool,
    ) -> None:  # fmt: skip
        self.indices = indices  # of the lanes in the problem, in the order of the columns
        self.V = V
        allocate = reserved if sparse else aligned
        self.kept = Memories(allocate((clients, size * V), dtype), np.zeros(clients, np.bool_))

    def keep(self, indices: list[int]) -> None:
        """Remove all lanes but the given ones."""
        if indices == self.indices:
            return
        columns = [self.indices.index(index) for index in indices]
        N, numbers = self.kept.memory.shape
        memory = self.kept.memory.reshape(N, numbers // self.V, self.V)
        for first in range(0, N, AT_ONCE):
            # Pages of clients that were never sampled must not be touched.
            if self.kept.started[first : first + AT_ONCE].any():
                some = memory[first : first + AT_ONCE]
                some[..., : len(columns)] = some[..., columns]
        self.indices = indices


def reserved(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros that may take more space than there is, as long as most of them stay zeros."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if sys.platform != "linux" or size == 0:
        return aligned(shape, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype).reshape(shape)


class MemoryHost(NamedTuple):
    """A machine that keeps memories of clients."""

    share: float  # of all memories
    free: int | None  # bytes, if the system reports it
    name: str


def require_space(sizes: dict[str, int], itemsize: int, hosts: Iterable[MemoryHost]) -> None:
    """Raise InputError if memories do not fit; `sizes` are the factors of their size."""
    needed = float(np.prod([float(size) for size in sizes.values()])) * itemsize
    for share, free, name in hosts:
        if free is not None and share * needed > free:
            factors = " x ".join(f"{size:,} {name}" for name, size in sizes.items())
            part = f", {share * needed / 1e6:,.0f} MB of it{name}" if name else ""
            raise InputError(
                f"the memory of the clients takes {needed / 1e6:,.0f} MB ({factors}){part}, but "
                f"only {free / 1e6:,.0f} MB are free{' there' if name else ''}; use fewer clients, "
                f"{'more nodes, ' if name else ''}or fewer step sizes at a time"
            )


def free_bytes() -> int | None:
    """Return how much memory is free, if the system reports it."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    names: Any = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
