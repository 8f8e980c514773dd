# SPDX-License-Identifier: Apache-2.0
"""The rounds of a federation: configure, wait, check and aggregate, evaluate, save.

Flower's own loop has no retries, quorum, checkpoints or history. This one has, and calls the same
hooks (`fedac.flower._server.hooks`), so that a subclass or a wrapper may override any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedac.errors import InputError
from fedac.federation.checkpoint import describe_rule
from fedac.flower._arrays import count_bytes, from_record, initial_state, to_record
from fedac.flower._server.checkpoint import Checkpoint
from fedac.flower._server.hooks import RoundHooks
from fedac.flower._server.known_clients import KnownClients
from fedac.flower._server.options import require_callables
from fedac.flower._server.privacy import Wrappers
from fedac.flower._server.result import SERVER, TRAIN, FederationResult, QuorumError, RoundSummary
from fedac.flower._server.waiting import clock_of, poll, pull_ready, send_and_wait
from fedac.paths import require_writable
from fedac.validate import require_count, require_positive

log = logging.getLogger("flwr.fedac")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
OnRound = Callable[[RoundSummary], object]


@dataclass
class FederationRun:
    """One call of `LocalStrategy.start`; see there for the fields."""

    strategy: RoundHooks
    grid: Grid
    num_rounds: int
    timeout: float | None
    train_config: ConfigRecord | None
    evaluate_config: ConfigRecord | None
    evaluate_fn: EvaluateFn | None
    on_round: OnRound | None
    wrapper: Strategy | None

    def __post_init__(self) -> None:
        if not isinstance(self.grid, Grid):
            raise InputError(f"grid must be a Grid of Flower, got {type(self.grid).__name__}")
        self.num_rounds = require_count("num_rounds", self.num_rounds, least=0)
        if self.timeout is not None:
            require_positive("timeout", self.timeout)
        for name in ("train_config", "evaluate_config"):
            config = getattr(self, name)
            if config is not None and not isinstance(config, ConfigRecord):
                raise InputError(f"{name} must be a ConfigRecord, got {type(config).__name__}")
        require_callables(evaluate_fn=self.evaluate_fn, on_round=self.on_round)
        self.hooks: Strategy = self.wrapper or self.strategy
        self.wrappers = Wrappers(self.hooks, self.strategy)
        self.result = FederationResult()
        # The sequences after the last finished round, and its number.
        self._arrays, self._finished = ArrayRecord(), 0
        # Of mode="deadline(30s)": messages of earlier rounds whose clients still work, and nodes.
        self._late: dict[str, int] = {}
        self.clock = clock_of(self.grid)

    def start(self, initial_arrays: ArrayRecord) -> FederationResult:
        """Make the remaining rounds and return the result."""
        self._begin(initial_arrays)
        if self._finished > self.num_rounds:
            log.warning("num_rounds=%d, but %d are finished", self.num_rounds, self._finished)
        if self._finished == 0 and self.evaluate_fn is not None:
            row = RoundSummary(round=0)
            self._evaluate_on_server(row, self._arrays)
            self.result.history.rounds.append(row)
            if self.on_round is not None:
                self.on_round(row)
        try:
            while self._finished < self.num_rounds:
                self._round(self._finished + 1)
        except QuorumError as error:
            error.result = self.result
            raise
        finally:  # however a run ends, it keeps its rounds
            result, strategy = self.result, self.strategy
            result.sequences, result.server = from_record(self._arrays), strategy.server
            result.arrays = strategy.output(self._finished, result.sequences)
        return self.result

    def _begin(self, initial_arrays: ArrayRecord) -> None:
        """Set the state of the strategy, from the checkpoint if there is one."""
        strategy, path = self.strategy, self.strategy.checkpoint
        resume = strategy.resume and path is not None and path.exists()
        source = path if resume else strategy.resume_from
        strategy.training, strategy.last_round = None, self.num_rounds
        strategy.clients, strategy.initial_arrays = KnownClients(), initial_arrays
        strategy.busy = ()
        arrays, strategy.server = initial_state(strategy.algorithm, initial_arrays)
        if source is not None:
            found = Checkpoint.load(source)
            settings = strategy.settings() | {"wrapper": self.wrappers.names}
            algorithm, hp, server = strategy.algorithm, strategy.hp, strategy.server
            try:
                found.require_same(settings, algorithm, hp, arrays, server)
            except InputError as error:
                raise InputError(f"cannot use '{source}': {error}") from error
            arrays, strategy.server = dict(found.arrays), found.server
            strategy.clients = KnownClients.from_json(found.clients)
            self.result.history, self._finished = found.history, found.round
            self.result.restore_metrics()
            self.wrappers.restore(found.norms)
            self._restore(found)
            log.info("resuming after round %d of '%s'", found.round, source)
        self._arrays = to_record(arrays)
        if path is not None:
            require_writable(path)
            if path.exists() and not (source and source.resolve() == path.resolve()):
                log.warning("overwriting '%s'", path)

    def _restore(self, found: Checkpoint) -> None:
        """Restore what other modes keep in a checkpoint."""

    def _round(self, server_round: int) -> None:
        """Train, evaluate, save."""
        began = self.clock.monotonic()
        row = RoundSummary(round=server_round)
        arrays = self._train(row)
        try:
            self._evaluate(row, arrays)
            self._evaluate_on_server(row, arrays)
        finally:  # keep what was trained even if an evaluation fails
            row.seconds = self.clock.monotonic() - began
            self._save(row, arrays)
        log.info(
            "round %d/%d: %d good, %d bad, %d lost, %.2f s%s",
            server_round, self.num_rounds, row.good, row.bad, row.lost, row.seconds,
            "".join(f", {name} {value:.6g}" for name, value in row.metrics.items()),
        )  # fmt: skip
        if self.on_round is not None:
            self.on_round(row)

    def _train(self, row: RoundSummary) -> ArrayRecord:
        """Ask nodes until there is a quorum; return the aggregate, and count in the row."""
        strategy, number, arrays = self.strategy, row.round, self._arrays
        unanswered: dict[str, int] = {}
        for attempt in range(1, strategy.retries + 2):
            row.attempts = attempt
            if strategy.mode.kind == "deadline":
                self._find_busy(unanswered)
            # Configure.
            config = self.train_config or ConfigRecord()
            messages = list(self.hooks.configure_train(number, arrays, config, self.grid))
            training = strategy.training
            if training is None or training.number != number:  # a subclass replaced the hook
                training = strategy.begin_round(number, arrays)
            if attempt == 1:
                asked = len(messages) if training.wanted is None else training.wanted
                training.quorum = strategy.quorum_of(min(asked, len(messages)))
            # Wait. A late reply to an earlier attempt counts as well.
            good, quorum = training.good, training.quorum
            unanswered = {m: node for m, node in unanswered.items() if node not in good}
            replies, slowest = self._exchange(
                row, messages, "training", unanswered, enough=quorum - len(good),
                wanted=training.wanted,
            )  # fmt: skip
            # Check the replies, take their mean, serve.
            if self.hooks is not strategy:  # a wrapper may fail on a bad reply, or on none
                replies = strategy.without_bad(replies, self.wrappers)
            after, metrics = None, None
            if replies or self.hooks is strategy:
                after, metrics = self.hooks.aggregate_train(number, replies)
            drops = [
                drop
                for drop in self.result.history.dropped
                if (drop.round, drop.during) == (number, "training")
            ]
            row.good, row.bad = len(good), len(drops) - row.lost
            row.memory_lost = sum(reply.memory_lost for reply in good.values())
            if after is not None:
                strategy.deadline.saw(slowest)
                if strategy.mode.kind == "deadline":
                    self._find_busy({}, unanswered)
                if metrics is not None:
                    self.result.add_metrics(row, metrics, TRAIN)
                return after
            strategy.deadline.missed()
            log.warning(
                "round %d: %d good replies, the quorum is %d (attempt %d of %d)",
                number, row.good, quorum, attempt, strategy.retries + 1,
            )  # fmt: skip
        reasons = {drop.node: drop.reason for drop in drops if drop.node not in good}
        names = {node: strategy.clients.name(node) for node in reasons}
        raise QuorumError(row, quorum, reasons, names)

    def _find_busy(self, unanswered: dict[str, int], late: Mapping[str, int] | None = None) -> None:
        """Throw late replies away, and find the nodes that still work: they must not be asked.

        If all nodes do, wait for one. `unanswered` messages belong to the round in progress.
        """
        strategy, self._late = self.strategy, {**self._late, **(late or {})}

        def found() -> bool:
            for reply in pull_ready(self.grid, self._late) if self._late else ():
                self._late.pop(reply.metadata.reply_to_message_id, None)
            strategy.busy = {*self._late.values(), *unanswered.values()}
            return bool(unanswered) or any(n not in strategy.busy for n in self.grid.get_node_ids())

        poll(self.grid, found, strategy.deadline.seconds)

    def _evaluate(self, row: RoundSummary, arrays: ArrayRecord) -> None:
        """Evaluate the output on the clients, if the strategy wants to."""
        config = self.evaluate_config or ConfigRecord()
        messages = list(self.hooks.configure_evaluate(row.round, arrays, config, self.grid))
        if not messages:
            return
        enough = len(messages) // 2 + 1
        replies, _ = self._exchange(row, messages, "evaluation", {}, enough=enough)
        metrics = self.hooks.aggregate_evaluate(row.round, replies)
        if metrics is None:
            log.warning("round %d: no client could evaluate; see evaluate_every=0", row.round)
        else:
            self.result.add_metrics(row, metrics)

    def _exchange(
        self,
        row: RoundSummary,
        messages: list[Message],
        during: str,
        unanswered: dict[str, int],
        *,
        enough: int,
        wanted: int | None = None,
    ) -> tuple[list[Message], float]:
        """Send messages; return the replies in time, and the seconds until the last of them."""
        strategy = self.strategy
        bounded = during == "training" and strategy.mode.kind == "deadline"
        seconds = strategy.mode.number if bounded else strategy.deadline.seconds
        seconds = min(seconds, self.timeout or float("inf"))
        replies, slowest = send_and_wait(
            self.grid, messages, seconds, unanswered, grace=strategy.grace, enough=enough,
            wanted=wanted,
        )  # fmt: skip
        row.bytes_down += count_bytes(messages)
        row.bytes_up += count_bytes(replies.values())
        asked = {message.metadata.dst_node_id for message in messages}
        silent = sorted(asked - set(replies))
        full = wanted is not None and sum(not r.has_error() for r in replies.values()) >= wanted
        reason = f"not among the first {wanted} to reply" if full else "no reply in time"
        strategy.drop(row.round, dict.fromkeys(silent, reason), during=during)
        if during == "training":
            row.lost += len(silent)
        return list(replies.values()), slowest

    def _evaluate_on_server(self, row: RoundSummary, arrays: ArrayRecord) -> None:
        if self.evaluate_fn is None:
            return
        output = self.strategy.output(row.round, from_record(arrays))
        metrics = self.evaluate_fn(row.round, output)
        if isinstance(metrics, MetricRecord):
            self.result.add_metrics(row, metrics, SERVER)
        elif metrics is not None:
            kind = type(metrics).__name__
            raise InputError(f"evaluate_fn must return a MetricRecord or None, got {kind}")

    def _save(self, row: RoundSummary, arrays: ArrayRecord) -> None:
        """Append a finished round to the history, and write the checkpoint if there is one."""
        self.result.history.rounds.append(row)
        self._arrays, self._finished = arrays, row.round
        self._write_checkpoint()

    def _buffered(self) -> dict[str, Any]:
        """Return the fields of a checkpoint that only asynchronous rounds have."""
        return {}

    def _write_checkpoint(self) -> None:
        """Write the checkpoint, if there is one."""
        strategy, arrays = self.strategy, self._arrays
        if strategy.checkpoint is None:
            return
        rule = describe_rule(strategy.algorithm, strategy.hp)
        settings = rule.pop("hyperparameters") | rule | strategy.settings()
        checkpoint = Checkpoint(
            round=self._finished,
            arrays=from_record(arrays),
            settings=settings | {"wrapper": self.wrappers.names},
            history=self.result.history,
            server=strategy.server,
            clients=strategy.clients.to_json(),
            norms=self.wrappers.norms,
            **self._buffered(),
        )
        try:
            checkpoint.save(strategy.checkpoint)
        except OSError as error:  # a full disk should not end the run
            log.error("round %d: %s; continuing", self._finished, error)
