"""The training round in progress: who was asked, and who answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedac.errors import InputError
from fedac.federation.checkpoint import describe_rule
from fedac.flower._arrays import (
    ModelArrays,
    NamedArrays,
    count_bytes,
    from_record,
    initial_sequences,
    layout_of,
    to_record,
)
from fedac.flower._client.labels import Labels
from fedac.flower._server.checkpoint import Checkpoint
from fedac.flower._server.nodes import Roster, count_of
from fedac.flower._server.privacy import Wrappers
from fedac.flower._server.replies import Reply
from fedac.flower._server.result import SERVER, TRAIN, FederationResult, History, QuorumError, Round
from fedac.flower._server.round import begin_server, rescale_changes
from fedac.flower._server.waiting import Grace, send_and_wait
from fedac.paths import require_writable

if TYPE_CHECKING:
    from fedac.flower._server.strategy import LocalStrategy


@dataclass
class TrainingRound:
    """The training round in progress.

    Attributes
    ----------
    number : int
        Its number, from 1 on.
    sent : ArrayRecord
        All sequences, as sent to the clients; `before` has them as arrays.
    kept, labels : dict, Labels
        What the server kept to itself, and knew of the clients' memories, when the round began.
    quorum : int
        How many good replies it needs.
    attempts : int
        How many times nodes were asked.
    connected, asked : set of int
        All nodes that were seen in the round, and those that were asked.
    good : dict
        The good replies so far, by node.
    told : dict
        The round of the memory that each node was told to use, by node.
    foreign : set of int
        Nodes whose client does not seem to know our messages.
    finished : bool
        Whether the good replies were aggregated.
    """

    number: int
    sent: ArrayRecord
    before: NamedArrays
    kept: NamedArrays = field(default_factory=dict)
    labels: Labels = field(default_factory=Labels)
    quorum: int = 1
    attempts: int = 0
    connected: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    good: dict[int, Reply] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    finished: bool = False

    def choose(
        self, connected: Sequence[int], roster: Roster, *, sample: float | None, seed: int
    ) -> list[int]:
        """Return the nodes to ask in the next attempt; those that were not asked yet go first.

        The choice depends only on the seed, the round, the attempt and the numbers of the clients
        that are connected. If all of them are, the first one is the simulator's.
        """
        self.attempts += 1
        self.connected.update(connected)
        wanted = count_of(sample, len(connected)) - len(self.good)
        if self.attempts == 1:
            nodes = roster.draw(connected, wanted, seed, self.number - 1)
        else:
            key = f"{seed}/{self.number}/{self.attempts}"
            new = set(connected) - self.asked
            nodes = roster.draw_others(new, wanted, key)
            failed = set(connected) & self.asked - set(self.good)
            nodes += roster.draw_others(failed, wanted - len(nodes), key)
        self.asked.update(nodes)
        return sorted(nodes)

    def weigh(
        self, replies: Mapping[int, Reply], roster: Roster, *, examples: bool
    ) -> tuple[dict[int, float], float]:
        """Return how some replies count, by node, and how all clients do together.

        All clients are those of the replies, those whose replies were used before, and those that
        are connected. Where `examples` count, one that has not told them counts from its first
        reply on: until then it has c_m = 0, so c is a mean of c_m all the same.
        """
        labels = self.labels
        weights = {n: replies[n].weight if examples else 1.0 for n in sorted(replies)}
        members = {labels.name(node, replies[node].client) for node in replies}
        idle = {labels.name(node, roster.client(node)): node for node in self.connected}
        new = [node for name, node in idle.items() if name not in members | labels.used.keys()]
        others = [roster.examples.get(node, 0.0) if examples else 1.0 for node in new]
        return weights, sum(weights.values()) + labels.weight_without(members) + sum(others)

    @property
    def question(self) -> str:
        """What to ask if no client seems to know our messages, else nothing."""
        if self.good or not self.foreign:
            return ""
        return (
            "is the client made by client_app, or does it train in local_training and return "
            f"local.reply(...)? It was sent the arrays {', '.join(self.before)}"
        )


# --- One run of a federation: the rounds, driven through the strategy's hooks.
#
# Flower's own loop has no retries, no quorum, no checkpoints and no history; this one has, and
# calls
# the same hooks, so that a subclass or a wrapper may override any of them.

log = logging.getLogger("flwr.fedac")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
OnRound = Callable[[Round], object]


@dataclass
class FederationRun:
    """One call of `LocalStrategy.start`; see there for the fields.

    `hooks` is the strategy itself, or the outermost of its `wrappers`.
    """

    strategy: LocalStrategy
    hooks: Strategy
    wrappers: Wrappers
    grid: Grid
    num_rounds: int
    timeout: float | None
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    on_round: OnRound | None
    result: FederationResult = field(default_factory=FederationResult)
    # The sequences after the last finished round, and its number.
    _arrays: ArrayRecord = field(default_factory=ArrayRecord)
    _finished: int = 0

    def start(self, initial_arrays: ArrayRecord) -> FederationResult:
        """Make the rounds that are left and return the result."""
        arrays, finished = self._begin(initial_arrays)
        self._arrays, self._finished = arrays, finished
        if finished > self.num_rounds:
            log.warning("%d rounds were requested, but %d are finished", self.num_rounds, finished)
        if finished == 0 and self.evaluate_fn is not None:
            metrics = self._evaluate_on_server(0, arrays)
            row = Round(round=0, metrics=metrics)
            self.strategy.history.rounds.append(row)
            self._tell(row)
        try:
            while self._finished < self.num_rounds:
                self._round(self._finished + 1)
        except QuorumError as error:
            error.result = self.result
            raise
        finally:  # whatever ends a run, it keeps its rounds
            self._complete()
        return self.result

    def _begin(self, initial_arrays: ArrayRecord) -> tuple[ArrayRecord, int]:
        """Return the sequences to start from, and how many rounds are finished."""
        strategy, path, source = self.strategy, self.strategy.checkpoint, self.strategy.source
        strategy.history, strategy.training, strategy.roster = History(), None, Roster()
        strategy.last_round = self.num_rounds
        strategy.layout = layout_of(initial_arrays)
        arrays, finished = initial_sequences(strategy.algorithm, initial_arrays), 0
        strategy.server = begin_server(strategy.algorithm, arrays)
        if source is not None:
            found = Checkpoint.load(source)
            try:
                settings = strategy.settings() | {"wrapper": self.wrappers.names}
                found.require_same(
                    settings, strategy.algorithm, strategy.hp, arrays, strategy.server
                )
            except InputError as error:
                raise InputError(f"cannot use '{source}': {error}") from error
            strategy.history, finished, arrays = found.history, found.round, dict(found.arrays)
            strategy.server = found.server
            labels = strategy.server.labels
            if strategy.algorithm.changes and labels.used and not labels.total:
                log.warning(
                    "'%s' is of an earlier fedac, whose c may not be the mean of the clients': all "
                    "clients begin their control variates again",
                    source,
                )
                arrays = dict(rescale_changes(strategy.algorithm, arrays, 0.0))
                strategy.server.labels = labels.forget()
            self.wrappers.restore(found.norms)
            self.result.history = strategy.history
            self.result.restore_metrics()
            log.info("resuming after round %d of '%s'", finished, source)
        if path is not None:
            require_writable(path)
            if path.exists() and not (source and source.resolve() == path.resolve()):
                log.warning("overwriting '%s'", path)
        return to_record(arrays), finished

    def _round(self, server_round: int) -> None:
        """Train, evaluate, save."""
        began = time.monotonic()
        row = Round(round=server_round)
        arrays = self._train(row, self._arrays)
        try:
            self._evaluate(row, arrays)
            row.metrics |= self._evaluate_on_server(server_round, arrays)
        finally:  # keep what was trained even if an evaluation fails
            row.seconds = time.monotonic() - began
            self._save(row, arrays)
        log.info(
            "round %d/%d: %d good, %d bad, %d lost, %.2f s%s",
            server_round, self.num_rounds, row.good, row.bad, row.lost, row.seconds,
            "".join(f", {name} {value:.6g}" for name, value in row.metrics.items()),
        )  # fmt: skip
        self._tell(row)

    def _tell(self, row: Round) -> None:
        if self.on_round is not None:
            self.on_round(row)

    def _train(self, row: Round, arrays: ArrayRecord) -> ArrayRecord:
        """Ask until there is a quorum; return the aggregate and count in the row."""
        strategy, number, unanswered = self.strategy, row.round, dict[str, int]()
        for attempt in range(1, strategy.retries + 2):
            row.attempts = attempt
            messages = list(
                self.hooks.configure_train(number, arrays, self.train_config, self.grid)
            )
            training = strategy.training
            if training is None or training.number != number:  # a subclass replaced the hook
                training = strategy.begin_round(number, arrays)
            if attempt == 1:
                training.quorum = strategy.quorum_of(len(messages))
            good, quorum = training.good, training.quorum
            unanswered = {m: node for m, node in unanswered.items() if node not in good}
            enough = quorum - len(good)
            replies, slowest = self._exchange(row, messages, "training", unanswered, enough)
            if self.hooks is not strategy:  # a wrapper may fail on a bad one, or on none
                replies = strategy.without_bad(number, replies, self.wrappers)
            after, metrics = None, None
            if replies or self.hooks is strategy:
                after, metrics = self.hooks.aggregate_train(number, replies)
            drops = strategy.history.dropped
            drops = [drop for drop in drops if (drop.round, drop.during) == (number, "training")]
            row.good, row.bad = len(good), len(drops) - row.lost
            row.memory_lost = sum(reply.memory_lost for reply in good.values())
            if after is not None:
                strategy.deadline.saw(slowest)
                if metrics is not None:
                    self.result.train_metrics_clientapp[number] = metrics
                    row.metrics |= _numbers(metrics, prefix=TRAIN)
                return after
            strategy.deadline.missed()
            log.warning(
                "round %d: %d good replies, the quorum is %d (attempt %d of %d)",
                number, row.good, quorum, attempt, strategy.retries + 1,
            )  # fmt: skip
            question = training.question
            if question and attempt == 1:
                log.error("round %d: %s", number, question)
        reasons = {drop.node: drop.reason for drop in drops if drop.node not in good}
        names = {node: strategy.roster.name(node) for node in reasons}
        raise QuorumError(row, quorum, reasons, names, question=question)

    def _evaluate(self, row: Round, arrays: ArrayRecord) -> None:
        """Evaluate the output on the clients, if the strategy wants to."""
        config = self.evaluate_config
        messages = list(self.hooks.configure_evaluate(row.round, arrays, config, self.grid))
        if not messages:
            return
        replies, _ = self._exchange(row, messages, "evaluation", {}, len(messages) // 2 + 1)
        metrics = self.hooks.aggregate_evaluate(row.round, replies)
        if metrics is None:
            log.warning(
                "round %d: no client could evaluate; evaluate_every=0 turns evaluations off",
                row.round,
            )
            return
        self.result.evaluate_metrics_clientapp[row.round] = metrics
        row.metrics |= _numbers(metrics)

    def _exchange(
        self,
        row: Round,
        messages: list[Message],
        during: str,
        unanswered: dict[str, int],
        enough: int,
    ) -> tuple[list[Message], float]:
        """Send messages and drop the silent nodes.

        Return the replies that came in time, and after how many seconds the last one came.
        """
        strategy, grace = self.strategy, self.strategy.grace
        seconds = min(strategy.deadline.seconds, self.timeout or float("inf"))
        patience = None if grace is None else Grace(grace, enough)
        answers = send_and_wait(self.grid, messages, seconds, unanswered, patience)
        row.bytes_down += count_bytes(messages)
        row.bytes_up += count_bytes(answers.replies.values())
        asked = {message.metadata.dst_node_id for message in messages}
        silent = sorted(asked - set(answers.replies))
        strategy.drop(row.round, dict.fromkeys(silent, "no reply in time"), during=during)
        if during == "training":
            row.lost += len(silent)
        return list(answers.replies.values()), answers.seconds

    def _evaluate_on_server(self, server_round: int, arrays: ArrayRecord) -> dict[str, float]:
        if self.evaluate_fn is None:
            return {}
        output = self.strategy.output(server_round, from_record(arrays))
        metrics = self.evaluate_fn(server_round, to_record(output))
        if metrics is None:
            return {}
        if not isinstance(metrics, MetricRecord):
            raise InputError(
                f"evaluate_fn must return a MetricRecord or None, got {type(metrics).__name__}"
            )
        self.result.evaluate_metrics_serverapp[server_round] = metrics
        return _numbers(metrics, prefix=SERVER)

    def _save(self, row: Round, arrays: ArrayRecord) -> None:
        """Append a finished round to the history, and write the checkpoint if there is one."""
        strategy = self.strategy
        strategy.history.rounds.append(row)
        self._arrays, self._finished = arrays, row.round
        if strategy.checkpoint is None:
            return
        rule = describe_rule(strategy.algorithm, strategy.hp)
        content = Checkpoint(
            round=row.round,
            arrays=from_record(arrays),
            settings=rule.pop("hyperparameters")
            | rule
            | strategy.settings()
            | {"wrapper": self.wrappers.names},
            history=strategy.history,
            server=strategy.server,
            norms=self.wrappers.norms,
        )
        try:
            content.save(strategy.checkpoint)
        except OSError as error:  # a full disk should not end the run
            log.error("round %d: %s; continuing", row.round, error)

    def _complete(self) -> None:
        """Put what there is after the last finished round into the result."""
        result, strategy = self.result, self.strategy
        result.sequences, result.server = from_record(self._arrays), strategy.server.arrays
        output = strategy.output(self._finished, result.sequences)
        result.arrays = ModelArrays(output, strategy.layout)
        result.history = strategy.history


def _numbers(metrics: MetricRecord, prefix: str = "") -> dict[str, float]:
    return {f"{prefix}{k}": float(v) for k, v in metrics.items() if isinstance(v, int | float)}
