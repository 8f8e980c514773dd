# SPDX-License-Identifier: Apache-2.0
"""Flower's hooks of a round: configure, check replies, take the mean, serve.

`fedac.flower._server.round` calls them round after round. A subclass may override any of them, and
a strategy of Flower's may wrap them.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedac.algorithms import RoundInfo, State
from fedac.algorithms.algorithm import serve_mean
from fedac.errors import InputError
from fedac.federation.mode import started
from fedac.federation.round import mean_by_key, serve, squared_moves
from fedac.flower._arrays import (
    ModelArrays,
    NamedArrays,
    buffers_of,
    flatten,
    from_record,
    read_reply,
    sent_back,
    to_record,
    travel_keys,
    unflatten,
    with_prefix,
)
from fedac.flower._server.aggregate import distance, not_finite
from fedac.flower._server.known_clients import KnownClients, sample_size
from fedac.flower._server.options import MetricsFn, Options
from fedac.flower._server.privacy import OWN_LOOP, Wrappers
from fedac.flower._server.replies import Reader, Reply, check_replies
from fedac.flower._server.result import Dropped, FederationResult
from fedac.flower._server.waiting import CLOCK_SKEW, wait_for_nodes
from fedac.flower._task import ARRAYS, CONFIG, ROUND, TASK, WEIGHT, Task

# A child of Flower's logger: `flwr run --stream` and `flwr log` show its lines.
log = logging.getLogger("flwr.fedac")


@dataclass
class TrainingRound:
    """The training round in progress."""

    number: int  # from 1 on
    sent: ArrayRecord
    before: NamedArrays  # the sequences in `sent`
    # The server state, and the memories and their total weight, when the round began.
    state: tuple[NamedArrays, dict[str, tuple[int, float]], float]
    quorum: int
    attempts: int = 0
    wanted: int | None = None  # good replies that end an attempt before its deadline
    connected: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    good: dict[int, Reply] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)  # memory version sent to each node
    reset: bool = False  # all control variates must begin again
    finished: bool = False


class ServerUpdate(NamedTuple):
    """The server's state after some replies, their weights, and a problem if there is one."""

    after: NamedArrays
    server: NamedArrays
    weights: Mapping[int, float]
    total: float
    problem: str | None


