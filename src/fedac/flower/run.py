"""One run of a federation: the rounds, driven through the strategy's hooks.

Flower's own loop has no retries, no quorum, no checkpoints and no history; this one has, and calls
the same hooks, so that a subclass may override any of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedac.checkpoints import describe_rule
from fedac.errors import InputError
from fedac.files import require_writable
from fedac.flower.checkpoint import Checkpoint
from fedac.flower.exchange import send_and_wait
from fedac.flower.history import History, Round
from fedac.flower.messages import NamedArrays, count_bytes, from_record, to_record
from fedac.flower.sequences import initial_sequences
from fedac.flower.server import begin_server

if TYPE_CHECKING:
    from fedac.flower.strategy import LocalStrategy

log = logging.getLogger("flwr.fedac")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class FederationResult(Result):
    """Flower's result, with the history and every sequence.

    Attributes
    ----------
    arrays : ArrayRecord
        The output (w_ag of FedAc), with the names of the initial arrays.
    history : History
        The rounds as a table.
    sequences : dict
        All sequences after the last round, with keys such as ``w_ag/0``.
    server : dict
        What the algorithm keeps on the server, with keys such as ``w_ag_u/0``.
    """

    history: History = field(default_factory=History)
    sequences: NamedArrays = field(default_factory=dict)
    server: NamedArrays = field(default_factory=dict)


class QuorumError(RuntimeError):
    """Too few good replies, after all retries.

    Attributes
    ----------
    round, good, quorum : int
        The round that failed, how many replies were good, how many were needed.
    reasons : dict
        Why each other node's reply was not used, by node id.
    result : FederationResult
        The result of the earlier rounds; it also lists the replies that the failed round dropped.
    """

    def __init__(self, row: Round, quorum: int, reasons: Mapping[int, str]) -> None:
        details = [f"node {node}: {reason}" for node, reason in [*reasons.items()][:5]]
        if len(reasons) > 5:
            details.append(f"and {len(reasons) - 5} more")
        if not reasons:
            details = [
                f"Only {row.good} nodes were connected" if row.good else "No node was connected"
            ]
        elif all(reason.startswith("not finite") for reason in reasons.values()):
            details.append("the run diverges: try a smaller eta")
        super().__init__(
            f"round {row.round}: {row.good} good replies after {row.attempts} attempts, but the "
            f"quorum is {quorum}. {'; '.join(details)}"
        )
        self.round, self.good, self.quorum, self.reasons = row.round, row.good, quorum, reasons
        self.result = FederationResult()


@dataclass
class FederationRun:
    """One call of `LocalStrategy.start`; see there for the fields."""

    strategy: LocalStrategy
    grid: Grid
    num_rounds: int
    deadline: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    result: FederationResult = field(default_factory=FederationResult)

    def start(self, initial_arrays: ArrayRecord) -> FederationResult:
        """Make the rounds that are left and return the result."""
        arrays, finished = self._begin(initial_arrays)
        if finished > self.num_rounds:
            log.warning("%d rounds were requested, but %d are finished", self.num_rounds, finished)
        if finished == 0 and self.evaluate_fn is not None:
            metrics = self._evaluate_on_server(0, arrays)
            self.strategy.history.rounds.append(Round(round=0, metrics=metrics))
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
        strategy, path, source = self.strategy, self.strategy.checkpoint, self.strategy.resume_from
        strategy.history, strategy.training = History(), None
        strategy.last_round = self.num_rounds
        arrays, finished = initial_sequences(strategy.algorithm, initial_arrays), 0
        strategy.server = begin_server(strategy.algorithm, arrays)
        if source is not None:
            found = Checkpoint.load(source)
            try:
                found.require_same(
                    strategy.settings(), strategy.algorithm, strategy.hp, arrays, strategy.server
                )
            except InputError as error:
                raise InputError(f"cannot use '{source}': {error}") from error
            strategy.history, finished, arrays = found.history, found.round, dict(found.arrays)
            strategy.server = found.server
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
        log.info(
            "round %d/%d: %d good, %d bad, %d lost, %.2f s%s",
            server_round, self.num_rounds, row.good, row.bad, row.lost, row.seconds,
            "".join(f", {name} {value:.6g}" for name, value in row.metrics.items()),
        )  # fmt: skip
        return arrays

    def _train(self, row: Round, arrays: ArrayRecord) -> ArrayRecord:
        """Ask until there is a quorum; return the aggregate and count in the row."""
        strategy, number, unanswered = self.strategy, row.round, dict[str, int]()
        for attempt in range(1, strategy.retries + 2):
            row.attempts = attempt
            messages = strategy.configure_train(number, arrays, self.train_config, self.grid)
            training = strategy.training
            if training is None or training.number != number:  # a subclass replaced the hook
                training = strategy.begin_round(number, arrays)
            good = training.good
            unanswered = {m: node for m, node in unanswered.items() if node not in good}
            replies = self._exchange(row, list(messages), "training", unanswered)
            after, metrics = strategy.aggregate_train(number, replies)
            drops = strategy.history.dropped
            drops = [drop for drop in drops if (drop.round, drop.during) == (number, "training")]
            row.good, row.bad = len(good), len(drops) - row.lost
            row.memory_lost = sum(reply.memory_lost for reply in good.values())
            if after is not None:
                if metrics is not None:
                    self.result.train_metrics_clientapp[number] = metrics
                    row.metrics |= _numbers(metrics, prefix="train/")
                return after
            log.warning(
                "round %d: %d good replies, the quorum is %d (attempt %d of %d)",
                number, row.good, strategy.quorum, attempt, strategy.retries + 1,
            )  # fmt: skip
        reasons = {drop.node: drop.reason for drop in drops if drop.node not in good}
        raise QuorumError(row, strategy.quorum, reasons)

    def _evaluate(self, row: Round, arrays: ArrayRecord) -> None:
        """Evaluate the output on the clients, if the strategy wants to."""
        strategy, config = self.strategy, self.evaluate_config
        messages = list(strategy.configure_evaluate(row.round, arrays, config, self.grid))
        if not messages:
            return
        replies = self._exchange(row, messages, "evaluation", {})
        metrics = strategy.aggregate_evaluate(row.round, replies)
        if metrics is None:
            log.warning("round %d: no client could evaluate", row.round)
            return
        self.result.evaluate_metrics_clientapp[row.round] = metrics
        row.metrics |= _numbers(metrics)

    def _exchange(
        self, row: Round, messages: list[Message], during: str, unanswered: dict[str, int]
    ) -> list[Message]:
        """Send messages; return the replies that came in time and drop the silent nodes."""
        replies = send_and_wait(self.grid, messages, self.deadline, unanswered)
        row.bytes_down += count_bytes(messages)
        row.bytes_up += count_bytes(replies.values())
        silent = sorted({message.metadata.dst_node_id for message in messages} - set(replies))
        self.strategy.drop(row.round, dict.fromkeys(silent, "no reply in time"), during=during)
        if during == "training":
            row.lost += len(silent)
        return list(replies.values())

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
            server=strategy.server,
        )
        try:
            content.save(strategy.checkpoint)
        except OSError as error:  # a full disk should not end the run
            log.error("round %d: %s; continuing", row.round, error)

    def _complete(self, finished: int, arrays: ArrayRecord) -> FederationResult:
        self.result.sequences, self.result.server = from_record(arrays), self.strategy.server.arrays
        self.result.arrays = to_record(self.strategy.output(finished, self.result.sequences))
        self.result.history = self.strategy.history
        return self.result


def _numbers(metrics: MetricRecord, prefix: str = "") -> dict[str, float]:
    return {f"{prefix}{k}": float(v) for k, v in metrics.items() if isinstance(v, int | float)}
