"""One run of a federation: the rounds, driven through the strategy's hooks.

Flower's own loop has no retries, no quorum, no checkpoints and no history; this one has, and calls
the same hooks, so that a subclass may override any of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedac.checkpoints import describe_rule
from fedac.errors import InputError
from fedac.files import require_writable
from fedac.flower.checkpoint import Checkpoint
from fedac.flower.exchange import send_and_wait
from fedac.flower.history import History, Round
from fedac.flower.messages import count_bytes, from_record, to_record
from fedac.flower.progress import TrainingRound
from fedac.flower.result import FederationResult, QuorumError
from fedac.flower.sequences import initial_sequences
from fedac.require import require_count, require_positive

if TYPE_CHECKING:
    from fedac.flower.strategy import LocalStrategy

log = logging.getLogger("flwr.fedac")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FederationRun:
    """One call of `LocalStrategy.start`; see there for the parameters."""

    def __init__(
        self,
        strategy: LocalStrategy,
        grid: Grid,
        *,
        num_rounds: int,
        timeout: float | None,
        train_config: Mapping[str, Any] | None,
        evaluate_config: Mapping[str, Any] | None,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        self.strategy = strategy
        self.grid = grid
        self.num_rounds = require_count("num_rounds", num_rounds, least=0)
        self.deadline = strategy.deadline
        if timeout is not None:
            self.deadline = min(self.deadline, require_positive("timeout", timeout))
        self.train_config = ConfigRecord(dict(train_config or {}))
        self.evaluate_config = ConfigRecord(dict(evaluate_config or {}))
        self.evaluate_fn = evaluate_fn
        self.result = FederationResult()

    def start(self, initial_arrays: ArrayRecord) -> FederationResult:
        """Make the rounds that are left and return the result."""
        strategy = self.strategy
        arrays, finished = self._begin(initial_arrays)
        if finished > self.num_rounds:
            log.warning("%d rounds were requested, but %d are finished", self.num_rounds, finished)
        if finished == 0 and self.evaluate_fn is not None:
            metrics = self._evaluate_on_server(0, arrays)
            strategy.history.rounds.append(Round(round=0, metrics=metrics))
        try:
            while finished < self.num_rounds:
                arrays = self._round(finished + 1, arrays)
                finished += 1
        except QuorumError as error:
            error.result = self._complete(finished, arrays)
            raise
        return self._complete(finished, arrays)

    def _begin(self, initial_arrays: ArrayRecord) -> tuple[ArrayRecord, int]:
        """Return the sequences to start from, and how many rounds are finished."""
        strategy, path = self.strategy, self.strategy.checkpoint
        strategy.history, strategy.training = History(), None
        strategy.last_round = self.num_rounds
        arrays, finished, source = initial_sequences(strategy.algorithm, initial_arrays), 0, None
        if strategy.resume_from is not None:
            source = strategy.resume_from
            found = Checkpoint.load(source)
            try:
                found.require_same(strategy.settings(), strategy.algorithm, strategy.hp, arrays)
            except InputError as error:
                raise InputError(f"cannot use '{source}': {error}") from error
            strategy.history, finished, arrays = found.history, found.round, dict(found.arrays)
            log.info("resuming after round %d of '%s'", finished, source)
        if path is not None:
            require_writable(path)
            if path.exists() and not (source and source.resolve() == path.resolve()):
                log.warning("overwriting '%s'", path)
        return to_record(arrays), finished

    def _round(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Train, evaluate, save; return the new sequences."""
        began = time.monotonic()
        row = Round(round=server_round)
        arrays = self._train(row, arrays)
        try:
            self._evaluate(row, arrays)
            row.metrics |= self._evaluate_on_server(server_round, arrays)
        finally:  # keep what was trained even if an evaluation fails
            row.seconds = time.monotonic() - began
            self._save(row, arrays)
        log.info("%s", row.describe(self.num_rounds))
        return arrays

    def _train(self, row: Round, arrays: ArrayRecord) -> ArrayRecord:
        """Ask until there is a quorum; return the aggregate and count in the row."""
        strategy, unanswered = self.strategy, dict[str, int]()
        for attempt in range(1, strategy.retries + 2):
            row.attempts = attempt
            messages = list(
                strategy.configure_train(row.round, arrays, self.train_config, self.grid)
            )
            training = self._training_round(row.round, arrays)
            for message in [m for m, node in unanswered.items() if node in training.good]:
                del unanswered[message]
            replies, lost = self._exchange(row, messages, "training", unanswered)
            row.lost += lost
            after, metrics = strategy.aggregate_train(row.round, replies)
            row.good, row.bad = len(training.good), training.bad
            if after is not None:
                if metrics is not None:
                    self.result.train_metrics_clientapp[row.round] = metrics
                    row.metrics |= _numbers(metrics, prefix="train/")
                return after
            log.warning(
                "round %d: %d good replies, the quorum is %d (attempt %d of %d)",
                row.round, row.good, strategy.quorum, row.attempts, strategy.retries + 1,
            )  # fmt: skip
        reasons = {n: why for n, why in training.reasons.items() if n not in training.good}
        raise QuorumError(row.round, row.good, strategy.quorum, row.attempts, reasons)

    def _training_round(self, number: int, arrays: ArrayRecord) -> TrainingRound:
        """Return the round that configure_train began; a subclass may have replaced that hook."""
        current = self.strategy.training
        if current is None or current.number != number:
            current = self.strategy.begin_round(number, arrays)
        return current

    def _evaluate(self, row: Round, arrays: ArrayRecord) -> None:
        """Evaluate the output on the clients, if the strategy wants to."""
        strategy = self.strategy
        messages = list(
            strategy.configure_evaluate(row.round, arrays, self.evaluate_config, self.grid)
        )
        if not messages:
            return
        replies, _ = self._exchange(row, messages, "evaluation", {})
        metrics = strategy.aggregate_evaluate(row.round, replies)
        if metrics is None:
            log.warning("round %d: no client could evaluate", row.round)
            return
        self.result.evaluate_metrics_clientapp[row.round] = metrics
        row.metrics |= _numbers(metrics)

    def _exchange(
        self, row: Round, messages: list[Message], during: str, unanswered: dict[str, int]
    ) -> tuple[list[Message], int]:
        """Send messages; return the replies that came in time, and how many nodes are silent."""
        replies = send_and_wait(self.grid, messages, self.deadline, unanswered)
        row.bytes_down += count_bytes(messages)
        row.bytes_up += count_bytes(replies.values())
        silent = sorted({message.metadata.dst_node_id for message in messages} - set(replies))
        self.strategy.drop(row.round, dict.fromkeys(silent, "no reply in time"), during=during)
        return list(replies.values()), len(silent)

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
        return _numbers(metrics, prefix="server/")

    def _save(self, row: Round, arrays: ArrayRecord) -> None:
        """Append a finished round to the history, and write the checkpoint if there is one."""
        strategy = self.strategy
        strategy.history.rounds.append(row)
        if strategy.checkpoint is None:
            return
        rule = describe_rule(strategy.algorithm, strategy.hp)
        content = Checkpoint(
            round=row.round,
            arrays=from_record(arrays),
            settings=rule.pop("hyperparameters") | rule | strategy.settings(),
            history=strategy.history,
        )
        try:
            content.save(strategy.checkpoint)
        except OSError as error:  # a full disk should not end the run
            log.error("round %d: %s; continuing", row.round, error)

    def _complete(self, finished: int, arrays: ArrayRecord) -> FederationResult:
        self.result.sequences = from_record(arrays)
        self.result.arrays = to_record(self.strategy.output(finished, self.result.sequences))
        self.result.history = self.strategy.history
        return self.result


def _numbers(metrics: MetricRecord, prefix: str = "") -> dict[str, float]:
    return {f"{prefix}{k}": float(v) for k, v in metrics.items() if isinstance(v, int | float)}
