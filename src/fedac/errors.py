"""Errors for people: what was wrong, where, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what is accepted."""


class DataError(InputError):
    """A data set is missing, damaged or not of a kind we can train on."""


class StepSizeWarning(UserWarning):
    """A step size lies beyond 1/L, where the paper's theorems say nothing."""


class SlowEngineWarning(UserWarning):
    """The fast engine could not run a simulation; the message gives the reason."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Build the error for a name we do not know, with the nearest one we do.

    Examples
    --------
    >>> print(unknown_name("algorithm", "fedac-1", ["fedac-i", "fedavg"]))
    unknown algorithm 'fedac-1'; did you mean 'fedac-i'? known: fedac-i, fedavg
    """
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return InputError(f"unknown {kind} '{name}'; {hint}known: {', '.join(names)}")
