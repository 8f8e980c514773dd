"""Checks of the user's numbers."""

from __future__ import annotations

import hashlib
import math
import operator
import re
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fedac.errors import InputError

if TYPE_CHECKING:  # the command checks options before it needs NumPy
    import numpy as np
    import numpy.typing as npt


def require_positive(name: str, value: float) -> float:
    """Return `value` as a float if it is finite and above zero, else raise `InputError`.

    Examples
    --------
    >>> require_positive("eta", -1.0)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: eta must be a finite number above 0, got -1.0
    """
    if not (_is_finite(value) and value > 0):
        raise InputError(f"{name} must be a finite number above 0, got {value!r}")
    return float(value)


def require_nonnegative(name: str, value: float) -> float:
    """Return `value` as a float if it is finite and at least zero, else raise `InputError`.

    Examples
    --------
    >>> require_nonnegative("l2", 0)
    0.0
    """
    if not (_is_finite(value) and value >= 0):
        raise InputError(f"{name} must be a finite number, at least 0, got {value!r}")
    return float(value)


def require_fraction(name: str, value: float) -> float:
    """Return `value` as a float if it is at least zero and below one, else raise `InputError`.

    Examples
    --------
    >>> require_fraction("beta", 1.0)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: beta must be a number at least 0 and below 1, got 1.0
    """
    if not (_is_finite(value) and 0 <= value < 1):
        raise InputError(f"{name} must be a number at least 0 and below 1, got {value!r}")
    return float(value)


def require_count(name: str, value: int, *, least: int = 1) -> int:
    """Return `value` if it is a whole number, at least `least`, else raise `InputError`.

    Examples
    --------
    >>> require_count("K", 2.5)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: K must be a whole number, at least 1, got 2.5
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    # bool is an int in Python, but M=True is a mistake.
    if isinstance(value, bool) or number < least:
        raise InputError(f"{name} must be a whole number, at least {least}, got {value!r}")
    return number


class ParsedPiece(NamedTuple):
    """A name with numbers in parentheses, by position and by keyword."""

    name: str
    positional: tuple[float, ...]
    named: dict[str, float]


def parse_piece(text: str) -> ParsedPiece:
    """Parse ``name(number, ..., keyword=number)``; the parentheses may be missing.

    Examples
    --------
    >>> parse_piece("nesterov(1, beta=0.3)")
    ParsedPiece(name='nesterov', positional=(1.0,), named={'beta': 0.3})
    """
    pattern = r"\s*([A-Za-z][\w.:-]*)\s*(?:\((.*)\))?\s*"
    found = re.fullmatch(pattern, text, re.DOTALL) if isinstance(text, str) else None
    if found is None:
        raise InputError(f"'{text}' is not a name with numbers, such as cv or nesterov(1, 0.3)")
    positional: list[float] = []
    named: dict[str, float] = {}
    arguments = (found[2] or "").strip()
    for argument in arguments.split(",") if arguments else []:
        key, equals, value = argument.rpartition("=")
        key = key.strip()
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"'{text}': '{argument.strip()}' is not a number") from None
        if key in named:
            raise InputError(f"'{text}' gives {key} twice")
        if not equals and named:
            raise InputError(f"'{text}': numbers by position come before those by keyword")
        if equals:
            named[key] = number
        else:
            positional.append(number)
    return ParsedPiece(found[1].lower(), tuple(positional), named)


def _is_finite(value: object) -> bool:
    # NumPy's scalars are Real too; True is not a number here.
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


# --- Arrays of numbers: their type, their check, their hash.

Array: TypeAlias = "npt.NDArray[np.float64]"

# The square of a larger number overflows in single precision, in which local states are kept.
LARGEST = 1e18


def content_hash(header: str, *arrays: npt.NDArray[np.generic]) -> str:
    """Return a hash of a line of text and the bytes of some arrays."""
    import numpy as np

    digest = hashlib.sha256(header.encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def as_numbers(name: str, values: Any) -> Array:
    """Return `values` as a contiguous array of finite numbers, or say what they are instead."""
    import numpy as np

    try:
        array: Array = np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers in an array, got {values!r:.60}") from None
    if not np.isfinite(array).all():
        raise InputError(f"{name} has NaN or infinite entries")
    return array


def as_data(name: str, values: Any) -> Array:
    """Return `values` as `as_numbers` does; refuse what no local state can be multiplied with.

    Examples
    --------
    >>> as_data("X", [1.0, -1e300])
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: X has an entry of -1e+300, and squares overflow above 1e+18: scale it
    """
    array = as_numbers(name, values)
    too_large = array[abs(array) > LARGEST]
    if too_large.size:
        raise InputError(
            f"{name} has an entry of {too_large[0]:g}, and squares overflow above {LARGEST:g}: "
            "scale it"
        )
    return array


def signs_advice(labels: Array) -> str:
    """Say how to write two classes as -1 and +1; nothing for any other number of classes.

    Examples
    --------
    >>> import numpy as np
    >>> signs_advice(np.array([0.0, 1.0, 1.0]))
    '; two classes become these by y = np.where(y == 1, 1.0, -1.0)'
    """
    import numpy as np

    classes = np.unique(labels)
    if len(classes) != 2:
        return ""
    return f"; two classes become these by y = np.where(y == {classes[1]:.17g}, 1.0, -1.0)"
