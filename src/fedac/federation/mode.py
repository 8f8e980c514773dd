# SPDX-License-Identifier: Apache-2.0
"""How the server waits for clients: in rounds, until a deadline, or asynchronously.

The simulator and Flower share these rules. `fedac.federation.timeline` describes the modes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedac.algorithms import Algorithm
from fedac.errors import InputError
from fedac.federation.link import LONGEST, parse_seconds
from fedac.validate import require_count, require_positive

MODES = "rounds, until(10s), deadline(30s) or buffer(10)"


@dataclass(frozen=True)
class Mode:
    """How the server waits for clients.

    >>> Mode.parse("deadline(0.5min)"), str(Mode.parse("buffer( 10 )"))
    (Mode(kind='deadline', number=30.0), 'buffer(10)')
    """

    kind: str = "rounds"
    number: float = 0.0  # seconds, or messages of a buffer

    @classmethod
    def parse(cls, text: str | Mode) -> Mode:
        """Parse a mode such as "deadline(30s)"."""
        if isinstance(text, Mode):
            return text
        kind, _, rest = str(text).strip().partition("(")
        number = rest.removesuffix(")").strip()
        if kind == "rounds" and not rest:
            return cls()
        if rest.endswith(")") and kind == "buffer" and number.isdecimal():
            return cls(kind, require_count("the messages of a buffer", int(number)))
        if rest.endswith(")") and kind in ("until", "deadline"):
            seconds = parse_seconds(f"the time of {kind}", number)
            if not 1e-9 <= seconds <= LONGEST:
                raise InputError(
                    f"the time of {kind} is from a nanosecond to 70 years, got '{number}'"
                )
            return cls(kind, seconds)
        raise InputError(f"mode is {MODES}; got '{text}'")

    def __str__(self) -> str:
        if self.kind == "rounds":
            return self.kind
        return f"{self.kind}({self.number:.12g}{'' if self.kind == 'buffer' else 's'})"

    @property
    def is_asynchronous(self) -> bool:
        """Whether clients start at any time."""
        return self.kind == "buffer"

    def require_method(self, algorithm: Algorithm, *, absent: bool = False) -> None:
        """Raise InputError if a method cannot run in this mode, or with clients that are absent."""
        if absent or self.kind != "rounds":
            algorithm.require_all(some=True)
        if self.is_asynchronous and algorithm.pooled:
            raise InputError(
                f"'{algorithm.name}' does not run in mode='{self}': its server keeps the sum of "
                "all moves, and stale moves count less there; use rounds, a deadline, or 'cv'"
            )

    def require_places(self, places: int, *, option: str) -> None:
        """Raise InputError if a buffer takes more messages than there are clients at work."""
        if self.is_asynchronous and self.number > places:
            raise InputError(
                f"{self}: the server would wait for more messages than the {places} clients at "
                f"work send; use buffer({places}) or less, or a larger {option}"
            )


ROUNDS = Mode()


def require_oversample(oversample: float, modes: Iterable[Mode]) -> None:
    """Raise InputError for a bad `oversample`, or one that none of these modes has."""
    if oversample != 1 and not any(mode.kind == "deadline" for mode in modes):
        raise InputError("oversample needs mode deadline(30s): other modes start whom they want")
    if require_positive("oversample", oversample) < 1:
        raise InputError(f"oversample must be at least 1, got {oversample:g}")


def started(wanted: int, oversample: float) -> int:
    """Return how many clients a round with a deadline starts.

    >>> started(10, 1.3), started(3, 1.7)
    (13, 6)
    """
    return max(wanted, math.ceil(oversample * wanted - 1e-9))
