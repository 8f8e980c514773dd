# SPDX-License-Identifier: Apache-2.0
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
from fedac.federation.federation import Update
from fedac.federation.round import (
    arrive,
    compress,
    leave,
    serve,
    squared_moves,
    staleness_scale,
)
from fedac.federation.sampling import client_keys
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
    Compiled,
    Loop,
    saved_bytes,
)
from fedac.simulation.engines.network.memory import ClientVectors, keep_freed_memory
from fedac.simulation.problem import DIVERGED, Problem, Snapshot
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
# Pieces of compiled code in one process.
MOST_COMPILED = 256
State = tuple[Tensor, ...]


def refuse(problem: Problem) -> str | None:
    """Run networks, on this machine."""
    if problem.on:
        return "one network is simulated on one machine; spread runs with a sweep on Ray"
    return None


def settle(problem: Problem) -> Problem:
    """Choose the number of threads, and the back end by timing, unless they are given."""
    if problem.backend not in (None, *BACKENDS):
        raise unknown_name("back end", str(problem.backend), BACKENDS)
    if problem.compile and problem.backend == "loop":
        raise InputError("compile=True needs the batched back end; omit backend='loop'")
    keep_freed_memory()
    if problem.compile:
        problem = replace(problem, backend="batched")
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
    for update in islice(problem.updates(), rounds, None):
        if not simulation.alive:
            return
        # A generator must not change settings of PyTorch while its caller runs.
        with _torch_settings(problem):
            queries = problem.federation.queries_of(update) * simulation.alive
            simulation.run_update(update)
            step = update.span.t + update.span.gap
            found = simulation.drop_diverged(step)
            if step in problem.records:
                found += simulation.snapshots(step)
        if keeper is not None:
            keeper.record(found)
            at_end = step == problem.schedule.T or not simulation.alive
            keeper.write_if_due(simulation, update.span.number + 1, at_end=at_end)
        problem.on_progress(queries)
        if found:
            yield found


