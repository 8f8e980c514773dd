# SPDX-License-Identifier: Apache-2.0
"""The result of a federation: the model and its history; or too few good replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from fedac.errors import InputError
from fedac.flower._arrays import NamedArrays

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TRAIN, SERVER = "train/", "server/"  # before the names of metrics in the history
SHOWN = 5  # reasons in an error
# Reasons to drop a reply of a client that does not know our messages; 2 is a ClientApp that raised.
NOT_OURS = ("error 2:", "missing metric: server-round")


@dataclass(kw_only=True)
class RoundSummary:
    """One round of a run."""

    round: int  # from 1 on; 0 is the evaluation before the first round
    attempts: int = 0  # how many times nodes were asked
    good: int = 0  # replies that were used
    bad: int = 0  # replies that were dropped
    lost: int = 0  # replies that did not arrive in time
    staleness: float = 0.0  # steps that the server took while clients worked, on average
    memory_lost: int = 0  # used replies of clients that had lost their memory and started again
    bytes_down: int = 0  # arrays sent to clients, evaluation included
    bytes_up: int = 0  # arrays received from them
    seconds: float = 0.0  # evaluation included
    # Means over the clients and, as "server/<name>", the metrics that `evaluate_fn` returned.
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A node whose reply was not used, and why."""

    round: int
    node: int
    reason: str
    during: str = "training"


@dataclass
class History:
    """The rounds of a run, and the replies that were dropped.

    Examples
    --------
    >>> history = History()
    >>> history.rounds.append(RoundSummary(round=1, good=2, bytes_up=800, metrics={"loss": 0.5}))
    >>> history.dropped.append(Dropped(round=1, node=7, reason="not finite: w/0"))
    >>> history.to_frame()[["round", "good", "bytes_up", "loss"]]
       round  good  bytes_up  loss
    0      1     2       800   0.5
    >>> history.drops_by_node()
    {7: 1}
    """

    rounds: list[RoundSummary] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    def drops_by_node(self) -> dict[int, int]:
        """Return how many replies of each node were dropped."""
        return dict(Counter(drop.node for drop in self.dropped))

    def metric(self, name: str) -> list[tuple[int, float]]:
        """Return (round, value) of a metric for the rounds that measured it."""
        return [(row.round, row.metrics[name]) for row in self.rounds if name in row.metrics]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per round, with one column per metric."""
        import pandas as pd

        rows = []
        for row in self.rounds:
            flat = asdict(row)
            metrics = flat.pop("metrics")
            # A metric with the name of a column gets a suffix.
            rows.append(flat | {f"{k}_metric" if k in flat else k: v for k, v in metrics.items()})
        return pd.DataFrame(rows, columns=None if rows else [*asdict(RoundSummary(round=0))][:-1])

    def to_csv(self, path: str | Path) -> None:
        """Write the table as CSV."""
        self.to_frame().to_csv(path, index=False)

    def plot(
        self, metric: str = "loss", *, against: str = "rounds", ax: Axes | None = None
    ) -> Axes:
        """Plot a metric against rounds or megabytes (both directions, all clients)."""
        labels = {"rounds": "rounds", "megabytes": "megabytes, all clients, both directions"}
        if against not in labels:
            raise InputError(f"against must be 'rounds' or 'megabytes', got {against!r}")
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.figure(layout="constrained").add_subplot()
        bytes_so_far = accumulate(row.bytes_down + row.bytes_up for row in self.rounds)
        points = [
            (row.round if against == "rounds" else total / 1e6, row.metrics[metric])
            for row, total in zip(self.rounds, bytes_so_far, strict=True)
            if metric in row.metrics
        ]
        if not points:
            known = sorted({name for row in self.rounds for name in row.metrics})
            raise InputError(f"no metric '{metric}'; measured: {', '.join(known) or 'none'}")
        ax.plot(*zip(*points, strict=True), marker="o", ms=3)
        ax.set(xlabel=labels[against], ylabel=metric)
        return ax


@dataclass(repr=False)
class FederationResult(Result):
    """Flower's result, with the history and every sequence.

    Attributes
    ----------
    arrays : ArrayRecord
        The output (w_ag of FedAc), with the names of the initial arrays.
    history : History
        The rounds as a table.
    sequences, server : dict
        All sequences and the algorithm's server state after the last round, with keys such as
        ``w_ag/0`` and ``w_ag_u/0``.

    Examples
    --------
    >>> rounds = [RoundSummary(round=1, bytes_up=2_000_000, metrics={"loss": 0.5})]
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

    def add_metrics(self, row: RoundSummary, metrics: MetricRecord, prefix: str = "") -> None:
        """Add the metrics of a round to Flower's records, and its numbers to the history's row."""
        self._records()[prefix][row.round] = metrics
        for name, value in metrics.items():
            if isinstance(value, int | float):
                row.metrics[f"{prefix}{name}"] = float(value)

    def restore_metrics(self) -> None:
        """Fill in Flower's records of a resumed run's earlier rounds, from the history."""
        records = self._records()
        for row in self.history.rounds:
            found: dict[str, dict[str, float]] = {TRAIN: {}} if row.round else {}
            for name, value in row.metrics.items():
                prefix = next(p for p in records if name.startswith(p))
                found.setdefault(prefix, {})[name.removeprefix(prefix)] = value
            for prefix, metrics in found.items():
                records[prefix][row.round] = MetricRecord(metrics)  # type: ignore[arg-type]

    def _records(self) -> dict[str, dict[int, MetricRecord]]:
        return {
            TRAIN: self.train_metrics_clientapp,
            SERVER: self.evaluate_metrics_serverapp,
            "": self.evaluate_metrics_clientapp,
        }


class QuorumError(RuntimeError):
    """Too few good replies, after all retries.

    Attributes
    ----------
    round, good, quorum : int
        The round that failed, how many replies were good, and how many were needed.
    reasons : dict
        Why each other node's reply was not used, by node id.
    result : FederationResult
        The result of the earlier rounds; it also lists the replies that the failed round dropped.
    """

    def __init__(
        self, row: RoundSummary, quorum: int, reasons: Mapping[int, str], names: Mapping[int, str]
    ) -> None:
        by_reason: dict[str, list[str]] = {}
        for node, reason in reasons.items():
            by_reason.setdefault(reason, []).append(names[node])
        details = []
        for reason, who in [*by_reason.items()][:SHOWN]:
            more = f" and {len(who) - SHOWN} more" if len(who) > SHOWN else ""
            details.append(f"{', '.join(who[:SHOWN])}{more}: {reason}")
        if len(by_reason) > SHOWN:
            details.append(f"and {len(by_reason) - SHOWN} other reasons")
        if not reasons:
            details = [
                f"Only {row.good} nodes were connected" if row.good else "No node was connected"
            ]
        elif all(reason.startswith("not finite") for reason in reasons.values()):
            details.append("the run diverges: try a smaller eta")
        # Our clients report their partition, even in an error.
        unknown = [reason for node, reason in reasons.items() if "(partition" not in names[node]]
        if not row.good and any(reason.startswith(NOT_OURS) for reason in unknown):
            details.append(
                "is the client made by client_app, or does it train in local_training and return "
                "local.reply(...)?"
            )
        super().__init__(
            f"round {row.round}: {row.good} good replies after {row.attempts} attempts, but the "
            f"quorum is {quorum}. {'; '.join(details)}"
        )
        self.round, self.good, self.quorum, self.reasons = row.round, row.good, quorum, reasons
        self.result = FederationResult()
