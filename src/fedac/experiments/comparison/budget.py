"""How much a run may cost: so many rounds, megabytes or seconds."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from fedac.errors import InputError

AXES = ("rounds", "megabytes", "seconds")
UNITS = {
    "round": ("rounds", 1.0), "rounds": ("rounds", 1.0),
    "kb": ("megabytes", 1e-3), "mb": ("megabytes", 1.0), "gb": ("megabytes", 1e3),
    "ms": ("seconds", 1e-3), "s": ("seconds", 1.0), "min": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
}  # fmt: skip


class Budget(NamedTuple):
    """An amount on one of the three axes."""

    amount: float
    axis: str

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read a budget as it is typed.

        Examples
        --------
        >>> Budget.parse("90s"), Budget.parse("1.5 min").amount, Budget.parse("20 rounds").axis
        (Budget(amount=90.0, axis='seconds'), 90.0, 'rounds')
        """
        found = re.fullmatch(r"\s*([\d.]+(?:e[-+]?\d+)?)\s*([A-Za-z]+)\s*", str(text))
        try:
            if found is not None and 0 < float(found[1]) < math.inf:
                axis, factor = UNITS[found[2].lower()]
                return cls(float(found[1]) * factor, axis)
        except (KeyError, ValueError):
            pass
        raise InputError(
            "a budget is a number above 0 with a unit, such as '100 rounds', '2MB' or '60s' (also "
            f"kB, GB, ms, min and h), got '{text}'"
        )

    def __str__(self) -> str:
        if math.isinf(self.amount):
            return "the whole run"
        unit = {"rounds": " rounds", "megabytes": " MB", "seconds": " s"}[self.axis]
        return f"{self.amount:.4g}{unit}"
