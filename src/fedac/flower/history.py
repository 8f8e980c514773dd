"""The history of a federation, as a table with one row per round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedac.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(kw_only=True)
class Round:
    """One round of a run.

    Attributes
    ----------
    round : int
        Its number, from 1 on; 0 is the evaluation before the first round.
    attempts : int
        How many times nodes were asked.
    good, bad, lost : int
        Replies that were used, that were dropped, and that did not arrive in time.
    bytes_down, bytes_up : int
        Arrays sent to clients and received from them, evaluation included.
    seconds : float
        Duration, evaluation included.
    metrics : dict
        Means over the clients, and as "server/<name>" the metrics that `evaluate_fn` returned.
    """

    round: int
    attempts: int = 0
    good: int = 0
    bad: int = 0
    lost: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    def describe(self, of: int) -> str:
        """Describe the round in one line.

        >>> Round(round=2, good=3, lost=1, seconds=0.5, metrics={"loss": 0.25}).describe(of=8)
        'round 2/8: 3 good, 0 bad, 1 lost, 0.50 s, loss 0.25'
        """
        metrics = "".join(f", {name} {value:.6g}" for name, value in self.metrics.items())
        return (
            f"round {self.round}/{of}: {self.good} good, {self.bad} bad, {self.lost} lost, "
            f"{self.seconds:.2f} s{metrics}"
        )


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
    >>> history.rounds.append(Round(round=1, good=2, bytes_up=800, metrics={"loss": 0.5}))
    >>> history.dropped.append(Dropped(round=1, node=7, reason="not finite: w/0"))
    >>> history.to_frame()[["round", "good", "bytes_up", "loss"]]
       round  good  bytes_up  loss
    0      1     2       800   0.5
    >>> history.drops_by_node()
    {7: 1}
    """

    rounds: list[Round] = field(default_factory=list)
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
        return pd.DataFrame(rows, columns=None if rows else [*asdict(Round(round=0))][:-1])

    def to_csv(self, path: str | Path) -> None:
        """Write the table as CSV."""
        self.to_frame().to_csv(path, index=False)

    def plot(
        self, metric: str = "loss", *, against: str = "rounds", ax: Axes | None = None
    ) -> Axes:
        """Plot a metric against rounds or megabytes (both directions, all clients)."""
        if against not in ("rounds", "megabytes"):
            raise InputError(f"against must be 'rounds' or 'megabytes', got {against!r}")
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.figure(layout="constrained").add_subplot()
        bytes_so_far, x, y = 0, [], []
        for row in self.rounds:
            bytes_so_far += row.bytes_down + row.bytes_up
            if metric in row.metrics:
                x.append(row.round if against == "rounds" else bytes_so_far / 1e6)
                y.append(row.metrics[metric])
        if not y:
            known = sorted({name for row in self.rounds for name in row.metrics})
            raise InputError(f"no metric '{metric}'; measured: {', '.join(known) or 'none'}")
        ax.plot(x, y, marker="o", ms=3)
        label = "megabytes, all clients, both directions" if against == "megabytes" else against
        ax.set(xlabel=label, ylabel=metric)
        return ax

    def to_dict(self) -> dict[str, Any]:
        """Return the history for JSON; `from_dict` reads it."""
        return {
            "rounds": [asdict(row) for row in self.rounds],
            "dropped": [asdict(drop) for drop in self.dropped],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> History:
        """Read the output of `to_dict`.

        Examples
        --------
        >>> history = History([Round(round=1, metrics={"loss": 0.5})])
        >>> History.from_dict(history.to_dict()) == history
        True
        """
        return cls(
            [Round(**row) for row in content["rounds"]],
            [Dropped(**drop) for drop in content["dropped"]],
        )