@contextmanager
def _torch_settings(problem: Problem) -> Iterator[None]:
    """Set threads, keep the caller's random numbers, and silence warnings of PyTorch."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Whether batching pays is measured.
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        # Its compiler uses what it deprecates.
        warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)
        if problem.threads is not None:
            torch.set_num_threads(problem.threads)
        try:
            yield
        finally:
            if problem.threads is not None:
                torch.set_num_threads(before)


class Simulation:
    """The server's side of all lanes, and the work of the clients of its steps."""

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
        self._first = _largest_update(problem)
        self.chunk = self._chunk_size()
        self._backend: Backend | None = None
        if problem.compile:
            self._fused_step = Compiled(self._local_step)

    def _set_buffers(self) -> None:
        network, M = self.network, self.federation.M
        first = torch.as_tensor(network.first_buffers).to(self.placed.device, self.wide)
        self.buffers = first.expand(len(self.problem.lanes), -1).clone()
        self.history: dict[int, Tensor] = {}  # the buffers of versions that clients work from
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

    def run_update(self, update: Update) -> None:
        """Take a step of the server in all lanes."""
        number, members, steps = update.span.number, update.members, update.steps
        self.history[number] = self.buffers
        for group in self.groups:
            group.begin_round(number)
        if len(members):
            weights = self.federation.weights(members)
            total_buffers = self._run_clients(update, weights)
            share = self.federation.share(members)
            this = RoundInfo(number=number, share=share, steps=float(weights @ steps))
            for group in self.groups:
                group.serve(this)
            if self.network.changing:
                self.buffers = self.buffers.clone()  # the history keeps the others
                self.buffers[self.lanes] = total_buffers
        self.history = self.problem.keep_versions(self.history, number + 1)
        for group in self.groups:
            group.history = self.problem.keep_versions(group.history, number + 1)

    def _run_clients(self, update: Update, weights: Array) -> Tensor:
        """Let the clients work, and add their messages; return the mean of their buffers."""
        lanes = [self.problem.lanes[lane] for lane in self.lanes]
        decays = bool(update.staleness.any()) and any(lane.eta is not None for lane in lanes)
        total = torch.zeros_like(self.buffers[self.lanes])
        for together in update.passes(by_version=decays):
            if decays:
                for group in self.groups:
                    group.take_step_sizes(int(update.versions[together[0]]))
            # Clients with more steps first, so that those still at work are the first of a chunk.
            order = together[np.argsort(-update.steps[together], kind="stable")]
            for first in range(0, len(order), self.chunk):
                some = order[first : first + self.chunk]
                buffers = self._run_chunk(update.part(some), weights[some])
                total += _weighted_sum(weights[some], buffers).to(self.wide)
        return total

    def _run_chunk(self, part: Update, weights: Array) -> Tensor:
        """Run the local steps of some clients, and add their messages; return their buffers."""
        batches, steps = self._batches(part), part.steps
        buffers = self._enter_buffers(part)
        first = 0
        for group in self.groups:
            group.enter(part)
            last = first + len(group.lanes)
            if "gradient" in group.rule.asks:
                group.gradient = self._full_gradients(group.sent[0], buffers[first:last], part)
            first = last
        fused = self.problem.compile and isinstance(batches, Tensor)
        if fused:
            self._take_compiled_steps(buffers, part, batches)
        for k in range(0 if fused else int(steps.max())):
            active = int((steps > k).sum())
            W = self._query(active)
            G = self._gradients(W, buffers, part, batches, k)
            first = 0
            for group in self.groups:
                last = first + len(group.lanes)
                group.update(W[first:last], G[first:last])
                first = last
        for group in self.groups:
            group.leave(part, weights)
        if self.own_buffers is not None:
            self.own_buffers.store(self.lanes, part.members, (buffers,))
        return buffers

    def _take_compiled_steps(self, buffers: Tensor, part: Update, batches: Any) -> None:
        """Take all local steps of a chunk in compiled code; buffers are changed in place."""
        count, groups, backend = len(part.members), self.groups, cast("Batched", self.backend)
        # Compiled code is made for one size: a last chunk of fewer clients repeats its last one.
        which = torch.arange(self.chunk, device=self.placed.device).clamp(max=count - 1)
        local = [
            backend.parts(tuple(each.index_select(1, which) for each in group.local))
            for group in groups
        ]
        moved, rows = buffers.index_select(1, which), batches.index_select(0, which)
        rules, hps = [group.rule for group in groups], [group.hp for group in groups]
        self.placed.module.train()
        # Every method and size is compiled once. From eight on, PyTorch would compile no more.
        with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=MOST_COMPILED):
            for k in range(batches.shape[1]):
                keys = self._keys(part, k).index_select(0, which)
                local, moved = self._fused_step(backend, rules, hps, local, moved, rows[:, k], keys)
        for group, after in zip(groups, local, strict=True):
            whole = (torch.cat(vector, dim=-1) for vector in zip(*after, strict=True))
            group.local = tuple(each[:, :count] for each in whole)
        if self.network.changing:
            buffers.copy_(moved[:, :count])

    def _local_step(
        self, backend: Batched, rules: Any, hps: Any, local: Any, buffers: Tensor, rows: Tensor,
        keys: Tensor,
    ) -> tuple[list[list[State]], Tensor]:  # fmt: skip
        """Return the clients' states and buffers after a local step, as one piece of code.

        The state of a method is in parts, one for each parameter of the module: rules treat every
        number by itself, and the code need not copy gradients into one vector.
        """
        points = [
            [rule.query(part, hp) for part in state]
            for rule, state, hp in zip(rules, local, hps, strict=True)
        ]
        W = [torch.cat(part) if len(part) > 1 else part[0] for part in zip(*points, strict=True)]
        G, buffers = backend.pure_gradients(W, buffers, self.batch(rows, keys))
        after, first = [], 0
        for rule, state, hp in zip(rules, local, hps, strict=True):
            lanes = slice(first, first + len(state[0][0]))
            parts = zip(state, W, G, strict=True)
            after.append([tuple(rule.update(part, w[lanes], g[lanes], hp)) for part, w, g in parts])
            first = lanes.stop
        return after, buffers

    def _batches(self, part: Update) -> Tensor | list[list[Tensor]]:
        """Return the rows of every step of some clients, on the device."""
        found, device = self.federation.batches(part.members, part.draws), self.placed.device
        if isinstance(found, np.ndarray):
            return torch.as_tensor(found, device=device)
        return [[torch.as_tensor(rows, device=device) for rows in steps] for steps in found]

    def _query(self, active: int) -> Tensor:
        """Return the points where the first `active` clients of all lanes take gradients."""
        points = [group.query(active) for group in self.groups]
        return torch.cat(points) if len(points) > 1 else points[0]

    def _gradients(self, W: Tensor, buffers: Tensor, part: Update, batches: Any, k: int) -> Tensor:
        """Return the gradients of local step k at W; buffers are changed in place."""
        active, backend = W.shape[1], self.backend
        keys = self._keys(part, k)[:active]
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

    def _full_gradients(self, W: Tensor, buffers: Tensor, part: Update) -> Tensor:
        """Return the gradient of all rows of each client, in batches of about the usual size."""
        federation, device = self.federation, self.placed.device
        everything = np.arange(federation.n)
        G, keys = torch.zeros_like(W), self._keys(part, FULL_GRADIENT)
        for c, m in enumerate(part.members.tolist()):
            rows = everything if federation.clients is None else federation.clients.rows_of(m)
            # None is smaller than usual: batch normalization fails on a single row.
            for some in np.array_split(rows, max(1, len(rows) // (federation.batch or len(rows)))):
                batch = self.batch(torch.as_tensor(some[None], device=device), keys[c : c + 1])
                found, _ = self.backend(W[:, c : c + 1], buffers[:, c : c + 1], batch)
                G[:, c : c + 1] += len(some) / len(rows) * found
        return G

    def _keys(self, part: Update, k: int) -> Tensor:
        """Return the random key of every client; zeros if the module has no use for them."""
        members, number = part.members, part.draws.number
        if self.network.random or self.dropout:
            keys = torch.as_tensor(client_keys(self.federation.seed, members, number, k))
        else:
            keys = torch.zeros(len(members), dtype=torch.int64)
        return keys.to(self.placed.device)

    def batch(self, rows: Tensor, keys: Tensor) -> Batch:
        """Return the data of some rows, numbers of shape (clients, rows)."""
        which = rows.reshape(-1)  # whole rows are copied much faster than by X[rows]
        x, y = (t.index_select(0, which).unflatten(0, rows.shape)
                for t in (self.placed.X, self.placed.y))  # fmt: skip
        return Batch(x, y, keys)

    def _enter_buffers(self, part: Update) -> Tensor:
        history = {v: self.history[v][self.lanes] for v in {*part.versions.tolist()}}
        sent = self.sent_from(history, part.versions)
        if self.own_buffers is None:
            return sent.clone()
        (own,) = self.own_buffers.load(self.lanes, part.members, (sent,), self.placed.device)
        return own

    @property
    def backend(self) -> Backend:
        """The back end of the problem."""
        if self._backend is None:
            name = self.problem.backend or "loop"
            self._backend = self._make_backend(name, compiled=self.problem.compile)
        return self._backend

    def _make_backend(self, name: str, *, compiled: bool) -> Backend:
        if name == "loop":
            return Loop(self.placed)
        if self.network.random:
            raise InputError(
                "the module draws random numbers outside of dropout layers, which the batched back "
                "end cannot repeat for every client; use backend='loop'"
            )
        return Batched(self.placed, compiled=compiled)

    def time_backends(self) -> dict[str, float]:
        """Return the seconds of a step on the first clients, without a back end that fails."""
        some = np.arange(min(self.chunk, len(self._first.members)))
        part = self._first.part(some)._replace(versions=0 * some)
        self.history[0] = self.buffers
        for group in self.groups:
            group.begin_round(0)
            group.enter(part)
        batches, buffers = self._batches(part), self._enter_buffers(part)
        W, given = self._query(len(some)), self.problem.backend
        times = {}
        # The loop first: a module that fails there fails everywhere.
        for name in [given] if given else BACKENDS:
            try:
                # Not compiled, which would take longer than all steps here.
                self._backend = self._make_backend(name, compiled=False)
                times[name] = min(
                    self._timed(W, buffers.clone(), part, batches) for _ in range(TIMED_STEPS)
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

    def _timed(self, W: Tensor, buffers: Tensor, part: Update, batches: Any) -> float:
        begun = time.perf_counter()
        float(self._gradients(W, buffers, part, batches, 0).sum())  # waits for the device
        return time.perf_counter() - begun

    def _chunk_size(self) -> int:
        """Return how many clients fit into a chunk, the same after a resume."""
        count, lanes = len(self._first.members), len(self.problem.lanes)
        one = self._first.part(np.arange(1))
        rows = max(self.federation.batches(one.members, one.draws)[0], key=len)
        x, y = (t[torch.as_tensor(rows)] for t in (self.placed.X, self.placed.y))
        item = torch.finfo(self.dtype).bits // 8
        vectors = sum(group.vectors * len(group.lanes) for group in self.groups)
        each = vectors * self.network.dim * item
        if self.problem.backend != "loop":
            each += lanes * saved_bytes(self.placed, x, y)
        chunk = max(1, CHUNK_BYTES // each)
        if self.problem.compile:  # chunks of equal size
            pieces = -(-count * lanes // COMPILED_MODELS)
            chunk = min(chunk, -(-count // pieces))
        return chunk

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
        found |= {f"buffers/{v}": each.cpu().numpy() for v, each in self.history.items()}
        for g, group in enumerate(self.groups):
            found |= {f"sequences/{g}/{i}": x.cpu().numpy() for i, x in enumerate(group.sequences)}
            found |= {f"server/{g}/{i}": x.cpu().numpy() for i, x in enumerate(group.server)}
            for v, sequences in group.history.items():
                named = {f"sequences/{g}/{i}/{v}": x for i, x in enumerate(sequences)}
                found |= {name: x.cpu().numpy() for name, x in named.items()}
            if group.memory is not None:
                found |= group.memory.state(f"memory/{g}")
        if self.own_buffers is not None:
            found |= self.own_buffers.state("own_buffers")
        return found

    def restore(self, lanes: list[list[int]], rounds: int, arrays: Mapping[str, Array]) -> None:
        """Set what `state` returned after some rounds; `lanes` are those left of every group."""
        versions = self.problem.keep_versions(dict.fromkeys(range(rounds)), rounds)
        place = {lane: group for group in self.groups for lane in group.lanes}
        self.groups = [place[left[0]] for left in lanes]
        self.buffers = self._on_device(arrays["buffers"])
        self.history = {v: self._on_device(arrays[f"buffers/{v}"]) for v in versions}
        for g, (group, left) in enumerate(zip(self.groups, lanes, strict=True)):
            group.keep_lanes(np.flatnonzero(np.isin(group.lanes, left)))
            for name in ("sequences", "server"):
                count = len(getattr(group, name))
                vectors = (self._on_device(arrays[f"{name}/{g}/{i}"]) for i in range(count))
                setattr(group, name, tuple(vectors))
            count = len(group.sequences)
            group.history = {
                v: tuple(self._on_device(arrays[f"sequences/{g}/{i}/{v}"]) for i in range(count))
                for v in versions
            }
            if group.memory is not None:
                group.memory.restore(f"memory/{g}", arrays)
        if self.own_buffers is not None:
            self.own_buffers.restore("own_buffers", arrays)

    def _on_device(self, array: Array) -> Tensor:
        return torch.as_tensor(array, dtype=self.wide, device=self.placed.device)

    def snapshots(self, step: int) -> list[Snapshot]:
        """Evaluate the lanes."""
        return [one for group in self.groups for one in group.snapshots(step)]

    def sent_from(self, history: Mapping[int, Tensor], versions: RowNumbers) -> Tensor:
        """Return what clients received that start from these versions: (lanes, clients, ...)."""
        found = {v: history[v].to(self.dtype) for v in {*versions.tolist()}}
        if len(found) == 1:
            (same,) = found.values()
            return same[:, None].expand(-1, len(versions), -1)
        return torch.stack([found[v] for v in versions.tolist()], dim=1)

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
        self.history: dict[int, State] = {}  # the sequences of versions that clients work from
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
        """Set the hyperparameters of a round, and its sequences as version r."""
        self.hp_server = self._stacked(r, 1, self.simulation.wide)
        self.take_step_sizes(r)
        if self.algorithm.minibatch:  # the query point of this round's step size
            self.sequences = (self.algorithm.query(self.server, self.hp_server),)
        self.history[r] = self.sequences
        self.total: list[Tensor] = [
            torch.zeros_like(each) for name, each in zip(self.rule.sequences, self.sequences,
                                                         strict=True) if name in self.rule.sent
        ]  # fmt: skip
        self.spread = torch.zeros_like(self.sequences[0][:, :1])

    def take_step_sizes(self, r: int) -> None:
        """Let the next clients work with the hyperparameters of round r."""
        self.hp = self._stacked(r, 2, self.simulation.dtype)

    def _stacked(self, r: int, axes: int, dtype: torch.dtype) -> Any:
        """Return hyperparameters with an entry for each lane; floats where all are equal."""
        lanes, stacked = [self.simulation.problem.lanes[lane].at(r) for lane in self.lanes], {}
        for field in fields(lanes[0].hp):
            values = [getattr(lane.hp, field.name) for lane in lanes]
            stacked[field.name] = values[0]
            # A number would become part of compiled code, and its change would compile it again.
            compiled = self.simulation.problem.compile and isinstance(values[0], float)
            if compiled or any(value != values[0] for value in values):
                tensor = torch.tensor(values, dtype=dtype, device=self.simulation.placed.device)
                stacked[field.name] = tensor.view(-1, *(1,) * axes)
        return SimpleNamespace(**stacked)

    def enter(self, part: Update) -> None:
        """Send each client of a chunk the sequences of its version."""
        history, versions = self.history, part.versions
        self.sent: State = tuple(
            self.simulation.sent_from({v: each[i] for v, each in history.items()}, versions)
            for i in range(len(self.sequences))
        )
        self.kept: State = ()
        if self.memory is not None:
            first = self.rule.begin_memory(self.sent)
            device = self.simulation.placed.device
            self.kept = self.memory.load(np.arange(len(self.lanes)), part.members, first, device)
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

    def leave(self, part: Update, weights: Array) -> None:
        """Add the messages of the chunk to the mean, and keep the clients' memories."""
        problem, members = self.simulation.problem, part.members

        def column(values: RowNumbers) -> Tensor:
            found = torch.as_tensor(values, dtype=self.simulation.dtype)[:, None]
            return found.to(self.simulation.placed.device)

        taken: Any = int(part.steps[0]) if part.equal_steps else column(part.steps)
        done = ClientWork(steps=taken, gradient=self.gradient)
        message, kept = leave(self.rule, self.local, self.sent, self.kept, self.hp, done)
        if problem.wire != FLOAT32:

            def quantize(differences: Tensor, t: int) -> Tensor:
                keys = keys_of(problem.federation.seed, members, part.draws.number, t)
                values = differences.double().cpu().numpy()
                found = np.stack([rounded(problem.wire, lane, keys) for lane in values])
                return torch.as_tensor(found).to(differences)

            message, kept = compress(self.rule, message, self.sent, kept, quantize)
        if self.memory is not None:
            self.memory.store(np.arange(len(self.lanes)), members, kept)
        if part.staleness.any():
            current = tuple(each.to(self.simulation.dtype)[:, None] for each in self.sequences)
            scale = staleness_scale(column(part.staleness))
            message = arrive(self.rule, message, self.sent, current, scale)
            self.sent = current
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
        self.history = {v: tuple(x[left] for x in each) for v, each in self.history.items()}
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


def _largest_update(problem: Problem) -> Update:
    """Return the step of the server with the most messages; without a timeline, the first one."""
    first = problem.federation.update(next(iter(problem.schedule)))
    if problem.timeline is None:
        return first
    largest = max(problem.updates(), key=lambda update: len(update.members))
    return largest if len(largest.members) else first


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
