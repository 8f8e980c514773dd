"""How a run ends: with a result, or below its quorum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.serverapp.strategy import Result

from fedac.flower.history import History
from fedac.flower.messages import NamedArrays


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
    """

    history: History = field(default_factory=History)
    sequences: NamedArrays = field(default_factory=dict)


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

    def __init__(
        self, server_round: int, good: int, quorum: int, attempts: int, reasons: Mapping[int, str]
    ) -> None:
        details = [f"node {node}: {reason}" for node, reason in [*reasons.items()][:5]]
        if len(reasons) > 5:
            details.append(f"and {len(reasons) - 5} more")
        if not reasons:
            details = [f"Only {good} nodes were connected" if good else "No node was connected"]
        if reasons and all(reason.startswith("not finite") for reason in reasons.values()):
            details.append("the run diverges: try a smaller eta")
        super().__init__(
            f"round {server_round}: {good} good replies after {attempts} attempts, but the quorum "
            f"is {quorum}. {'; '.join(details)}"
        )
        self.round, self.good, self.quorum, self.reasons = server_round, good, quorum, reasons
        self.result = FederationResult()
