"""Option values that are more than one number."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedac.errors import InputError

T = TypeVar("T")


def numbers(text: str, *, option: str) -> list[float]:
    """Read comma-separated numbers.

    Examples
    --------
    >>> numbers("0.1,0.2", option="--eta")
    [0.1, 0.2]
    >>> numbers("0.1;0.2", option="--eta")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --eta takes numbers separated by commas, got '0.1;0.2'
    """
    return _several(text, float, f"{option} takes numbers")


def whole_numbers(text: str, *, option: str) -> list[int]:
    """Read comma-separated whole numbers.

    Examples
    --------
    >>> whole_numbers("4,8", option="--workers")
    [4, 8]
    >>> whole_numbers("4,8.5", option="--workers")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --workers takes whole numbers separated by commas, got '4,8.5'
    """
    return _several(text, int, f"{option} takes whole numbers")


def _several(text: str, read: Callable[[str], T], expected: str) -> list[T]:
    try:
        return [read(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{expected} separated by commas, got '{text}'") from None


def output_folder(path: Path, *, option: str) -> Path:
    """Make a folder for results unless it is there; fail before computing, not after.

    Examples
    --------
    >>> output_folder(Path(os.devnull), option="--out")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --out takes a folder that can be written to; '...' is a file
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(path, os.W_OK | os.X_OK) else "cannot be written to"
    except FileExistsError:
        why = "is a file"
    except OSError as error:
        why = f"cannot be made: {error.strerror}"
    if why:
        raise InputError(f"{option} takes a folder that can be written to; '{path}' {why}")
    return path
