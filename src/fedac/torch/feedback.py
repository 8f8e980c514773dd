"""What rounding took from this worker's messages, to be sent with the next one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.rounding import INT8


class Feedback:
    """The residuals of every vector of a message, or none without `error_feedback`.

    Examples
    --------
    >>> feedback = Feedback(True, wire="int8")
    >>> feedback.residuals(vectors=2, numbers=3, dtype=torch.float32)
    [tensor([0., 0., 0.]), tensor([0., 0., 0.])]
    """

    def __init__(self, error_feedback: bool, *, wire: str) -> None:
        if error_feedback and wire != INT8:
            raise InputError("error_feedback is for wire='int8' only, which rounds at random")
        self.is_used = error_feedback
        self._residuals: list[Tensor] = []  # those of the last message that arrived

    def residuals(self, *, vectors: int, numbers: int, dtype: torch.dtype) -> list[Tensor] | None:
        """Return those of so many vectors of so many numbers; they are not to be changed."""
        if not self.is_used:
            return None
        # Older checkpoints have them in float64.
        kept = [residual.to(dtype) for residual in self._residuals]
        return kept or [torch.zeros(numbers, dtype=dtype)] * vectors

    def keep(self, residuals: list[Tensor] | None) -> None:
        """Keep what a message that arrived has left."""
        self._residuals = residuals or []

    def tensors(self) -> list[Tensor] | None:
        """Return what a checkpoint holds."""
        return self._residuals if self.is_used else None

    def load(self, tensors: list[Tensor] | None) -> None:
        """Continue from a checkpoint; one that has none begins with zeros."""
        self._residuals = list(tensors or ())
