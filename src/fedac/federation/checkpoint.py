# SPDX-License-Identifier: Apache-2.0
"""The checkpoint envelope that PyTorch and Flower share.

A checkpoint is a zip archive, written atomically. It holds a header, a description of the algorithm
(`describe_rule`) and the package's own content. To read one, pass `Envelope.read` a function that
loads the archive without pickle and calls `Envelope.require_header`.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import fingerprint
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError
from fedac.paths import write_atomically

Content = TypeVar("Content")


class MissingCheckpointError(InputError):
    """There is no file at this path."""


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The format of one package's checkpoints; other versions cannot be read."""

    package: str
    version: int

    def header(self) -> dict[str, Any]:
        """Return the header of every checkpoint."""
        return {"format": f"{self.package} checkpoint", "version": self.version}

    def require_header(self, header: Any) -> None:
        """Raise InputError if a header has another format or version."""
        if not isinstance(header, Mapping) or header.get("format") != self.header()["format"]:
            raise InputError(f"it is not a checkpoint of {self.package}")
        version = header.get("version")
        if version != self.version:
            raise InputError(f"it has version {version!r}; this fedac reads version {self.version}")

    def write(self, path: Path, write: Callable[[BinaryIO], object], *, writer: str = "") -> None:
        """Write a checkpoint with owner-only permissions; see `write_atomically` for `writer`."""
        try:
            write_atomically(path, write, writer=writer, private=True)
        except (OSError, RuntimeError) as error:  # PyTorch's RuntimeError hides the cause
            reason = getattr(error, "strerror", None) or "is the disk full?"
            raise OSError(f"cannot write the checkpoint '{path}': {reason}") from error

    def read(self, path: Path, load: Callable[[BinaryIO], Content]) -> Content:
        """Return the result of `load` on a checkpoint; errors name the file and the reason."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise MissingCheckpointError(f"there is no checkpoint '{path}'") from None
        except OSError as error:
            raise InputError(f"cannot read the checkpoint '{path}': {error.strerror}") from error
        with file:
            try:
                with zipfile.ZipFile(file) as archive:  # PyTorch does not check the checksums
                    if (damaged := archive.testzip()) is not None:
                        raise ValueError(f"entry '{damaged}' is damaged")
                file.seek(0)
                return load(file)
            except InputError as error:
                raise InputError(f"cannot use '{path}': {error}") from error
            except Exception as error:  # loaders fail on other and damaged files in many ways
                raise InputError(
                    f"cannot use '{path}': it is damaged, or not a checkpoint of {self.package}"
                ) from error


def describe_rule(algorithm: Algorithm, hp: Hyperparameters) -> dict[str, Any]:
    """Return the identity of an algorithm, since two may have the same name."""
    return {
        "algorithm": algorithm.name,
        "hyperparameters": asdict(hp),
        "fingerprint": fingerprint(algorithm),
    }


def require_same_rule(saved: Mapping[str, Any], algorithm: Algorithm, hp: Hyperparameters) -> None:
    """Raise InputError if `saved`, a result of `describe_rule`, is of another algorithm."""
    mine = describe_rule(algorithm, hp)
    name = saved["algorithm"]
    if name != algorithm.name:
        raise InputError(f"it was written by algorithm {name!r}, not '{algorithm.name}'")
    for key, value in mine["hyperparameters"].items():
        theirs = saved["hyperparameters"].get(key)
        if theirs is None or not math.isclose(value, theirs, rel_tol=1e-9):
            raise InputError(f"it was written with {key}={theirs}, not {value}")
    if saved["fingerprint"] != mine["fingerprint"]:
        raise InputError(f"it was written by another algorithm that is also called {name!r}")
