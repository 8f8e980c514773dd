"""How a run of a federation ends: with a result, or below its quorum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.serverapp.strategy import Result

from fedac.flower.history import History
from fedac.flower.state import State


@dataclass
class FederationResult(Result):
    """Flower's result, with the history and every sequence.

    Attributes
    ----------
    arrays : ArrayRecord
        The output, w_ag of FedAc, under the names of the initial arrays.
    history : History
        The rounds as a table.
    sequences : dict
        The whole last state, under the keys of the messages.
    """

    history: History = field(default_factory=History)
    sequences: State = field(default_factory=dict)


class QuorumError(RuntimeError):
    """Too few good replies, after all retries.

    Attributes
    ----------
    round, good, quorum : int
        The round that failed, how many replies were good, how many were needed.
    reasons : dict
        What became of every other node, by its id.
    result : FederationResult
        The rounds before; nothing of the failed one is in it but its dropped replies.
    """

    def __init__(
        self, server_round: int, good: int, quorum: int, attempts: int, reasons: Mapping[int, str]
    ) -> None:
        shown = [f"node {node}: {why}" for node, why in [*reasons.items()][:5]]
        if len(reasons) > 5:
            shown.append(f"and {len(reasons) - 5} more")
        if not reasons:
            shown = [f"No more than {good} nodes were there" if good else "No node was there"]
        if reasons and all(why.startswith("not finite") for why in reasons.values()):
            shown.append("the run diverges: a smaller eta may help")
        super().__init__(
            f"round {server_round}: {good} good replies after {attempts} attempts, but the quorum "
            f"is {quorum}. {'; '.join(shown)}"
        )
        self.round, self.good, self.quorum, self.reasons = server_round, good, quorum, reasons
        self.result = FederationResult()