class RoundHooks(Options, Strategy):
    """The hooks of a `LocalStrategy`, and the state of its run; see there."""

    training: TrainingRound | None = None
    last_round: int | None = None
    result = cached_property(lambda self: FederationResult())
    history = property(lambda self: self.result.history)
    clients = cached_property(lambda self: KnownClients())
    server = cached_property[NamedArrays](lambda self: {})
    initial_arrays = cached_property(lambda self: ArrayRecord())
    busy: Container[int] = ()  # nodes that still work for an earlier round
    _running = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a round; `arrays` holds all sequences.

        If called again with the same arrays, it asks nodes without a good reply so far.
        """
        if not self._running:
            raise InputError(OWN_LOOP)
        # Wait for all nodes before the first round, later only for a quorum.
        wanted = self.min_nodes if self.training is None else self.training.quorum
        training = self.begin_round(server_round, arrays)
        connected = wait_for_nodes(grid, wanted, self.deadline.seconds)
        if len(connected) < wanted:
            log.warning("round %d: %d of %d nodes connected", server_round, len(connected), wanted)
        # Ask for client ids if they are sampled, or if a memory may have to be found.
        free = [node for node in connected if node not in self.busy]
        clients, sampled, unknown = self.clients, self.sample is not None, free
        if not sampled and not self.asks_examples:
            used = clients.used if self.algorithm.memory else {}
            unknown = [node for node in free if used and clients.key(node) not in used]
        entries, seconds = {**config, ROUND: server_round}, self.deadline.seconds
        clients.ask(grid, unknown, seconds, entries, sampled=sampled, examples=self.asks_examples)
        # The sample depends only on the seed, the round, the attempt and the ids of the connected
        # clients. If all are connected, the first attempt samples as the simulator does.
        training.attempts += 1
        training.connected.update(connected)
        wanted = sample_size(self.sample, len(connected)) - len(training.good)
        if self.mode.kind == "deadline":
            training.wanted, wanted = wanted, started(wanted, self.oversample)
        if training.attempts == 1:
            nodes = clients.sample(free, wanted, self.seed, server_round - 1)
        else:  # nodes that were not asked yet go first
            key = f"{self.seed}/{server_round}/{training.attempts}"
            nodes = clients.sample_by_key(set(free) - training.asked, wanted, key)
            failed = set(free) & training.asked - set(training.good)
            nodes += clients.sample_by_key(failed, wanted - len(nodes), key)
        training.asked.update(nodes)
        return self.messages(MessageType.TRAIN, server_round, arrays, config, sorted(nodes))

    @property
    def asks_examples(self) -> bool:
        """Whether the server must know the examples of clients that have not replied yet."""
        pooled = self.algorithm.changes or self.algorithm.pooled  # over all clients, by weight
        return bool(pooled) and self.weighting == "examples"

    def begin_round(self, server_round: int, arrays: ArrayRecord) -> TrainingRound:
        """Return the round in progress, or begin a new one if its number or arrays differ."""
        now = self.training
        if now is None or now.finished or (now.number, now.sent) != (server_round, arrays):
            state = (self.server, self.clients.used, self.clients.total)
            quorum = self.quorum_of(self.min_nodes)
            now = TrainingRound(server_round, arrays, from_record(arrays), state, quorum)
            self.training = now
        return now

    def messages(
        self,
        kind: str,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        nodes: list[int],
        *,
        draws: int | None = None,
        makes: int | None = None,
    ) -> list[Message]:
        """Return one message per node, with the task of a round.

        Clients draw the random numbers of round `draws`, from 0, and number their new memories with
        `makes`. Default: those of the round.
        """
        task = Task(
            algorithm=self.algorithm,
            hp=self.hyperparameters(server_round),
            round=server_round,
            first_step=(server_round - 1 if draws is None else draws) * self.local_steps,
            local_steps=self.local_steps,
            makes=server_round if makes is None else makes,
            seed=self.seed,
            wire=self.wire,
            wire_seed=self.wire_seed,
        )
        ttl = self.deadline.seconds + CLOCK_SKEW
        text, messages = task.to_json(), []
        for node in nodes:
            if self.algorithm.memory and kind == MessageType.TRAIN:
                version = self.clients.memory_version(node)
                if self.training is not None:
                    self.training.versions[node] = version.round
                if self.weighting != "examples":
                    version = replace(version, weight=0.0)
                text = replace(task, memory_version=version).to_json()
            # As in Flower, the user's entries come with the number of the round.
            record = ConfigRecord({**config, ROUND: server_round, TASK: text})
            content = RecordDict({ARRAYS: arrays, CONFIG: record})
            messages.append(Message(content, node, kind, group_id=str(server_round), ttl=ttl))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the aggregate of the round's good replies so far, or None below the quorum."""
        training = self.training
        if training is None or training.number != server_round:
            raise InputError(f"round {server_round}: aggregate_train needs configure_train first")
        # A hook may call this twice: the server moves once.
        self.server, self.clients.used, self.clients.total = training.state
        found, bad = self._check_round(training, replies)
        training.good |= found
        self.drop(server_round, bad, during="training")
        return self.take_step(training)

    def take_step(self, training: TrainingRound) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the server's step with the good replies, without those that break it.

        Returns the aggregate and the metrics, or None below the quorum.
        """
        while len(training.good) >= training.quorum:
            good, step = training.good, self._step(training, training.good)
            if step.problem is None:
                return self._keep(training, step)
            # Drop the replies that break the server's step: alone, or else the one that moves most.
            culprits = [n for n in good if self._step(training, {n: good[n]}).problem is not None]
            if not culprits:
                moved = {node: distance(good[node].arrays, training.before) for node in good}
                culprits = [max(moved, key=moved.__getitem__)]
            nodes = [good.pop(culprit).node for culprit in culprits]
            reason = f"not finite after the server's step, which was undone: {step.problem}"
            self.drop(training.number, dict.fromkeys(nodes, reason), during="training")
        return None, None

    def _check_round(
        self, training: TrainingRound, replies: Iterable[Message]
    ) -> tuple[dict[int, Reply], dict[int, str]]:
        """Check the replies of a round in progress."""
        return self.check(
            replies, training.number, training.before, training.versions, training.good
        )

    def check(
        self,
        replies: Iterable[Message],
        server_round: int,
        sent: NamedArrays,
        versions: Mapping[int, int],
        others: Iterable[int],
    ) -> tuple[dict[int, Reply], dict[int, str]]:
        """Return good replies, and the reasons why others are bad; learn their clients' ids.

        `versions` are the memories that the server named, by node, and `others` the nodes whose
        clients must be different ones.
        """
        read: Reader = partial(read_reply, algorithm=self.algorithm, wire=self.wire)
        good, bad = check_replies(
            replies,
            self.clients.learn,
            server_round=server_round,
            expected=sent,
            read=read,
            remembered=self.adds_up,
            counted="steps" in self.algorithm.asks,
        )
        if self.adds_up:  # two nodes with one client id would have one memory between them
            owners = {self.clients.key(node): node for node in others}
            for node in list(good):
                owner = owners.setdefault(self.clients.key(node), node)
                if owner != node:
                    del good[node]
                    bad[node] = (
                        f"node {owner} already is partition {self.clients.key(node)}; with control "
                        "variates, every node needs its own partition-id"
                    )
        for node, reply in good.items():
            # The server may have named no memory because it did not know the client yet.
            known = self.clients.memory_version(node).round if self.algorithm.memory else 0
            if versions.get(node, known) != known:
                good[node] = replace(reply, memory_lost=True)
        return good, bad

    def without_bad(self, replies: list[Message], wrappers: Wrappers) -> list[Message]:
        """Drop the training replies that wrappers cannot use; return the rest."""
        if self.training is None:
            return replies
        good, bad = self._check_round(self.training, replies)
        for node, reply in good.items():
            problem = wrappers.problem(reply, self.training.before)
            if problem is not None:
                bad[node] = problem
        self.drop(self.training.number, bad, during="training")
        return [reply for reply in replies if reply.metadata.src_node_id not in bad]

    def _step(self, training: TrainingRound, replies: Mapping[int, Reply]) -> ServerUpdate:
        """Take the mean of some replies and the server's step, without keeping the result."""
        by_examples, before = self.weighting == "examples", training.before
        weights, total = self.clients.weigh(replies, training.connected, by_examples=by_examples)
        mean = self.aggregation(
            [replies[node].arrays for node in weights],
            sent_back(self.algorithm, before),
            [*weights.values()] if by_examples else None,
        )
        algorithm, server = self.algorithm, self.server
        if algorithm.serve is serve_mean:
            return ServerUpdate(mean, server, weights, total, not_finite(mean, server))
        names, model = algorithm.sequences, with_prefix(algorithm.sequences[0], before)
        # A diverging run may overflow here; its clients' replies will not be finite.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            message = flatten(algorithm.sent, mean, model)
            sequences = flatten(names, before, model)
            this = RoundInfo(number=training.number - 1, share=sum(weights.values()) / total)
            this = self._with_asked(this, message, sequences, model, replies, weights)
            sequences, state = serve(
                algorithm,
                message,
                sequences,
                flatten(algorithm.server, server, model),
                self.hyperparameters(training.number),
                this,
                weight_ratio=self.clients.total / total if self.clients.total else 1.0,
            )
            after = buffers_of(mean) | unflatten(names, sequences, model)
        server = unflatten(algorithm.server, state, model, np.float64)
        return ServerUpdate(after, server, weights, total, not_finite(after, server))

    def _with_asked(
        self,
        this: RoundInfo,
        mean: State,
        sequences: State,
        model: NamedArrays,
        replies: Mapping[int, Reply],
        weights: Mapping[int, float],
    ) -> RoundInfo:
        """Return `this` with what the algorithm asks for: see `Algorithm.asks`."""
        algorithm, total = self.algorithm, sum(weights.values())
        if "steps" in algorithm.asks:
            steps = sum(weight * replies[node].steps for node, weight in weights.items())
            this = replace(this, steps=steps / total)
        if "moves" in algorithm.asks:
            spread = 0.0
            for node, weight in weights.items():
                message = flatten(algorithm.sent, replies[node].arrays, model)
                spread += weight / total * float(squared_moves(algorithm, message, sequences))
            moved = float(squared_moves(algorithm, mean, sequences))
            this = replace(this, spread=spread, moved=moved)
        return this

    def _keep(
        self, training: TrainingRound, step: ServerUpdate
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Keep the server's step and the memory versions of its clients."""
        training.finished, good = True, training.good
        nodes = {reply.node for reply in good.values()}
        ids = Counter(self.clients.ids[node] for node in nodes if node in self.clients.ids)
        shared = [f"{client}: {count} nodes" for client, count in ids.items() if count > 1]
        if training.number == 1 and shared:
            log.warning(
                "several nodes have the same partition-id, so the server treats them as one client "
                "and they draw the same rows: %s. Give every node its own partition-id",
                "; ".join(shared),
            )
        lost = [reply.node for _, reply in sorted(good.items()) if reply.memory_lost]
        if lost:
            log.warning(
                "round %d: %d of %d clients had lost their memory and started again: %s",
                training.number, len(lost), len(good),
                ", ".join(map(self.clients.name, lost[:5])) + ", ..." * (len(lost) > 5),
            )  # fmt: skip
        after, self.server = step.after, step.server
        if (lost or training.reset) and self.adds_up:
            # c still includes the c_m that were lost, so reset all c_m, and c, to 0. The same goes
            # for FedDyn's z.
            log.warning("round %d: all clients start their control variates again", training.number)
            pooled = (*self.algorithm.changes, *(name for name, _ in self.algorithm.pooled))
            after, self.server = (
                {
                    key: 0 * array if key.partition("/")[0] in pooled else array
                    for key, array in arrays.items()
                }
                for arrays in (after, self.server)
            )
            self.clients.used, self.clients.total = {}, 0.0
        elif self.mode.is_asynchronous:  # clients were told of their memories already
            self.clients.total = step.total
        else:
            self.clients.use(training.number, step.weights, step.total)
        metrics = self._metrics([good[node] for node in sorted(good)], self.train_metrics_aggr_fn)
        return to_record(after), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of an evaluation of the output; none if the round has none."""
        every = self.evaluate_every
        if not every or (server_round % every and server_round != self.last_round):
            return []
        output = ArrayRecord(dict(self.output(server_round, from_record(arrays))))
        connected = [node for node in grid.get_node_ids() if node not in self.busy]
        if self.evaluate_sample is None:
            nodes = list(self.training.good if self.training else {}) or connected
        else:
            count = sample_size(self.evaluate_sample, len(connected))
            key = f"{self.seed}/{server_round}/evaluation"
            nodes = self.clients.sample_by_key(connected, count, key)
        return self.messages(MessageType.EVALUATE, server_round, output, config, sorted(nodes))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of the clients' metrics, weighted as in training."""
        good, bad = check_replies(replies, self.clients.learn, server_round=server_round)
        self.drop(server_round, bad, during="evaluation")
        return self._metrics([*good.values()], self.evaluate_metrics_aggr_fn) if good else None

    def output(self, server_round: int, arrays: NamedArrays) -> ModelArrays:
        """Return the algorithm's output after a round, with the names of the initial arrays."""
        algorithm, initial = self.algorithm, self.initial_arrays
        keys = travel_keys(initial)
        model = with_prefix(algorithm.sequences[0], arrays)
        state = flatten(algorithm.state_names, {**arrays, **self.server}, model)
        w = algorithm.output(state, self.hp, server_round * self.local_steps)
        output = with_prefix("w", unflatten(("w",), (w,), model)) | buffers_of(arrays)
        named = {n: initial[n].numpy() if key is None else output[key] for n, key in keys.items()}
        return ModelArrays(named, keys)

    def drop(self, server_round: int, reasons: Mapping[int, str], *, during: str) -> None:
        """Log the nodes whose replies are not used and why, and list them in the history."""
        for node, reason in reasons.items():
            name = self.clients.name(node)
            log.warning("round %d: %s: dropped %s: %s", server_round, during, name, reason)
            drop = Dropped(round=server_round, node=node, reason=reason, during=during)
            self.history.dropped.append(drop)

    def _metrics(self, replies: list[Reply], aggregate: MetricsFn | None) -> MetricRecord:
        """Return the mean of each metric over the clients with a finite value; NaN without any.

        An AUC, for example, is NaN for a client with a single class.
        """
        if aggregate is not None:
            metrics = aggregate([reply.records for reply in replies], WEIGHT)
            if not isinstance(metrics, MetricRecord):
                kind = type(metrics).__name__
                raise InputError(f"a metrics_aggr_fn must return a MetricRecord, got {kind}")
            return metrics
        finite = [
            {name: value for name, value in reply.metrics.items() if math.isfinite(value)}
            for reply in replies
        ]
        # Clients report their own weights: they count only if the user wants them to.
        by_examples = self.weighting == "examples"
        means = mean_by_key(finite, [reply.weight if by_examples else 1.0 for reply in replies])
        names = dict.fromkeys(name for reply in replies for name in reply.metrics)
        return MetricRecord({name: float(means.get(name, math.nan)) for name in names})
