"""The options of `fedac run` and `fedac sweep` that say who takes part and what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedac.errors import InputError

if TYPE_CHECKING:
    from fedac.data import Clients, Dataset

WORKERS = 256
SPLIT = (
    "How rows are split among clients: iid, label, dirichlet(a), power(a), or a file with a "
    "client name per line; iid unless given."
)
PARTICIPATION = (
    "The share of clients that takes part in a round, rounded to whole clients; above 1, how many."
)
BATCH = "Rows per local step, or full: all rows of the client."
WEIGHTING = "How much clients count: examples, by their rows; or uniform, all the same."
WIRE = "How messages travel: float32, bfloat16 or int8, the difference to the broadcast rounded."
DECAY = "How step sizes fall over rounds: 1/r, 1/sqrt(r), inverse(c) or halve(c)."
TEST = "Also evaluate on this data set or LIBSVM file, or hold out a share of the rows, as 0.2."


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """What was given to `fedac run`: workers that draw from all rows, or clients."""

    workers: int | None
    clients: int | None
    split: str  # of the rows among clients; empty for workers
    split_seed: int
    participation: float
    batch: int | str
    weighting: str
    decay: str | None
    wire: str

    @property
    def M(self) -> int | None:
        """How many there are; None if only a file of clients says so."""
        if self.split:
            return self.clients
        return WORKERS if self.workers is None else self.workers

    def check(self) -> None:
        """Refuse what cannot be, whatever the data."""
        from fedac.averaging import require_weighting
        from fedac.data.splits import is_split
        from fedac.experiments.federations import check_clients
        from fedac.require import require_count
        from fedac.simulation.federation import require_batch, taking_part
        from fedac.wire import require_wire

        if self.split and self.workers is not None:
            raise InputError("--workers draw from all rows, clients hold their own: give one")
        if is_split(self.split) and self.clients is None:
            raise InputError(f"--split {self.split} needs --clients: how many clients there are")
        if self.split:
            check_clients(self.clients, self.split, self.split_seed)
        if self.M is not None:
            taking_part(self.participation, require_count("M (workers)", self.M))
        if self.split_seed and not is_split(self.split):
            raise InputError("--split-seed needs a split that is drawn, such as --split iid")
        require_batch(self.batch)
        require_wire(self.wire)
        require_weighting(self.weighting)
        if self.weighting != "examples" and not self.split:
            raise InputError("--weighting needs --clients: workers all count the same")

    def load(self, data: Dataset) -> Clients | None:
        """Return the clients, None for workers."""
        from fedac.experiments.federations import load_clients

        if not self.split:
            return None
        return load_clients(data, self.clients, self.split, self.split_seed)


def batch_size(text: str) -> int | str:
    """Read a number of rows; other text stays as it is.

    Examples
    --------
    >>> batch_size("4"), batch_size("full")
    (4, 'full')
    """
    try:
        return int(text)
    except ValueError:
        return text
