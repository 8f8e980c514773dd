# SPDX-License-Identifier: Apache-2.0
"""A federation's checkpoint: one NumPy archive with a JSON header, read without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord, RecordDict

from fedac.algorithms import Algorithm
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError
from fedac.federation.checkpoint import Envelope, require_same_rule
from fedac.flower._arrays import NamedArrays, read_archive, write_archive
from fedac.flower._server.replies import Reply
from fedac.flower._server.result import Dropped, History, RoundSummary
from fedac.flower._task import METRICS, WEIGHT

ENVELOPE = Envelope(package="fedac.flower", version=6)
# Before the keys of the server's state, and of the messages in a buffer, with their numbers.
SERVER, MESSAGE = "server:", "message:"
KEPT = ("node", "weight", "metrics", "steps", "client", "memory_lost", "staleness")  # of a reply


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a federation needs to continue.

    Attributes
    ----------
    round : int
        How many rounds are finished.
    arrays, server : dict
        Every sequence, with keys such as ``w_ag/0``, and the algorithm's server state.
    settings : dict
        The settings of the run; a resumed run must have the same.
    history : History
        The finished rounds.
    clients : dict
        What the server knows of its clients.
    norms : list
        The clipping norms of wrappers around the strategy.
    buffer : dict
        Of asynchronous rounds: the replies since the last step of the server, by number of memory.
    starts : dict
        Of asynchronous rounds: whom the server gave work, as far as its draws depend on it.
    """

    round: int
    arrays: NamedArrays
    settings: Mapping[str, Any]
    history: History
    server: NamedArrays = field(default_factory=dict)
    clients: Mapping[str, Any] = field(default_factory=dict)
    norms: list[float | None] = field(default_factory=list)
    buffer: Mapping[int, Reply] = field(default_factory=dict)
    starts: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the checkpoint atomically.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> path = Path(tempfile.mkdtemp()) / "run.npz"
        >>> arrays = {"w/0": np.ones(2)}
        >>> Checkpoint(round=3, arrays=arrays, settings={}, history=History()).save(path)
        >>> found = Checkpoint.load(path)
        >>> found.round, found.arrays
        (3, {'w/0': array([1., 1.])})
        """
        header = {
            "round": self.round,
            "settings": dict(self.settings),
            "history": asdict(self.history),
            "clients": dict(self.clients),
            "norms": self.norms,
            "buffer": {n: {k: getattr(reply, k) for k in KEPT} for n, reply in self.buffer.items()},
            "starts": dict(self.starts),
        }
        server = {f"{SERVER}{key}": array for key, array in self.server.items()}
        messages = {
            f"{MESSAGE}{number}:{key}": array
            for number, reply in self.buffer.items()
            for key, array in reply.arrays.items()
        }
        write_archive(ENVELOPE, Path(path), header, {**self.arrays, **server, **messages})

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        """Read a checkpoint; raises InputError with the reason if the file cannot be used."""
        header, arrays = read_archive(ENVELOPE, Path(path))
        server = [key for key in arrays if key.startswith(SERVER)]
        buffer = {}
        for number, kept in header["buffer"].items():
            prefix = f"{MESSAGE}{number}:"
            keys = [key for key in arrays if key.startswith(prefix)]
            message = {key.removeprefix(prefix): arrays.pop(key) for key in keys}
            metrics = MetricRecord({**kept["metrics"], WEIGHT: kept["weight"]})
            records = RecordDict({METRICS: metrics})
            buffer[int(number)] = Reply(**kept, arrays=message, records=records)
        return cls(
            buffer=buffer,
            server={key.removeprefix(SERVER): arrays.pop(key) for key in server},
            arrays=arrays,
            history=History(
                [RoundSummary(**row) for row in header["history"]["rounds"]],
                [Dropped(**drop) for drop in header["history"]["dropped"]],
            ),
            **{key: header[key] for key in ("round", "settings", "clients", "norms", "starts")},
        )

    def require_same(
        self,
        settings: Mapping[str, Any],
        algorithm: Algorithm,
        hp: Hyperparameters,
        arrays: NamedArrays,
        server: NamedArrays,
    ) -> None:
        """Raise InputError for another algorithm, other settings or another model."""
        # Compare the user's options first: gamma, alpha and beta follow from them.
        if self.settings["algorithm"] == algorithm.name:
            for key, value in settings.items():
                if self.settings.get(key) != value:
                    theirs = self.settings.get(key)
                    raise InputError(f"it was written with {key}={theirs}, not {value}")
        require_same_rule({**self.settings, "hyperparameters": self.settings}, algorithm, hp)
        for held, wanted in ((self.arrays, arrays), (self.server, server)):
            mine, theirs = (
                {key: (array.shape, str(array.dtype)) for key, array in found.items()}
                for found in (held, wanted)
            )
            if mine != theirs:
                raise InputError(f"it holds another model: {mine}, not {theirs}")
