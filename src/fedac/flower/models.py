"""What `make_model` may return: a NumPy model, or one that takes its local steps itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy.typing as npt

from fedac.flower.messages import NamedArrays
from fedac.flower.steps import ArrayList, Step
from fedac.flower.task import Task


@runtime_checkable
class Model(Protocol):
    """A NumPy model of one client."""

    n_examples: int
    """How many examples this client has: its weight if weights are used."""

    def gradient(self, w: ArrayList, step: Step) -> Sequence[npt.ArrayLike]:
        """Return the stochastic gradient at w, a list of arrays of the same shapes."""
        ...

    def evaluate(self, w: ArrayList) -> Mapping[str, float]:
        """Return metrics of the output w on this client's data; "loss" among them."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """A model that takes its local steps itself; see `TorchModel`."""

    n_examples: int

    def train(
        self, sequences: Mapping[str, NamedArrays], buffers: NamedArrays, task: Task, worker: int
    ) -> tuple[Mapping[str, NamedArrays], NamedArrays, Mapping[str, float]]:
        """Return the sequences and buffers after the task, and metrics."""
        ...

    def evaluate_arrays(self, w: NamedArrays, buffers: NamedArrays) -> Mapping[str, float]:
        """Return metrics of the output w."""
        ...
