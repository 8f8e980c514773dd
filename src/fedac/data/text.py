# SPDX-License-Identifier: Apache-2.0
"""Text files: rows of characters, from which a network predicts the next one.

A play names its speakers, each above a speech and followed by a colon; then they are the clients.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedac.data.clients import Clients
from fedac.data.dataset import Dataset
from fedac.data.readers import OPENERS
from fedac.errors import DataError

# Characters of a row, after which the target comes.
LENGTH = 64
SUFFIX = ".txt"
NOBODY = "(no speaker)"


def is_text(path: Path) -> bool:
    """Return whether a file is text; LIBSVM files, which begin with a label, may be called .txt."""
    name = path.stem if path.suffix in OPENERS else path.name
    if Path(name).suffix.lower() != SUFFIX or not path.is_file():
        return False
    first = _read(path).split(maxsplit=1)
    try:
        float(first[0] if first else "0")
    except ValueError:
        return True
    return False


def load_text(path: Path, like: Dataset | None = None) -> Dataset:
    """Read rows of characters, encoded as numbers of the classes.

    The target is the character that follows a row. `like` is the training data of a test set.
    """
    speeches: dict[str, list[str]] = {}
    text = _read(path)
    for part in text.split("\n\n"):
        speaker, colon, speech = part.strip().partition(":\n")
        named = bool(colon) and "\n" not in speaker
        speeches.setdefault(speaker if named else NOBODY, []).append(speech if named else part)
    spoken = {speaker: "\n".join(parts) for speaker, parts in speeches.items()}
    characters = like.classes if like is not None else tuple(sorted(set("".join(spoken.values()))))
    code = {character: number for number, character in enumerate(characters or ())}
    rows, owners = [], []
    for speaker, speech in spoken.items():
        if unknown := sorted(set(speech) - code.keys()):
            raise DataError(f"{path} has the character {unknown[0]!r}, the training data does not")
        codes = [code[character] for character in speech]
        # The target of a row is the first character of the next one.
        found = [codes[k : k + LENGTH + 1] for k in range(0, len(codes) - LENGTH, LENGTH)]
        rows += found
        owners += [speaker] * len(found)
    if not rows:
        raise DataError(f"{path}: the text is shorter than a row of {LENGTH + 1} characters")
    table = np.array(rows, np.float64)
    clients = Clients(owners, how="speaker") if len(set(owners)) > 1 else None
    return Dataset(
        path.name, table[:, :-1], table[:, -1], tuple(characters or ()), clients=clients, text=True
    )


def _read(path: Path) -> str:
    opener = OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rb") as file:
            return bytes(file.read()).decode()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text in UTF-8") from None
