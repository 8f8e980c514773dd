"""Step sizes that fall over rounds, written once for the simulator, PyTorch and Flower."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from fedac.errors import InputError
from fedac.require import require_positive

# How each form depends on the round r = 1, 2, ... and on the number in its parentheses.
FORMS: dict[str, Callable[[int, float], float]] = {
    "1/r": lambda r, c: 1 / r,
    "1/sqrt(r)": lambda r, c: 1 / math.sqrt(r),
    "inverse(c)": lambda r, c: 1 / (1 + (r - 1) / c),
    "halve(c)": lambda r, c: 0.5 ** ((r - 1) // c),
}


@dataclass(frozen=True, slots=True)
class Decay:
    """A step size that falls from round to round; within a round it is constant.

    Parameters
    ----------
    start : float
        The step size of the first round.
    by : str
        What it is multiplied by in round r = 1, 2, ...: ``"1/r"``, ``"1/sqrt(r)"``,
        ``"inverse(c)"``, which is 1/(1 + (r - 1)/c), or ``"halve(c)"``, which halves it every c
        rounds.

    Examples
    --------
    >>> eta = Decay(0.5, "1/sqrt(r)")
    >>> [eta.at(r) for r in (0, 3, 24)]
    [0.5, 0.25, 0.1]
    >>> Decay(0.5, "halve(10)").at(20)
    0.125
    """

    start: float
    by: str

    def __post_init__(self) -> None:
        require_positive("the start of a decay", self.start)
        _parse(self.by)

    def at(self, r: int) -> float:
        """Return the step size of round r, counted from 0."""
        form, c = _parse(self.by)
        return self.start * FORMS[form](r + 1, c)


def _parse(by: str) -> tuple[str, float]:
    """Return the form of a decay and its number, 1 for a form without one."""
    if by in FORMS and "(c)" not in by:
        return by, 1.0
    found = re.fullmatch(r"(inverse|halve)\(([^()]+)\)", by) if isinstance(by, str) else None
    if found:
        try:
            return f"{found[1]}(c)", require_positive("c", float(found[2]))
        except ValueError:  # not a number, or not above 0
            pass
    raise InputError(
        f"unknown decay {by!r}; known: {', '.join(FORMS)}, with a number c of rounds above 0"
    )
