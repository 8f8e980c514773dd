# SPDX-License-Identifier: Apache-2.0
"""Checks of the names, numbers and arrays that users pass in: they raise `InputError`."""

from __future__ import annotations

import importlib
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from fedac.errors import InputError

if TYPE_CHECKING:  # the command checks options before it needs NumPy
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")
Array: TypeAlias = "npt.NDArray[np.float64]"

# Squares of larger numbers overflow in single precision, in which local states are kept.
LARGEST = 1e18


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for an unknown name, which suggests a near one, if any.

    >>> print(unknown_name("algorithm", "fedac-1", ["fedac-i", "fedavg"]))
    unknown algorithm 'fedac-1'; did you mean 'fedac-i'? known: fedac-i, fedavg
    """
    names = sorted(known)
    near = nearest(name, names)
    hint = f"did you mean '{near}'? " if near else ""
    return InputError(f"unknown {kind} '{name}'; {hint}known: {', '.join(names)}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that the user most likely meant, None if none is near.

    It has at most one typo in every three letters, or begins or ends with `name`. Numbers in
    parentheses and hyphens do not count.

    >>> nearest("scafold", ["fedavg", "scaffold"]), nearest("moon", ["momentum", "local"])
    ('scaffold', None)
    """
    name = name.lower().partition("(")[0]
    plain = str.maketrans("", "", "-_")
    typos = {o: _count_typos(name.translate(plain), o.lower().translate(plain)) for o in known}
    found = min(typos, key=lambda other: typos[other], default=None)
    if found is not None and len(name) > 1 and typos[found] <= max(1, len(name) // 3):
        return found
    if len(name) < 3:
        return None
    longer = (o for o in typos if o.lower().startswith(name) or o.lower().endswith(name))
    return min(longer, key=len, default=None)


def _count_typos(one: str, other: str) -> int:
    """Return the fewest letters to insert, drop, replace or swap with their neighbour."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        row = [i]
        for j, b in enumerate(other, start=1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b)))
            if i > 1 and j > 1 and (a, b) == (other[j - 2], one[i - 2]):
                row[-1] = min(row[-1], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


# For every place where a user may ask for it.
NO_L1 = "an L1 penalty belongs to a method: use l2, or the method dualavg(l1)"


def look_up(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return an entry of a table, or raise `unknown_name`."""
    if name not in table:
        raise unknown_name(kind, str(name), table)
    return table[name]


def refuse_keywords(function: str, given: Mapping[str, object], instead: Mapping[str, str]) -> None:
    """Raise an error for keywords that a function does not have; `instead` names its own."""
    for name in given:
        if name in instead:
            ours = instead[name]
            raise InputError(
                f"{function} has no keyword {name}: {ours if ' ' in ours else f'use {ours}'}"
            )
        raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")


def import_named(kind: str, spec: str, is_kind: Callable[[Any], bool]) -> Any:
    """Import a user's ``module:name``, from the current folder too.

    `is_kind` tells which names of the module to list in the error for an unknown one.
    """
    module_name, _, name = spec.partition(":")
    if module_name.endswith(".py"):
        right = f"{module_name.removesuffix('.py')}:{name}"
        raise InputError(f"'{spec}': name the module without .py, as in '{right}'")
    here = str(Path.cwd())
    if here not in sys.path:  # `python -m fedac` has it, the command `fedac` does not
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            where = "from this folder or the installed packages"
        else:
            import traceback

            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"which fails in {Path(last.filename).name}, line {last.lineno}"
        raise InputError(f"cannot import the module of '{spec}' {where}: {reason}") from error
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if is_kind(value)]
        raise unknown_name(f"{kind} in module {module_name},", name, own)
    return getattr(module, name)


def require_positive(name: str, value: float) -> float:
    """Return a finite number above zero as a float.

    >>> require_positive("eta", -1.0)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: eta must be a finite number above 0, got -1.0
    """
    if not (_is_finite(value) and value > 0):
        raise InputError(f"{name} must be a finite number above 0, got {value!r}")
    return float(value)


def require_nonnegative(name: str, value: float) -> float:
    """Return a finite number that is at least zero as a float."""
    if not (_is_finite(value) and value >= 0):
        raise InputError(f"{name} must be a finite number, at least 0, got {value!r}")
    return float(value)


def require_fraction(name: str, value: float) -> float:
    """Return a number that is at least zero and below one as a float."""
    if not (_is_finite(value) and 0 <= value < 1):
        raise InputError(f"{name} must be a number at least 0 and below 1, got {value!r}")
    return float(value)


def _is_finite(value: object) -> bool:
    # NumPy's scalars are Real too; True is not a number here.
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def require_count(name: str, value: int, *, least: int = 1) -> int:
    """Return a whole number that is at least `least`."""
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


def as_numbers(name: str, values: Any) -> Array:
    """Return `values` as a contiguous array of finite numbers."""
    import numpy as np

    try:
        array: Array = np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        shown = " ".join(repr(values).split())
        raise InputError(f"{name} must be numbers in an array, got {shown:.60}") from None
    if not np.isfinite(array).all():
        raise InputError(f"{name} has NaN or infinite entries")
    return array


def as_data(name: str, values: Any) -> Array:
    """Return `values` as a contiguous array of numbers up to `LARGEST`."""
    array = as_numbers(name, values)
    too_large = array[abs(array) > LARGEST]
    if too_large.size:
        raise InputError(
            f"{name} has an entry of {too_large[0]:g}, and squares overflow above {LARGEST:g}: "
            "scale it"
        )
    return array


def content_hash(header: str, *arrays: npt.NDArray[np.generic]) -> str:
    """Return a hash of a text and the bytes of some arrays."""
    import hashlib  # not at the top: it loads OpenSSL, and the command starts without

    import numpy as np

    digest = hashlib.sha256(header.encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
