"""Numbers and tables as a page stores them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def rounded(value: float, digits: int = 6) -> float | None:
    """Keep the digits that a reader can use; None for NaN and infinity, which JSON lacks.

    Examples
    --------
    >>> rounded(0.12345678), rounded(float("nan"))
    (0.123457, None)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def columns(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return records as columns, which compress better.

    Examples
    --------
    >>> columns([{"K": 1, "M": 4}, {"K": 2, "M": 4}])
    {'K': [1, 2], 'M': [4, 4]}
    """
    return {name: [record[name] for record in records] for name in records[0]}
