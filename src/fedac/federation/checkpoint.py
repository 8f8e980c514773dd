"""The checkpoint envelope that PyTorch and Flower share.

A checkpoint is a zip archive, written atomically. It holds a header (`Envelope.header`), a
description of the algorithm (`describe_rule`), and what its package adds. To read one, a package
passes `Envelope.read` a function that loads the archive without pickle and calls
`Envelope.require_header` on what it found; then `require_same_rule` compares the algorithms.
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
    """How to recognize the checkpoints of one package.

    It writes `version` and reads `oldest` and newer.

    Examples
    --------
    >>> Envelope(package="fedac.torch", version=3, oldest=2).header()
    {'format': 'fedac.torch checkpoint', 'version': 3}
    """

    package: str
    version: int
    oldest: int

    def header(self) -> dict[str, Any]:
        """Return what every checkpoint starts with."""
        return {"format": f"{self.package} checkpoint", "version": self.version}

    def require_header(self, header: Any) -> None:
        """Refuse the header of another format or of a version we cannot read."""
        if not isinstance(header, Mapping) or header.get("format") != self.header()["format"]:
            raise InputError(f"it is not a checkpoint of {self.package}")
        version = header.get("version")
        if not (isinstance(version, int) and self.oldest <= version <= self.version):
            reads = f"version {self.version}"
            if self.oldest < self.version:
                reads = f"versions {self.oldest} to {self.version}"
            raise InputError(f"it has version {version!r}; this fedac reads {reads}")

    def write(self, path: Path, write: Callable[[BinaryIO], object], *, writer: str = "") -> None:
        """Write a checkpoint that only its owner may read; for `writer` see `write_atomically`."""
        try:
            write_atomically(path, write, writer=writer, private=True)
        except (OSError, RuntimeError) as error:  # PyTorch's RuntimeError hides the cause
            reason = getattr(error, "strerror", None) or "is the disk full?"
            raise OSError(f"cannot write the checkpoint '{path}': {reason}") from error

    def read(self, path: Path, load: Callable[[BinaryIO], Content]) -> Content:
        """Return what `load` finds in a checkpoint; errors name the file and what is wrong."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise MissingCheckpointError(f"there is no checkpoint '{path}'") from None
        except OSError as error:
            raise InputError(f"cannot read the checkpoint '{path}': {error.strerror}") from error
        with file:
            try:
                _require_checksums(file)
                return load(file)
            except InputError as error:
                raise InputError(f"cannot use '{path}': {error}") from error
            except Exception as error:  # foreign and damaged files fail the loaders in many ways
                raise InputError(
                    f"cannot use '{path}': it is damaged, or not a checkpoint of {self.package}"
                ) from error


def _require_checksums(file: BinaryIO) -> None:
    """Refuse a damaged archive: PyTorch writes checksums but does not check them."""
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"record '{damaged}' is damaged")
    file.seek(0)


def describe_rule(algorithm: Algorithm, hp: Hyperparameters) -> dict[str, Any]:
    """Return what identifies an algorithm: two may have the same name.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> describe_rule(FEDAVG, FEDAVG.couple(eta=0.5, mu=1.0, K=1))["hyperparameters"]
    {'eta': 0.5}
    """
    return {
        "algorithm": algorithm.name,
        "hyperparameters": asdict(hp),
        "fingerprint": fingerprint(algorithm),
    }


def require_same_rule(saved: Mapping[str, Any], algorithm: Algorithm, hp: Hyperparameters) -> None:
    """Refuse a checkpoint that another algorithm wrote.

    `saved` is what `describe_rule` returned; checkpoints of older versions have no "fingerprint".

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I, FEDAVG
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=1)
    >>> require_same_rule({"algorithm": "fedac-i"}, FEDAVG, hp)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: it was written by algorithm 'fedac-i', not 'fedavg'
    """
    mine = describe_rule(algorithm, hp)
    name = saved["algorithm"]
    # Older versions called every FedAc with coefficients of its own "fedac".
    if name != algorithm.name and not (name == "fedac" and algorithm.name.startswith("fedac(")):
        raise InputError(f"it was written by algorithm {name!r}, not '{algorithm.name}'")
    for key, value in mine["hyperparameters"].items():
        theirs = saved["hyperparameters"].get(key)
        if theirs is None or not math.isclose(value, theirs, rel_tol=1e-9):
            raise InputError(f"it was written with {key}={theirs}, not {value}")
    if saved.get("fingerprint", mine["fingerprint"]) != mine["fingerprint"]:
        raise InputError(f"it was written by another algorithm that is also called {name!r}")
