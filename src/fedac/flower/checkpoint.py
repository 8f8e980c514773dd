"""What a federation's checkpoint holds.

A checkpoint is one NumPy archive: an array for every key of the sequences, and a JSON header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.checkpoints import Envelope, require_same_rule
from fedac.errors import InputError
from fedac.flower.history import Dropped, History, Round
from fedac.flower.messages import NamedArrays

ENVELOPE = Envelope(package="fedac.flower", version=1, oldest=1)
HEADER = "header.json"
ARRAY = "array:"


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
    """

    round: int
    arrays: NamedArrays
    settings: Mapping[str, Any]
    history: History

    def save(self, path: str | Path) -> None:
        """Write the checkpoint atomically.

        Examples
        --------
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.npz"
        >>> arrays = {"w/0": np.ones(2)}
        >>> Checkpoint(round=3, arrays=arrays, settings={}, history=History()).save(path)
        >>> found = Checkpoint.load(path)
        >>> found.round, found.arrays
        (3, {'w/0': array([1., 1.])})
        """
        header = ENVELOPE.header() | {
            "round": self.round,
            "keys": list(self.arrays),
            "settings": dict(self.settings),
            "history": asdict(self.history),
        }
        text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        # Numbered, because a parameter's name may not be a valid file name.
        numbered = {f"{ARRAY}{i}": array for i, array in enumerate(self.arrays.values())}

        def write(file: BinaryIO) -> None:
            np.savez(file, **{HEADER: text}, **numbered)  # type: ignore[arg-type]

        ENVELOPE.write(Path(path), write)

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
    ) -> None:
        """Refuse to continue with another algorithm, other settings or another model."""
        require_same_rule({**self.settings, "hyperparameters": self.settings}, algorithm, hp)
        for key, value in settings.items():
            if self.settings.get(key) != value:
                raise InputError(f"it was written with {key}={self.settings.get(key)}, not {value}")
        mine, theirs = _shapes(self.arrays), _shapes(arrays)
        if mine != theirs:
            raise InputError(f"it holds another model: {mine}, not {theirs}")


def _load(file: BinaryIO) -> Checkpoint:
    with np.load(file, allow_pickle=False) as archive:
        header: Any = json.loads(archive[HEADER].tobytes()) if HEADER in archive else None
        ENVELOPE.require_header(header)
        arrays = {key: archive[f"{ARRAY}{i}"] for i, key in enumerate(header["keys"])}
    rounds = [Round(**row) for row in header["history"]["rounds"]]
    dropped = [Dropped(**drop) for drop in header["history"]["dropped"]]
    return Checkpoint(
        round=header["round"],
        arrays=arrays,
        settings=header["settings"],
        history=History(rounds, dropped),
    )


def _shapes(arrays: NamedArrays) -> dict[str, tuple[tuple[int, ...], str]]:
    return {key: (array.shape, str(array.dtype)) for key, array in arrays.items()}
