"""Rounds of methods whose clients enter and leave in their own way.

Such a client starts from its own state: a combination of the broadcast sequences and what it
remembers. So nothing is shared between clients but the data. Its message and its next memory are
combinations of where its steps led, the sequences, and its memory before. All coefficients are
found by calling the algorithm (`fedac.algorithms.linear.boundary_form`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.algorithms import Algorithm
from fedac.federation.compression import FLOAT32, WIRES, keys_of, rounded
from fedac.simulation.engines.linear.client_memory import (
    ClientMemory,
    here,
    require_space,
    reserved,
)
from fedac.simulation.engines.linear.coefficients import (
    Affine,
    ClientForm,
    client_form,
    without_sums,
)
from fedac.simulation.engines.linear.dense import DenseWorkers
from fedac.simulation.engines.linear.draws import total_weight
from fedac.simulation.engines.linear.kernels import client_rounds, steps
from fedac.simulation.engines.linear.kernels.simd import aligned
from fedac.simulation.engines.linear.kernels.types import (
    Boundary,
    Closing,
    Draws,
    Kept,
    LocalRound,
    Tables,
    Terms,
)
from fedac.simulation.engines.linear.lanes import Pack, echoes_of
from fedac.simulation.engines.linear.rounds import LocalRounds
from fedac.simulation.engines.linear.sparse import SparseWorkers
from fedac.simulation.engines.linear.threads import sum_strands
from fedac.simulation.engines.ray.job import Job
from fedac.validate import Array


@dataclass(frozen=True, slots=True)
class Coefficients:
    """How the clients of some lanes enter and leave a round of one length."""

    boundary: Boundary
    """For the kernels, but for what changes from round to round."""
    reference: Array
    """From the sequences to what messages are compared with (see `Boundary.reference`)."""


def padded_size(S: int) -> int:
    """Return how many sequences the kernels work on: vectors of a power of two are faster."""
    return 1 << (S - 1).bit_length()


def find_coefficients(
    forms: list[ClientForm],
    closing: Closing,
    V: int,
    center: npt.NDArray[Any],
    wire: str,
    algorithms: list[Algorithm],
) -> Coefficients:
    """Stack the coefficients of some lanes, and pad them to V lanes for the kernels."""
    begin, enter, leave = (
        np.stack([getattr(form, name) for form in forms], axis=-1)
        for name in ("begin", "enter", "leave")
    )
    S, (P, T) = len(enter), begin.shape[:2]
    on_local, on_others = leave[:, :S], leave[:, S:]
    # The kernels have Y, not the local state: S_K = to_state Y + constant center'.
    on_y = np.einsum("ksv,siv->kiv", on_local, closing.to_state)
    leave = np.concatenate([on_y, on_others], axis=1)
    constant = np.einsum("ksv,sv->kv", on_local, closing.constant)
    nothing = np.zeros(0, center.dtype)
    idle = np.einsum("ksv,siv->kiv", on_local[:T], enter[:, :T]) + on_others[:T, :T]
    return Coefficients(
        Boundary(
            begin=to_terms(padded(begin, V, center.dtype), (T,)),
            enter=to_terms(padded(enter, V, center.dtype), (T, P)),
            leave=to_terms(padded(leave, V, center.dtype), (S, T, P)),
            constant=padded(constant, V, center.dtype).reshape(-1),
            broadcast=nothing,
            reference=nothing,
            center=center,
            wire=WIRES.index(wire),
            echoes=np.array(echoes_of(algorithms[0]), np.int64),
        ),
        idle if wire == FLOAT32 else np.stack(list(map(_bases, algorithms)), axis=-1),
    )


def _bases(algorithm: Algorithm) -> Array:
    """Return the matrix from the sequences to what the rounding of a message starts from."""
    return np.stack(algorithm.bases(tuple(np.eye(len(algorithm.sequences)))))


def padded(array: Array, V: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array that ends in some lanes with V of them."""
    wide = aligned((*array.shape[:-1], V), dtype)
    wide[..., : array.shape[-1]] = array
    return wide


# The coefficients of a round by its lanes and length.
KnownCoefficients = dict[tuple[tuple[int, ...], int], Coefficients]


class SparseClients(SparseWorkers):
    """Clients on sparse rows."""

    def visit_strands(
        self, first: int, last: int, this_round: LocalRound, boundary: Boundary, kept: Kept
    ) -> None:
        """Take the clients of some strands through a round: their messages go to `total`."""
        scratch = self.borrow(self.scratch, this_round.draws)
        client_rounds.run_clients(
            self.lanes, self.sequences, self.sent, self.rows, this_round, boundary, kept,
            scratch, self.total, first, last,
        )  # fmt: skip
        self.scratch.append(scratch)


