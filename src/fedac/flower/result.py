"""What comes of a federation: the model, and every round; or why there are too few replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from fedac.flower.history import History, Round
from fedac.flower.messages import NamedArrays

TRAIN, SERVER = "train/", "server/"  # before the names of metrics in the history
SHOWN = 5  # reasons in an error


@dataclass(repr=False)
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

    Examples
    --------
    >>> rounds = [Round(round=1, bytes_up=2_000_000, metrics={"loss": 0.5})]
    >>> FederationResult(history=History(rounds))
    <FederationResult: 1 rounds, 2.00 MB sent, last loss 0.5>
    """

    history: History = field(default_factory=History)
    sequences: NamedArrays = field(default_factory=dict)
    server: NamedArrays = field(default_factory=dict)

    def __repr__(self) -> str:
        rounds = self.history.rounds
        sent = sum(row.bytes_down + row.bytes_up for row in rounds) / 1e6
        last = rounds[-1].metrics if rounds else {}
        metrics = "".join(f", last {name} {value:.6g}" for name, value in last.items())
        finished = sum(row.round > 0 for row in rounds)
        return f"<FederationResult: {finished} rounds, {sent:.2f} MB sent{metrics}>"

    def restore_metrics(self) -> None:
        """Fill in the metrics of rounds that an earlier process has made, from the history."""
        for row in self.history.rounds:
            for prefix, record in (
                (TRAIN, self.train_metrics_clientapp),
                (SERVER, self.evaluate_metrics_serverapp),
                ("", self.evaluate_metrics_clientapp),
            ):
                mine = {k: v for k, v in row.metrics.items() if _prefix(k) == prefix}
                if mine or (prefix == TRAIN and row.round):  # every round trains
                    plain = {k.removeprefix(prefix): v for k, v in mine.items()}
                    record[row.round] = MetricRecord(plain)  # type: ignore[arg-type]


class QuorumError(RuntimeError):
    """Too few good replies, after all retries.

    Attributes
    ----------
    round : int
        The round that failed.
    good : int
        How many replies were good.
    quorum : int
        How many were needed.
    reasons : dict
        Why each other node's reply was not used, by node id.
    result : FederationResult
        The result of the earlier rounds; it also lists the replies that the failed round dropped.
    """

    def __init__(
        self,
        row: Round,
        quorum: int,
        reasons: Mapping[int, str],
        names: Mapping[int, str],
        *,
        question: str = "",
    ) -> None:
        by_reason: dict[str, list[str]] = {}
        for node, reason in reasons.items():
            by_reason.setdefault(reason, []).append(names[node])
        details = [f"{_listed(who)}: {reason}" for reason, who in [*by_reason.items()][:SHOWN]]
        if len(by_reason) > SHOWN:
            details.append(f"and {len(by_reason) - SHOWN} other reasons")
        if not reasons:
            details = [
                f"Only {row.good} nodes were connected" if row.good else "No node was connected"
            ]
        elif all(reason.startswith("not finite") for reason in reasons.values()):
            details.append("the run diverges: try a smaller eta")
        if question:
            details.append(question)
        super().__init__(
            f"round {row.round}: {row.good} good replies after {row.attempts} attempts, but the "
            f"quorum is {quorum}. {'; '.join(details)}"
        )
        self.round, self.good, self.quorum, self.reasons = row.round, row.good, quorum, reasons
        self.result = FederationResult()


def _listed(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + f" and {more} more" * (more > 0)


def _prefix(name: str) -> str:
    return next((prefix for prefix in (TRAIN, SERVER) if name.startswith(prefix)), "")
