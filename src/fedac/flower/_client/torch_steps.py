"""A round's local steps in PyTorch: an optimizer with its state loaded, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.flower._arrays import BUFFER, WEIGHT, NamedArrays, NDArray, buffers_of, with_prefix
from fedac.flower._client.steps import Step
from fedac.flower._state_dicts import (
    load_sent,
    load_torch_arrays,
    sent_parameters,
    sent_tensors,
    to_numpy,
)
from fedac.flower._task import Task
from fedac.torch import LocalOptimizer
from fedac.torch._any_optimizer import ForeignOptimizer
from fedac.validate import require_count


@contextmanager
def seeded(module: torch.nn.Module, task: Task, worker: int) -> Iterator[None]:
    """Seed PyTorch's draws (dropout, for example); restore the generators afterwards.

    The seed depends on the run's seed, the client's number and the round only. A client may then be
    replaced between two rounds, and a resumed run is the same.
    """
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    key = (task.seed, worker, task.first_step)
    (seed,) = np.random.SeedSequence(key).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(seed))
        yield


def begin_steps(
    module: torch.nn.Module,
    arrays: NamedArrays,
    task: Task,
    own: torch.optim.Optimizer | None = None,
) -> LocalOptimizer:
    """Load what a client works on into a model and its optimizer.

    With an optimizer of the user's `own`, return what follows its steps.
    """
    names = task.algorithm.sequences
    load_sent(module, with_prefix(names[0], arrays) | buffers_of(arrays))
    params = sent_parameters(module)
    optimizer: LocalOptimizer
    if own is None:
        optimizer = LocalOptimizer(
            params.values(), task.algorithm, lr=task.hp.eta, mu=1.0, local_steps=task.local_steps
        )
    else:
        optimizer = ForeignOptimizer(own, local_steps=task.local_steps)
        optimizer.attach()
    optimizer.steps = task.first_step
    mine = set(optimizer.parameters())
    for key, p in params.items():
        if p in mine:
            optimizer.set_sequences(p, [torch.tensor(arrays[f"{s}/{key}"]) for s in names])
    optimizer.refresh()
    return optimizer


def end_steps(
    module: torch.nn.Module, arrays: NamedArrays, task: Task, optimizer: LocalOptimizer
) -> dict[str, NDArray]:
    """Return what the client has worked on, like the arrays it began with.

    A parameter that an optimizer of the user's does not have is as it was.
    """
    mine, after = set(optimizer.parameters()), dict(arrays)
    for key, p in sent_parameters(module).items():
        if p in mine:
            pairs = zip(task.algorithm.sequences, optimizer.sequences(p), strict=True)
            after |= {f"{s}/{key}": to_numpy(tensor) for s, tensor in pairs}
    for key, tensor in sent_tensors(module).items():
        if key.startswith(BUFFER) and key in arrays:
            after[key] = to_numpy(tensor)
    # Copies: on a CPU, arrays share the memory of tensors.
    return {key: np.array(array, arrays[key].dtype) for key, array in after.items()}


# --- PyTorch models for `client_app`: clients whose local steps are those of `fedac.torch`.

Loss = Callable[[torch.nn.Module, Any], Tensor]
EVALUATION_BATCH = 1024


class TorchModel:
    """A PyTorch model, its data and its loss, for `client_app`.

    Parameters
    ----------
    module : Module
        The model. Its parameters follow the algorithm; its floating-point buffers are averaged.
    data : tensors or dataset
        A tuple of tensors with the same first dimension, or anything with ``len`` and ``[i]``.
    loss : callable
        ``loss(module, batch) -> scalar tensor``, the mean over the batch.
    batch_size : int or "full"
        Rows per local step, drawn with replacement; "full" takes all of them.
    metrics : callable, optional
        ``metrics(module, data) -> dict``, reported with the loss in evaluations.
    test : tensors or dataset, optional
        Held-out data for evaluations, whose weight is then its rows; `data` by default.

    Examples
    --------
    >>> X, y = torch.ones(4, 2), torch.ones(4, 1)
    >>> def loss(module, batch):
    ...     return torch.nn.functional.mse_loss(module(batch[0]), batch[1])
    >>> model = TorchModel(torch.nn.Linear(2, 1), (X, y), loss)
    >>> model.n_examples
    4
    """

    def __init__(
        self,
        module: torch.nn.Module,
        data: Any,
        loss: Loss,
        *,
        batch_size: int | Literal["full"] = 32,
        metrics: Callable[[torch.nn.Module, Any], Mapping[str, float]] | None = None,
        test: Any = None,
    ) -> None:
        self.module = module
        self.data = data
        self.loss = loss
        self.batch_size = None if batch_size == "full" else require_count("batch_size", batch_size)
        self.metrics = metrics
        self.test = test
        self.n_examples = _count("data", data)
        if test is not None:
            _count("test", test)

    def train(
        self, arrays: NamedArrays, task: Task, worker: int
    ) -> tuple[NamedArrays, Mapping[str, float]]:
        """Take the task's local steps with `fedac.torch`'s optimizer."""
        optimizer = begin_steps(self.module, arrays, task)
        self.module.train()
        with seeded(self.module, task, worker):
            losses = [
                self._step(optimizer, Step(t=t, seed=task.seed, worker=worker))
                for t in range(task.first_step, task.first_step + task.local_steps)
            ]
        mean = float(np.mean(losses))
        after = end_steps(self.module, arrays, task, optimizer)
        return after, {"loss": mean} if np.isfinite(mean) else {}

    def evaluate_arrays(self, arrays: NamedArrays) -> Mapping[str, float]:
        """Return the mean loss of the output on the test data, and the user's metrics."""
        load_torch_arrays(self.module, arrays)
        self.module.eval()
        data = self.data if self.test is None else self.test
        total, rows = 0.0, _count("data", data)
        with torch.no_grad():
            for start in range(0, rows, EVALUATION_BATCH):
                chosen = np.arange(start, min(start + EVALUATION_BATCH, rows))
                total += float(self.loss(self.module, _batch(data, chosen))) * len(chosen)
            metrics = {} if self.metrics is None else dict(self.metrics(self.module, data))
        return {"loss": total / rows, **metrics, WEIGHT: rows}

    def _step(self, optimizer: LocalOptimizer, step: Step) -> float:
        optimizer.zero_grad()
        n, size = self.n_examples, self.batch_size
        rows = np.arange(n) if size is None else step.rows(n, size)
        loss = self.loss(self.module, _batch(self.data, rows))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())


def _count(name: str, data: Any) -> int:
    """Return how many rows some data has, or say what is wrong with it."""
    if isinstance(data, tuple) and any(isinstance(part, np.ndarray) for part in data):
        raise InputError(f"{name} must be tensors; use torch.from_numpy(array)")
    sizes = sorted({len(part) for part in data} if _has_columns(data) else {len(data)})
    if len(sizes) != 1 or not sizes[0]:
        raise InputError(f"{name} must have the same number of rows, at least 1, got {sizes}")
    return sizes[0]


def _has_columns(data: Any) -> bool:
    """Check for a tuple of tensors, which holds columns; a list is a dataset, with rows."""
    return isinstance(data, tuple) and all(isinstance(part, Tensor) for part in data)


def _batch(data: Any, rows: Any) -> Any:
    if _has_columns(data):
        chosen = torch.from_numpy(rows)
        return tuple(tensor[chosen.to(tensor.device)] for tensor in data)
    return torch.utils.data.default_collate([data[int(row)] for row in rows])