class DenseClients(DenseWorkers):
    """Clients on dense rows."""

    def visit_strands(
        self, first: int, last: int, this_round: LocalRound, boundary: Boundary, kept: Kept
    ) -> None:
        """Take the clients of some strands through a round: their messages go to `total`."""
        V, T = len(self.lanes), len(self.sent) // len(self.lanes)
        S, d = len(self.sequences) // V, len(boundary.center)
        P = boundary.constant.size // V - T
        shape = (d, -1, V)
        broadcast, reference = (
            vectors.reshape(shape) for vectors in (boundary.broadcast, boundary.reference)
        )
        begin, enter, leave = (
            to_dense(terms, sizes, V)
            for terms, sizes in (
                (boundary.begin, (T,)),
                (boundary.enter, (T, P)),
                (boundary.leave, (S, T, P)),
            )
        )
        constant = boundary.constant.reshape(-1, V) * boundary.center[:, None, None]
        for strand in range(first, last):
            summed = self.total[strand].reshape(shape)
            for m, weight, walk in self.clients_of(strand, this_round):
                memory = kept.memory[m].reshape(shape)
                if not kept.started[m]:
                    kept.started[m] = True
                    memory[:] = _combine(begin, broadcast)
                Y = _combine(enter, broadcast, memory)
                after = walk(Y.reshape(len(Y), -1)).reshape(shape)
                left = constant + _combine(leave, after, broadcast, memory)
                moved = left[:, :T] - reference
                memory[:] = left[:, T:]
                if boundary.wire:
                    sent = _on_wire(moved, boundary.wire, this_round.draws, m)
                    for p, t in enumerate(boundary.echoes):
                        memory[:, p] += sent[:, t] - moved[:, t] if t >= 0 else 0
                    moved = sent
                summed += weight * moved


def _on_wire(moved: npt.NDArray[Any], wire: int, draws: Draws, m: int) -> npt.NDArray[np.float64]:
    """Return what arrives of a client's vectors, shape (coordinates, vectors, lanes)."""
    keys = keys_of(int(draws.seed), m, draws.r, np.arange(moved.shape[1]))
    return rounded(WIRES[wire], moved.transpose(1, 2, 0), keys[:, None]).transpose(2, 0, 1)


def visit_some(
    clients: SparseClients | DenseClients,
    draws: Draws,
    tables: Tables,
    boundary: Boundary,
    kept: Kept,
    count: int,
    first: int,
    last: int,
) -> npt.NDArray[np.float64]:
    """Take some strands of clients, of `count` lanes, through a round; return sums of messages."""
    start = clients.start
    alone = LocalRound(draws, tables, start, start, clients.nothing_shared, steps.SWEEP)
    run = partial(clients.visit_strands, this_round=alone, boundary=boundary, kept=kept)
    return clients.share_strands(run, draws, count, clients.total, first, last)


