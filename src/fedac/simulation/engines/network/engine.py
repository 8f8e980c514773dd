"""Rounds of networks: lanes and clients as flat tensors, clients in chunks, on any device."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedac.algorithms import Algorithm, ClientWork, RoundInfo
from fedac.algorithms.minibatch import on_clients
from fedac.errors import InputError, SlowEngineWarning
from fedac.federation.compression import FLOAT32, keys_of, rounded
from fedac.federation.round import compress, leave, serve, squared_moves
from fedac.federation.sampling import client_keys
from fedac.federation.schedule import Span
from fedac.objectives.base import RowNumbers
from fedac.objectives.network import Network, Placed
from fedac.objectives.network.data import first_line
from fedac.objectives.network.layers import seeded_dropouts
from fedac.simulation.engines.network.checkpoint import SimulationCheckpoint, stored_backend
from fedac.simulation.engines.network.gradients import (
    BACKENDS,
    COMPILED_MODELS,
    Backend,
    Batch,
    Batched,
    Loop,
    saved_bytes,
)
from fedac.simulation.engines.network.memory import ClientVectors, keep_freed_memory
from fedac.simulation.problem import DIVERGED, Lane, Problem, Snapshot
from fedac.validate import Array, unknown_name

# Memory for the models of a chunk and their activations: more does not stay in the cache, and less
# pays for more calls.
CHUNK_BYTES = 16 * 2**20
# Multiplications in a step, about, from which threads pay off; counting at most so many models.
WORTH_THREADS, MODELS_AT_ONCE = 4e6, 32
# Stands for the step of a full gradient, which no local step has, in random keys.
FULL_GRADIENT = 2**31 - 1
# Timed steps of a back end; the fastest counts.
TIMED_STEPS = 3
State = tuple[Tensor, ...]


def refuse(problem: Problem) -> str | None:
    """Run networks, on this machine."""
    if problem.on:
        return "one network is simulated on one machine; spread runs with a sweep on Ray"
    if problem.timeline is not None:
        return "a timeline needs the reference engine"
    return None


def settle(problem: Problem) -> Problem:
    """Choose the number of threads, and the back end by timing, unless they are given."""
    if problem.backend not in (None, *BACKENDS):
        raise unknown_name("back end", str(problem.backend), BACKENDS)
    if problem.compile and problem.backend == "loop":
        raise InputError("compile=True needs the batched back end; omit backend='loop'")
    keep_freed_memory()
    problem = replace(problem, threads=_threads(problem))
    if problem.backend is None and problem.checkpoint is not None:
        problem = replace(problem, backend=stored_backend(problem.checkpoint))
    with _torch_settings(problem):
        simulation = Simulation(problem)
        if problem.backend == "loop":
            return problem
        times = simulation.time_backends()
    return replace(problem, backend=problem.backend or min(times, key=lambda name: times[name]))


def _threads(problem: Problem) -> int:
    """Return the threads of the problem if a step is long enough to share, else 1.

    Threads wait for each other by spinning: short operations become slower, far slower on a busy
    machine.
    """
    federation = problem.federation
    rows = federation.largest if federation.batch is None else federation.batch
    models = 1 if problem.backend == "loop" else len(problem.lanes) * federation.taking_part
    work = rows * problem.objective.dim * min(models, MODELS_AT_ONCE)
    return (problem.threads or torch.get_num_threads()) if work > WORTH_THREADS else 1


def run(problem: Problem) -> Generator[list[Snapshot]]:
    """Run all lanes together, round by round."""
    keeper = SimulationCheckpoint(problem.checkpoint, problem) if problem.checkpoint else None
    rounds = 0
    with _torch_settings(problem):
        simulation = Simulation(problem)
        found: list[Snapshot] = []
        if keeper is not None:
            rounds, found = keeper.read(simulation)
        if not found:
            found = simulation.snapshots(0)
            if keeper is not None:
                keeper.record(found)
    yield found
    for this_round in islice(problem.schedule, rounds, None):
        if not simulation.alive:
            return
        # A generator must not change settings of PyTorch while its caller runs.
        with _torch_settings(problem):
            queries = problem.federation.queries(this_round) * simulation.alive
            simulation.run_round(this_round)
            step = this_round.t + this_round.gap
            found = simulation.drop_diverged(step)
            if step in problem.records:
                found += simulation.snapshots(step)
        if keeper is not None:
            keeper.record(found)
            at_end = step == problem.schedule.T or not simulation.alive
            keeper.write_if_due(simulation, this_round.number + 1, at_end=at_end)
        problem.on_progress(queries)
        if found:
            yield found


@contextmanager
def _torch_settings(problem: Problem) -> Iterator[None]:
    """Set threads, keep the caller's random numbers, and silence PyTorch on slow batching."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Whether batching pays is measured.
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        if problem.threads is not None:
            torch.set_num_threads(problem.threads)
        try:
            yield
        finally:
            if problem.threads is not None:
                torch.set_num_threads(before)


