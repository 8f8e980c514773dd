"""Named arrays and a JSON header in one NumPy archive, read without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedac.algorithms import Algorithm
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError
from fedac.federation.checkpoint import Envelope, require_same_rule
from fedac.federation.compression import FLOAT32
from fedac.flower._arrays import NamedArrays, NDArray
from fedac.flower._client.labels import Labels
from fedac.flower._server.result import Dropped, History, Round
from fedac.flower._server.round import ServerMemory

HEADER = "header.json"
ARRAY = "array:"


def write_archive(
    envelope: Envelope, path: Path, header: Mapping[str, Any], arrays: NamedArrays
) -> None:
    """Write an archive atomically."""
    whole = envelope.header() | {"keys": list(arrays)} | dict(header)
    text = np.frombuffer(json.dumps(whole).encode(), dtype=np.uint8)
    # Numbered, because a parameter's name may not be a valid file name.
    numbered = {f"{ARRAY}{i}": array for i, array in enumerate(arrays.values())}

    def write(file: BinaryIO) -> None:
        np.savez(file, **{HEADER: text}, **numbered)  # type: ignore[arg-type]

    envelope.write(path, write)


def read_archive(envelope: Envelope, file: BinaryIO) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """Return the header and the arrays of an archive of this envelope."""
    with np.load(file, allow_pickle=False) as archive:
        header: Any = json.loads(archive[HEADER].tobytes()) if HEADER in archive else None
        envelope.require_header(header)
        return header, {key: archive[f"{ARRAY}{i}"] for i, key in enumerate(header["keys"])}


# --- What a federation's checkpoint holds.
#
# A checkpoint is one NumPy archive: an array for every key of the sequences and of what the server
# keeps to itself, and a JSON header.

ENVELOPE = Envelope(package="fedac.flower", version=3, oldest=1)  # 3 has the weights of clients
SERVER = "server:"  # before the keys of what the server keeps


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a federation needs to continue.

    Attributes
    ----------
    round : int
        How many rounds are finished.
    arrays : dict
        Every sequence, with keys such as ``w_ag/0``.
    settings : dict
        The settings of the run; a resumed run must have the same.
    history : History
        The finished rounds.
    server : ServerMemory
        What the server keeps besides the sequences.
    norms : list
        The clipping norms of wrappers around the strategy.
    """

    round: int
    arrays: NamedArrays
    settings: Mapping[str, Any]
    history: History
    server: ServerMemory = field(default_factory=ServerMemory)
    norms: list[float | None] = field(default_factory=list)

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
            "labels": self.server.labels.to_json(),
            "norms": self.norms,
        }
        kept = {f"{SERVER}{key}": array for key, array in self.server.arrays.items()}
        write_archive(ENVELOPE, Path(path), header, {**self.arrays, **kept})

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        """Read a checkpoint, or say why the file cannot be used."""
        return ENVELOPE.read(Path(path), _load)

    def require_same(
        self,
        settings: Mapping[str, Any],
        algorithm: Algorithm,
        hp: Hyperparameters,
        arrays: NamedArrays,
        server: ServerMemory,
    ) -> None:
        """Refuse to continue with another algorithm, other settings or another model."""
        # What the user has given first: gamma, alpha and beta follow from it.
        if self.settings.get("algorithm") == algorithm.name:
            for key, value in settings.items():
                theirs = self.settings.get(key, value if key == "mu" else None)  # 0.1 had no mu
                if theirs != value:
                    raise InputError(f"it was written with {key}={theirs}, not {value}")
        require_same_rule({**self.settings, "hyperparameters": self.settings}, algorithm, hp)
        for held, wanted in ((self.arrays, arrays), (self.server.arrays, server.arrays)):
            mine, theirs = _shapes(held), _shapes(wanted)
            if mine != theirs:
                raise InputError(f"it holds another model: {mine}, not {theirs}")


def _load(file: BinaryIO) -> Checkpoint:
    header, arrays = read_archive(ENVELOPE, file)
    kept = {
        key.removeprefix(SERVER): arrays.pop(key) for key in list(arrays) if key.startswith(SERVER)
    }
    labels = Labels.from_json(header["labels"]) if "labels" in header else Labels()
    rounds = [Round(**row) for row in header["history"]["rounds"]]
    dropped = [Dropped(**drop) for drop in header["history"]["dropped"]]
    # Before there were others, every wire was this one.
    settings = {"wire": FLOAT32, "wire_seed": 0, "wrapper": []} | header["settings"]
    return Checkpoint(
        round=header["round"],
        arrays=arrays,
        settings=settings,
        history=History(rounds, dropped),
        server=ServerMemory(kept, labels),
        norms=header.get("norms", []),
    )


def _shapes(arrays: NamedArrays) -> dict[str, tuple[tuple[int, ...], str]]:
    return {key: (array.shape, str(array.dtype)) for key, array in arrays.items()}
