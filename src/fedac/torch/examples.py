"""How much a worker counts in an average."""

from __future__ import annotations

from fedac.averaging import require_weighting
from fedac.errors import InputError
from fedac.require import require_count


class Examples:
    """Counts the examples of this process; for `weighting` and `fixed` see `Synchronizer`.

    Examples
    --------
    >>> examples = Examples("examples", None)
    >>> examples.count(32)
    >>> examples.require_counted()
    >>> examples.take(moved=True), examples.take(moved=False)
    (32.0, 1.0)
    """

    def __init__(self, weighting: str, fixed: int | None) -> None:
        self.weighting = require_weighting(weighting)
        if fixed is not None and weighting != "examples":
            raise InputError("examples is for weighting='examples' only")
        self.fixed = None if fixed is None else require_count("examples", fixed)
        self._since_average = 0
        self._since_step = False

    @property
    def are_counted(self) -> bool:
        """Whether the number is that of all steps since the last average."""
        return self.weighting == "examples" and self.fixed is None

    @property
    def first(self) -> float:
        """How much this process counts before it has taken part in a round."""
        return 0.0 if self.are_counted else float(self.fixed or 1)

    def count(self, examples: int) -> None:
        """Add the examples of a step that is about to be taken."""
        self._since_average += require_count("examples", examples, least=0)
        self._since_step = True

    def require_counted(self) -> None:
        """Refuse a step that was taken before its examples were counted."""
        if self.are_counted and not self._since_step:
            raise InputError("call averages.count(len(batch)) before every step of the optimizer")
        self._since_step = False

    def take(self, *, moved: bool) -> float:
        """Return how much this process counts; 1 if it has not moved since the last time."""
        if self.fixed is not None:
            return float(self.fixed)
        weight = float(self._since_average) if self.are_counted and moved else 1.0
        self.forget()
        return weight

    def forget(self) -> None:
        """Count from 0 again."""
        self._since_average = 0