def _combine(coefficients: npt.NDArray[Any], *sources: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return combinations of vectors by coordinate and lane."""
    combined: npt.NDArray[Any] = np.einsum(
        "kiv,div->dkv", coefficients, np.concatenate(sources, axis=1)
    )
    return combined


def to_terms(coefficients: npt.NDArray[Any], sizes: tuple[int, ...]) -> Terms:
    """List the terms of combinations that are not zero in all lanes.

    `coefficients` has shape (combinations, vectors, lanes), `sizes` are the vectors of each source.

    >>> terms = to_terms(np.array([[[0.0], [2.0], [0.0]], [[1.0], [0.0], [3.0]]]), (2, 1))
    >>> terms.bounds.tolist(), terms.inputs.tolist(), terms.coefficients.tolist()
    ([0, 1, 1, 2, 3], [1, 0, 0], [2.0, 1.0, 3.0])
    """
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    bounds, inputs, kept = [0], [], [np.zeros((0, coefficients.shape[-1]), coefficients.dtype)]
    for combination in coefficients:
        for first, last in pairwise(firsts):
            for i in range(first, last):
                if combination[i].any():
                    inputs.append(i - first)
                    kept.append(combination[i : i + 1])
            bounds.append(len(inputs))
    return Terms(
        np.array(bounds, np.uint64), np.array(inputs, np.uint64), np.concatenate(kept).reshape(-1)
    )


def to_dense(terms: Terms, sizes: tuple[int, ...], V: int) -> npt.NDArray[Any]:
    """Return what `to_terms` was given."""
    sources, firsts = len(sizes), np.concatenate([[0], np.cumsum(sizes)])
    combinations = (len(terms.bounds) - 1) // sources
    dense = np.zeros((combinations, firsts[-1], V), terms.coefficients.dtype)
    for slot, (first, last) in enumerate(pairwise(terms.bounds.tolist())):
        for k in range(first, last):
            place = firsts[slot % sources] + int(terms.inputs[k])
            dense[slot // sources, place] = terms.coefficients[k * V : (k + 1) * V]
    return dense


@dataclass(eq=False)
class BoundaryRounds(LocalRounds):
    """Takes packs of lanes through rounds that clients enter and leave in their own way."""

    coefficients: KnownCoefficients
    alone: bool

    def __post_init__(self, packs: list[Pack]) -> None:
        make = DenseClients if self.rows.dense else SparseClients
        self._clients: dict[Pack, SparseClients | DenseClients] = {}
        self._memories: dict[Pack, list[ClientMemory]] = {}
        self._without_sums = {pack: self._may_drop_sums(pack) for pack in packs}
        d, N = self.problem.objective.dim, self.problem.federation.M
        for pack in packs:
            chunks = self.chunks(pack)
            V = 1 << (max(last - first for first, last in chunks) - 1).bit_length()
            algorithm = pack.lanes[0].algorithm
            T, P = len(algorithm.sequences), len(algorithm.memory)
            S = len(self._client_forms(pack, slice(None), self.problem.schedule.K)[0].enter)
            sizes = {"clients": N, "numbers": d * P, "runs": V * len(chunks)}
            dtype = self.rows.dtype
            if self.alone:
                require_space(sizes, dtype.itemsize, [here()])
            elif self.crew:
                self.crew.require_space(sizes, dtype.itemsize)
            given = (self.problem, self.rows, self.threads, self.full)
            self._clients[pack] = make(*given, S, V, T, self.crew)
            # A crew keeps the memories.
            kept_here, allocate = (0 if self.crew else N), (aligned if self.alone else reserved)
            self._memories[pack] = [
                ClientMemory.make(pack.indices[first:last], kept_here, (d, P, V), dtype, allocate)
                for first, last in chunks
            ]

    def forms(self, pack: Pack, where: slice, gap: int) -> list[Affine]:
        """Return the affine forms of some lanes, padded for the kernels."""
        return [form.steps for form in self._client_forms(pack, where, gap)]

    def round(self, pack: Pack, draws: Draws) -> None:
        """Advance every lane of a pack by one round: its state becomes the mean message."""
        alive = set(pack.indices)
        first = 0
        for memory in self._memories[pack]:
            clients = self._clients[pack]
            memory.keep([i for i in memory.indices if i in alive], len(clients.lanes))
            last = first + len(memory.indices)
            if last > first:
                self._visit(pack, slice(first, last), draws, memory)
            first = last

    def _visit(self, pack: Pack, where: slice, draws: Draws, memory: ClientMemory) -> None:
        state, clients = pack.state[:, :, where], self._clients[pack]
        count, V = state.shape[2], len(clients.lanes)
        tables, closing = self.table(pack, where, draws.gap, V)
        coefficients = self._coefficients(pack, where, draws.gap, closing)
        reference = np.einsum("tiv,div->dtv", coefficients.reference, state)
        boundary = coefficients.boundary._replace(
            broadcast=padded(state, V, self.rows.dtype).reshape(-1),
            reference=padded(reference, V, self.rows.dtype).reshape(-1),
        )
        lanes, total = pack.indices[where], clients.total
        if self.crew is None:
            visit_some(clients, draws, tables, boundary, memory.kept, count, 0, len(total))
        else:
            start = np.zeros(0)  # every client has its own
            job = Job(draws.t, draws.gap, tuple(lanes), clients.widths, tables, start, boundary)
            report = clients.report(clients.drawn(draws) * count, len(total))
            self.crew.visit(job, memory, draws, total, report)
        moved = sum_strands(clients.total).reshape(*state.shape[:2], V)[:, :, :count]
        state[:] = reference + moved / total_weight(draws, len(self.rows.y))

    def _coefficients(self, pack: Pack, where: slice, gap: int, closing: Closing) -> Coefficients:
        key = tuple(pack.indices[where]), gap
        if pack.falling or key not in self.coefficients:
            forms, V = self._client_forms(pack, where, gap), len(self._clients[pack].lanes)
            center = self.regularizer.center.astype(self.rows.dtype)
            algorithms = [lane.algorithm for lane in pack.lanes[where]]
            self.coefficients[key] = find_coefficients(
                forms, closing, V, center, self.problem.wire, algorithms
            )
        return self.coefficients[key]

    def _may_drop_sums(self, pack: Pack) -> bool:
        """Say whether clients need not sum their gradients in any lane and round."""
        # Where a step size falls, it may become too small on the way.
        return not pack.falling and all(
            without_sums(client_form(lane, gap), gap, self.rows.dtype) is not None
            for lane in pack.lanes
            for gap in set(self.problem.schedule.gaps)
        )

    def _client_forms(self, pack: Pack, where: slice, gap: int) -> list[ClientForm]:
        """Return the forms of some lanes of a pack, of one size in all lanes and rounds."""
        forms = [client_form(lane, gap) for lane in pack.lanes[where]]
        if self._without_sums[pack]:
            reduced = [without_sums(form, gap, self.rows.dtype) for form in forms]
            forms = [form for form in reduced if form is not None]
        return [form.padded(padded_size(len(form.enter))) for form in forms]
