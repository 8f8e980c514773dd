"""Checkpoints of a federation: whole or not there, and no code runs when one is read.

A checkpoint is one NumPy archive: an array per key of the state, and a JSON header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedac.errors import InputError
from fedac.files import write_atomically
from fedac.flower.aggregate import Array

FORMAT = "fedac.flower checkpoint"
VERSION = 1
HEADER = "header.json"
ARRAY = "array:"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that a federation needs to go on.

    Attributes
    ----------
    round : int
        Rounds that are finished.
    arrays : dict
        Every sequence, under the keys of the messages.
    settings : dict
        What the run was started with; a resumed run must agree.
    history : dict
        The table so far, as `History.to_dict` gives it.
    """

    round: int
    arrays: Mapping[str, Array]
    settings: Mapping[str, Any]
    history: Mapping[str, Any]

    def save(self, path: str | Path) -> None:
        """Write all of it, or nothing.

        Examples
        --------
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.npz"
        >>> Checkpoint(round=3, arrays={"w/0": np.ones(2)}, settings={}, history={}).save(path)
        >>> found = Checkpoint.load(path)
        >>> found.round, found.arrays
        (3, {'w/0': array([1., 1.])})
        """
        path = Path(path)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "round": self.round,
            "keys": list(self.arrays),
            "settings": dict(self.settings),
            "history": dict(self.history),
        }
        text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        # Numbered, because a parameter's name may hold what a file name may not.
        numbered = {f"{ARRAY}{i}": array for i, array in enumerate(self.arrays.values())}

        def write(file: BinaryIO) -> None:
            np.savez(file, **{HEADER: text}, **numbered)  # type: ignore[arg-type]

        write_atomically(path, write)

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        """Read a checkpoint, or say why the file is none."""
        path = Path(path)
        if path.is_dir():
            raise InputError(f"'{path}' is a folder, not a checkpoint")
        if not path.is_file():
            raise InputError(f"there is no checkpoint '{path}'")
        try:
            # Opened here, because np.load leaves a file open that turns out to be none of its own.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                header = json.loads(archive[HEADER].tobytes())
                _check(header)
                arrays = {
                    key: np.asarray(archive[f"{ARRAY}{i}"]) for i, key in enumerate(header["keys"])
                }
        except _ForeignError as error:
            raise InputError(f"'{path}' is no checkpoint of fedac.flower: {error}") from error
        except OSError as error:
            raise InputError(f"'{path}' cannot be read: {error.strerror or error}") from error
        except Exception as error:  # files of others fail NumPy, zipfile and JSON in many ways
            raise InputError(
                f"'{path}' is no checkpoint of fedac.flower: it is of another kind, or damaged"
            ) from error
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise InputError(f"'{path}' holds NaN or infinity: it is damaged")
        return cls(
            round=header["round"],
            arrays=arrays,
            settings=header["settings"],
            history=header["history"],
        )

    def require_same(
        self, path: str | Path, settings: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> None:
        """Refuse to be gone on from with other settings, or with another model.

        The path it was read from is named in the message.

        Examples
        --------
        >>> old = Checkpoint(round=3, arrays={}, settings={"eta": 0.5}, history={})
        >>> old.require_same("run.npz", {"eta": 0.1}, {})
        Traceback (most recent call last):
        fedac.errors.InputError: 'run.npz' was written with eta=0.5, not 0.1
        """
        different = [
            f"{key}={self.settings.get(key)!r}, not {value!r}"
            for key, value in settings.items()
            if self.settings.get(key) != value
        ]
        if different:
            raise InputError(f"'{path}' was written with {'; '.join(different)}")
        mine, theirs = _kinds(self.arrays), _kinds(arrays)
        if mine != theirs:
            raise InputError(f"'{path}' holds another model: {mine}, not {theirs}")


def _kinds(arrays: Mapping[str, Array]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {key: (array.shape, str(array.dtype)) for key, array in arrays.items()}


class _ForeignError(Exception):
    """A file that is readable but not ours; the message says how one can tell."""


def _check(header: Any) -> None:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise _ForeignError("its header names another format")
    if header.get("version") != VERSION:
        raise _ForeignError(f"version {header.get('version')!r}, but this is version {VERSION}")
    kinds = {"round": int, "keys": list, "settings": dict, "history": dict}
    wrong = [key for key, kind in kinds.items() if not isinstance(header.get(key), kind)]
    if wrong:
        raise _ForeignError(f"its header lacks {', '.join(wrong)}")
    if header["round"] < 0:
        raise _ForeignError(f"round {header['round']} is impossible")
