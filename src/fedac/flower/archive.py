"""Named arrays and a JSON header in one NumPy archive, read without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedac.checkpoints import Envelope
from fedac.flower.messages import NamedArrays, NDArray

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