class Simulation:
    """The server's side of all lanes, and the work of the clients of a round."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.network = cast("Network", problem.objective)
        self.federation = problem.federation
        self.placed = place(self.network, problem.device, problem.precision)
        by_algorithm: dict[int, list[int]] = {}
        for index, lane in enumerate(problem.lanes):
            by_algorithm.setdefault(id(lane.algorithm), []).append(index)
        self.groups = [MethodLanes(self, lanes) for lanes in by_algorithm.values()]
        self.dropout = bool(seeded_dropouts(self.placed.module))
        self._set_buffers()
        self._chunk: int | None = None
        self._backend: Backend | None = None
        if problem.compile:
            self._fused_step = torch.compile(self._local_step, dynamic=False)

    def _set_buffers(self) -> None:
        network, M = self.network, self.federation.M
        first = torch.as_tensor(network.first_buffers).to(self.placed.device, self.wide)
        self.buffers = first.expand(len(self.problem.lanes), -1).clone()
        self.own_buffers = None
        if network.changing and network.buffers == "local":
            self.own_buffers = ClientVectors(1, len(self.buffers), M, len(first), self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of clients."""
        return self.placed.dtype

    @property
    def wide(self) -> torch.dtype:
        """The precision of the server: float64 where the device has it."""
        return torch.float32 if self.placed.device.type == "mps" else torch.float64

    @property
    def alive(self) -> int:
        """The number of lanes that have not diverged."""
        return sum(len(group.lanes) for group in self.groups)

    @property
    def lanes(self) -> RowNumbers:
        """The lanes that have not diverged, in the order of their tensors."""
        return np.array([lane for group in self.groups for lane in group.lanes], np.int64)

    def run_round(self, this_round: Span) -> None:
        """Run one round of all lanes."""
        r, federation = this_round.number, self.federation
        members = federation.members(r)
        steps = federation.steps(members, this_round)
        weights = federation.weights(members)
        # Clients with more steps first, so that those still at work are the first of a chunk.
        order = np.argsort(-steps, kind="stable")
        for group in self.groups:
            group.begin_round(r)
        total_buffers = torch.zeros_like(self.buffers[self.lanes])
        size = self.chunk_size(members, this_round)
        for first in range(0, len(order), size):
            some = order[first : first + size]
            buffers = self._run_chunk(members[some], steps[some], weights[some], this_round)
            total_buffers += _weighted_sum(weights[some], buffers).to(self.wide)
        this = RoundInfo(number=r, share=federation.share(members), steps=float(weights @ steps))
        for group in self.groups:
            group.serve(this)
        if self.network.changing:
            self.buffers[self.lanes] = total_buffers

    def _run_chunk(
        self, members: RowNumbers, steps: RowNumbers, weights: Array, this_round: Span
    ) -> Tensor:
        """Run the local steps of some clients, and add their messages; return their buffers."""
        batches = self._batches(members, this_round)
        buffers = self._enter_buffers(members)
        first = 0
        for group in self.groups:
            group.enter(members)
            last = first + len(group.lanes)
            if "gradient" in group.rule.asks:
                own = buffers[first:last]
                group.gradient = self._full_gradients(group.sent[0], own, members, this_round)
            first = last
        fused = self.problem.compile and isinstance(batches, Tensor)
        if fused:
            self._take_compiled_steps(buffers, members, batches, this_round.number)
        for k in range(0 if fused else int(steps.max())):
            active = int((steps > k).sum())
            W = self._query(active)
            G = self._gradients(W, buffers, members[:active], batches, this_round.number, k)
            first = 0
            for group in self.groups:
                last = first + len(group.lanes)
                group.update(W[first:last], G[first:last])
                first = last
        for group in self.groups:
            group.leave(members, steps, weights, this_round.number)
        if self.own_buffers is not None:
            self.own_buffers.store(self.lanes, members, (buffers,))
        return buffers

    def _take_compiled_steps(
        self, buffers: Tensor, members: RowNumbers, batches: Any, r: int
    ) -> None:
        """Take all local steps of a chunk in compiled code; buffers are changed in place."""
        count, groups, backend = len(members), self.groups, cast("Batched", self.backend)
        # Compiled code is made for one size: a last chunk of fewer clients repeats its last one.
        which = torch.arange(self._chunk or count, device=self.placed.device).clamp(max=count - 1)
        local = [tuple(each.index_select(1, which) for each in group.local) for group in groups]
        moved, rows = buffers.index_select(1, which), batches.index_select(0, which)
        rules, hps = [group.rule for group in groups], [group.hp for group in groups]
        with torch.no_grad():
            for k in range(batches.shape[1]):
                keys = self._keys(members, r, k).index_select(0, which)
                local, moved = self._fused_step(backend, rules, hps, local, moved, rows[:, k], keys)
        for group, after in zip(groups, local, strict=True):
            group.local = tuple(each[:, :count] for each in after)
        if self.network.changing:
            buffers.copy_(moved[:, :count])

    def _local_step(
        self,
        backend: Batched,
        rules: Any,
        hps: Any,
        local: Any,
        buffers: Tensor,
        rows: Tensor,
        keys: Tensor,
    ) -> tuple[list[State], Tensor]:
        """Return the clients' states and buffers after a local step, as one piece of code."""
        points = [rule.query(*given) for rule, *given in zip(rules, local, hps, strict=True)]
        W, batch = torch.cat(points), self.batch(rows, keys)
        G, buffers = backend.pure_gradients(W, buffers, batch)
        after, first = [], 0
        for rule, state, hp in zip(rules, local, hps, strict=True):
            last = first + len(state[0])
            after.append(tuple(rule.update(state, W[first:last], G[first:last], hp)))
            first = last
        return after, buffers

    def _batches(self, members: RowNumbers, this_round: Span) -> Tensor | list[list[Tensor]]:
        """Return the rows of every step of some clients, on the device."""
        found, device = self.federation.batches(members, this_round), self.placed.device
        if isinstance(found, np.ndarray):
            return torch.as_tensor(found, device=device)
        return [[torch.as_tensor(rows, device=device) for rows in steps] for steps in found]

    def _query(self, active: int) -> Tensor:
        """Return the points where the first `active` clients of all lanes take gradients."""
        points = [group.query(active) for group in self.groups]
        return torch.cat(points) if len(points) > 1 else points[0]

    def _gradients(
        self, W: Tensor, buffers: Tensor, members: RowNumbers, batches: Any, r: int, k: int
    ) -> Tensor:
        """Return the gradients of local step k; buffers are changed in place."""
        active, backend = len(members), self.backend
        keys = self._keys(members, r, k)
        if isinstance(batches, Tensor):
            batch = self.batch(batches[:active, k], keys)
            G, after = backend(W, buffers[:, :active], batch)
            if self.network.changing:
                buffers[:, :active] = after
            return G
        # Batches of the same size go together.
        rows = [batches[c][k] for c in range(active)]
        sizes = np.array([len(one) for one in rows])
        G = torch.empty_like(W)
        for n in np.unique(sizes):
            which = np.flatnonzero(sizes == n)
            batch = self.batch(torch.stack([rows[c] for c in which]), keys[which])
            G[:, which], after = backend(W[:, which], buffers[:, which], batch)
            if self.network.changing:
                buffers[:, which] = after
        return G

    def _full_gradients(
        self, W: Tensor, buffers: Tensor, members: RowNumbers, this_round: Span
    ) -> Tensor:
        """Return the gradient of all rows of each client, in batches of about the usual size."""
        federation, device = self.federation, self.placed.device
        everything = np.arange(federation.n)
        G = torch.zeros_like(W)
        for c, m in enumerate(members.tolist()):
            rows = everything if federation.clients is None else federation.clients.rows_of(m)
            keys = self._keys(members[c : c + 1], this_round.number, FULL_GRADIENT)
            # None is smaller than usual: batch normalization fails on a single row.
            for some in np.array_split(rows, max(1, len(rows) // (federation.batch or len(rows)))):
                batch = self.batch(torch.as_tensor(some[None], device=device), keys)
                found, _ = self.backend(W[:, c : c + 1], buffers[:, c : c + 1], batch)
                G[:, c : c + 1] += len(some) / len(rows) * found
        return G

    def _keys(self, members: RowNumbers, r: int, k: int) -> Tensor:
        """Return the random key of every client; zeros if the module has no use for them."""
        if self.network.random or self.dropout:
            keys = torch.as_tensor(client_keys(self.federation.seed, members, r, k))
        else:
            keys = torch.zeros(len(members), dtype=torch.int64)
        return keys.to(self.placed.device)

    def batch(self, rows: Tensor, keys: Tensor) -> Batch:
        """Return the data of some rows, numbers of shape (clients, rows)."""
        which = rows.reshape(-1)  # whole rows are copied much faster than by X[rows]
        x, y = (t.index_select(0, which).unflatten(0, rows.shape)
                for t in (self.placed.X, self.placed.y))  # fmt: skip
        return Batch(x, y, keys)

    def _enter_buffers(self, members: RowNumbers) -> Tensor:
        sent = self.buffers[self.lanes].to(self.dtype)[:, None].expand(-1, len(members), -1)
        if self.own_buffers is None:
            return sent.clone()
        (own,) = self.own_buffers.load(self.lanes, members, (sent,), self.placed.device)
        return own

    @property
    def backend(self) -> Backend:
        """The back end of the problem."""
        if self._backend is None:
            self._backend = self._make_backend(self.problem.backend or "loop")
        return self._backend

    def _make_backend(self, name: str) -> Backend:
        if name == "loop":
            return Loop(self.placed)
        if self.network.random:
            raise InputError(
                "the module draws random numbers outside of dropout layers, which the batched back "
                "end cannot repeat for every client; use backend='loop'"
            )
        return Batched(self.placed, compiled=self.problem.compile)

    def time_backends(self) -> dict[str, float]:
        """Return the seconds of a step on the first clients, without a back end that fails."""
        this_round = next(iter(self.problem.schedule))
        members = self.federation.members(0)
        members = members[: self.chunk_size(members, this_round)]
        batches = self._batches(members, this_round)
        buffers = self._enter_buffers(members)
        for group in self.groups:
            group.begin_round(0)
            group.enter(members)
        W, given = self._query(len(members)), self.problem.backend
        times = {}
        # The loop first: a module that fails there fails everywhere.
        for name in [given] if given else BACKENDS:
            try:
                self._backend = self._make_backend(name)
                times[name] = min(
                    self._timed(W, buffers.clone(), members, batches) for _ in range(TIMED_STEPS)
                )
            except Exception as error:  # any error of the user's module under vmap
                if name == "loop" or self.problem.compile:
                    raise
                reason = f"the module cannot be batched: {first_line(error, 130)}"
                if given:
                    raise InputError(f"{reason}; use backend='loop'") from error
                warnings.warn(
                    f"clients run one by one (backend='loop'), because {reason}",
                    SlowEngineWarning,
                    stacklevel=7,
                )
        self._backend = None
        return times

    def _timed(self, W: Tensor, buffers: Tensor, members: RowNumbers, batches: Any) -> float:
        begun = time.perf_counter()
        float(self._gradients(W, buffers, members, batches, 0, 0).sum())  # waits for the device
        return time.perf_counter() - begun

    def chunk_size(self, members: RowNumbers, this_round: Span) -> int:
        """Return how many clients fit into a chunk."""
        if self._chunk is None:
            rows = max(self.federation.batches(members[:1], this_round)[0], key=len)
            x, y = (t[torch.as_tensor(rows)] for t in (self.placed.X, self.placed.y))
            item = torch.finfo(self.dtype).bits // 8
            vectors = sum(group.vectors * len(group.lanes) for group in self.groups)
            each = vectors * self.network.dim * item
            if self.problem.backend != "loop":
                each += len(self.lanes) * saved_bytes(self.placed, x, y)
            self._chunk = max(1, CHUNK_BYTES // each)
            if self.problem.compile:  # chunks of equal size
                pieces = -(-len(members) * len(self.lanes) // COMPILED_MODELS)
                self._chunk = min(self._chunk, -(-len(members) // pieces))
        return self._chunk

    def drop_diverged(self, step: int) -> list[Snapshot]:
        """Remove the lanes that diverged, and return their last snapshots."""
        found: list[Snapshot] = []
        for group in self.groups:
            found += group.drop_diverged(step)
        self.groups = [group for group in self.groups if group.lanes]
        return found

    def state(self) -> dict[str, Array]:
        """Return all that rounds change, as arrays by name."""
        found = {"buffers": self.buffers.cpu().numpy()}
        for g, group in enumerate(self.groups):
            found |= {f"sequences/{g}/{i}": x.cpu().numpy() for i, x in enumerate(group.sequences)}
            found |= {f"server/{g}/{i}": x.cpu().numpy() for i, x in enumerate(group.server)}
            if group.memory is not None:
                found |= group.memory.state(f"memory/{g}")
        if self.own_buffers is not None:
            found |= self.own_buffers.state("own_buffers")
        return found

    def restore(self, lanes: list[list[int]], arrays: Mapping[str, Array]) -> None:
        """Set what `state` returned; `lanes` are those of every group that are left."""
        place = {lane: group for group in self.groups for lane in group.lanes}
        self.groups = [place[left[0]] for left in lanes]
        self.buffers = self._on_device(arrays["buffers"])
        for g, (group, left) in enumerate(zip(self.groups, lanes, strict=True)):
            group.keep_lanes(np.flatnonzero(np.isin(group.lanes, left)))
            for name in ("sequences", "server"):
                count = len(getattr(group, name))
                vectors = (self._on_device(arrays[f"{name}/{g}/{i}"]) for i in range(count))
                setattr(group, name, tuple(vectors))
            if group.memory is not None:
                group.memory.restore(f"memory/{g}", arrays)
        if self.own_buffers is not None:
            self.own_buffers.restore("own_buffers", arrays)

    def _on_device(self, array: Array) -> Tensor:
        return torch.as_tensor(array, dtype=self.wide, device=self.placed.device)

    def snapshots(self, step: int) -> list[Snapshot]:
        """Evaluate the lanes."""
        return [one for group in self.groups for one in group.snapshots(step)]

    def client_means(self, losses: Array) -> Array:
        """Return the mean loss of every client, given the loss of every row."""
        clients = self.federation.clients
        assert clients is not None
        return np.asarray(np.add.reduceat(losses[clients.rows], clients.bounds[:-1])
                          / clients.sizes)  # fmt: skip


class MethodLanes:
    """The lanes of one algorithm: the server's vectors, and those of the clients of a chunk."""

    def __init__(self, simulation: Simulation, lanes: list[int]) -> None:
        self.simulation, self.lanes = simulation, lanes
        problem, dim = simulation.problem, simulation.network.dim
        self.algorithm: Algorithm = problem.lanes[lanes[0]].algorithm
        # In terms of messages, a minibatch algorithm is like all others.
        self.rule = on_clients(self.algorithm) if self.algorithm.minibatch else self.algorithm
        start = torch.as_tensor(problem.start).to(simulation.placed.device, simulation.wide)
        state = self.rule.start(start.expand(len(lanes), -1))
        self.sequences, self.server = self.rule.split(state)
        self.gradient: Tensor | None = None  # of all rows of each client of the chunk
        self.memory: ClientVectors | None = None
        if self.rule.memory:
            self.memory = ClientVectors(
                len(self.rule.memory), len(lanes), simulation.federation.M, dim, simulation.dtype
            )

    @property
    def vectors(self) -> int:
        """Vectors of a client in memory at once: its state before and after a step, and more."""
        rule = self.rule
        return 2 * len(rule.local_sequences) + len(rule.sequences) + len(rule.memory) + 3

    def begin_round(self, r: int) -> None:
        """Set the hyperparameters of a round."""
        self.now: list[Lane] = [self.simulation.problem.lanes[lane].at(r) for lane in self.lanes]
        self.hp_server = self._stacked(1, self.simulation.wide)
        self.hp = self._stacked(2, self.simulation.dtype)
        if self.algorithm.minibatch:  # the query point of this round's step size
            self.sequences = (self.algorithm.query(self.server, self.hp_server),)
        self.total: list[Tensor] = [
            torch.zeros_like(each) for name, each in zip(self.rule.sequences, self.sequences,
                                                         strict=True) if name in self.rule.sent
        ]  # fmt: skip
        self.spread = torch.zeros_like(self.sequences[0][:, :1])

    def _stacked(self, axes: int, dtype: torch.dtype) -> Any:
        """Return hyperparameters with an entry for each lane; floats where all are equal."""
        stacked = {}
        for field in fields(self.now[0].hp):
            values = [getattr(lane.hp, field.name) for lane in self.now]
            stacked[field.name] = values[0]
            # A number would become part of compiled code, and its change would compile it again.
            compiled = self.simulation.problem.compile and isinstance(values[0], float)
            if compiled or any(value != values[0] for value in values):
                tensor = torch.tensor(values, dtype=dtype, device=self.simulation.placed.device)
                stacked[field.name] = tensor.view(-1, *(1,) * axes)
        return SimpleNamespace(**stacked)

    def enter(self, members: RowNumbers) -> None:
        """Broadcast the sequences to the clients of a chunk."""
        dtype = self.simulation.dtype
        self.sent: State = tuple(
            each.to(dtype)[:, None].expand(-1, len(members), -1) for each in self.sequences
        )
        self.kept: State = ()
        if self.memory is not None:
            first = self.rule.begin_memory(self.sent)
            device = self.simulation.placed.device
            self.kept = self.memory.load(np.arange(len(self.lanes)), members, first, device)
        self.local: State = tuple(self.rule.enter(self.sent, self.kept, self.hp))

    def query(self, active: int) -> Tensor:
        """Return the points where the first `active` clients of the chunk take their gradients."""
        self.active = tuple(each[:, :active] for each in self.local)
        point: Tensor = self.rule.query(self.active, self.hp)
        return point

    def update(self, w_md: Tensor, g: Tensor) -> None:
        """Take a local step of the active clients."""
        after = self.rule.update(self.active, w_md, g, self.hp)
        if after[0].shape[1] == self.local[0].shape[1]:
            self.local = tuple(after)
            return
        # Clients that are done keep their state.
        self.local = tuple(
            new if new.shape == old.shape else torch.cat([new, old[:, new.shape[1] :]], dim=1)
            for old, new in zip(self.local, after, strict=True)
        )

    def leave(self, members: RowNumbers, steps: RowNumbers, weights: Array, r: int) -> None:
        """Add the messages of the chunk to the mean, and keep the clients' memories."""
        problem = self.simulation.problem
        taken: Any = int(steps[0])
        if (steps != steps[0]).any():
            taken = torch.as_tensor(steps, dtype=self.simulation.dtype)[:, None]
            taken = taken.to(self.simulation.placed.device)
        done = ClientWork(steps=taken, gradient=self.gradient)
        message, kept = leave(self.rule, self.local, self.sent, self.kept, self.hp, done)
        if problem.wire != FLOAT32:

            def quantize(differences: Tensor, t: int) -> Tensor:
                keys = keys_of(problem.federation.seed, members, r, t)
                values = differences.double().cpu().numpy()
                found = np.stack([rounded(problem.wire, lane, keys) for lane in values])
                return torch.as_tensor(found).to(differences)

            message, kept = compress(self.rule, message, self.sent, kept, quantize)
        if self.memory is not None:
            self.memory.store(np.arange(len(self.lanes)), members, kept)
        for total, vector in zip(self.total, message, strict=True):
            total += _weighted_sum(weights, vector).to(total.dtype)
        if "moves" in self.rule.asks:
            lengths = squared_moves(self.rule, message, self.sent)
            self.spread += _weighted_sum(weights, lengths[..., None]).to(self.spread.dtype)
        self.local = self.sent = self.kept = self.active = ()
        self.gradient = None

    def serve(self, this: RoundInfo) -> None:
        """Take the server's step."""
        mean = tuple(self.total)
        if "moves" in self.rule.asks:
            moved = squared_moves(self.rule, mean, self.sequences)[:, None]
            this = replace(this, spread=self.spread, moved=moved)
        self.sequences, self.server = serve(
            self.rule, mean, self.sequences, self.server, self.hp_server, this
        )

    def drop_diverged(self, step: int) -> list[Snapshot]:
        """Remove the lanes whose query point is out of bounds, and return their last snapshots."""
        sequences = self.sequences
        local = self.rule.enter(sequences, self.rule.begin_memory(sequences), self.hp_server)
        size = self.rule.query(local, self.hp_server).abs().amax(dim=1)
        good = (size <= DIVERGED).cpu().numpy()  # False for NaN
        if good.all():
            return []
        found = [
            Snapshot(lane, step, self._state(place), diverged=True)
            for place, lane in enumerate(self.lanes) if not good[place]
        ]  # fmt: skip
        self.keep_lanes(np.flatnonzero(good))
        return found

    def keep_lanes(self, left: RowNumbers) -> None:
        """Drop all lanes but some, given by their places."""
        self.lanes = [self.lanes[place] for place in left]
        self.sequences = tuple(each[left] for each in self.sequences)
        self.server = tuple(each[left] for each in self.server)
        if self.memory is not None:
            self.memory.keep_lanes(left)

    def _state(self, place: int) -> tuple[Array, ...]:
        """Return the state of a lane as the algorithm has it."""
        vectors = self.server if self.algorithm.minibatch else (*self.sequences, *self.server)
        return tuple(each[place].double().cpu().numpy().copy() for each in vectors)

    def snapshots(self, step: int) -> list[Snapshot]:
        """Return the evaluated lanes."""
        simulation, found = self.simulation, []
        network, federation = simulation.network, simulation.federation
        means = simulation.client_means if federation.clients is not None else None
        for place, lane in enumerate(self.lanes):
            state = self._state(place)
            w = torch.as_tensor(simulation.problem.lanes[lane].output(state, step))
            buffers = simulation.buffers[lane]
            placed = simulation.placed
            point = w.to(placed.device, placed.dtype)
            F, values = placed.evaluate(point, buffers.to(placed.dtype), means)
            kept = buffers.double().cpu().numpy().copy() if network.changing else None
            found.append(Snapshot(lane, step, state, loss=F, metrics=values, buffers=kept))
        return found


def place(network: Network, device: str | None, precision: str) -> Placed:
    """Put a network on a device."""
    name = device or "cpu"
    try:
        return Placed(network, device=name, precision=precision)
    except (RuntimeError, AssertionError, TypeError) as error:
        first = str(error).strip().splitlines()[0][:160]
        raise InputError(f"device='{name}' cannot be used: {first}") from error


def _weighted_sum(weights: Array, values: Tensor) -> Tensor:
    """Return the sum over the clients, the second axis."""
    w = torch.as_tensor(weights, dtype=values.dtype, device=values.device)
    return torch.einsum("c,lcp->lp", w, values)
