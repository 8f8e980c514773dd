"""PyTorch clients: local steps by `fedac.torch`, batches by the shared sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.flower.messages import NamedArrays, NDArray
from fedac.flower.steps import Step
from fedac.flower.task import Task
from fedac.flower.tensors import buffers_of, load_arrays, load_buffers, to_tensors
from fedac.require import require_count
from fedac.torch import LocalOptimizer

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
    batch_size : int
        Rows per local step, drawn with replacement.
    metrics : callable, optional
        ``metrics(module, data) -> dict``, reported with the loss in evaluations.

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
        batch_size: int = 32,
        metrics: Callable[[torch.nn.Module, Any], Mapping[str, float]] | None = None,
    ) -> None:
        self.module = module
        self.data = data
        self.loss = loss
        self.batch_size = require_count("batch_size", batch_size)
        self.metrics = metrics
        # A tuple of tensors holds columns; a list is a dataset, whose items are rows.
        self._tensors = isinstance(data, tuple) and all(isinstance(part, Tensor) for part in data)
        self.n_examples = _count(data, tensors=self._tensors)

    def train(
        self, sequences: Mapping[str, NamedArrays], buffers: NamedArrays, task: Task, worker: int
    ) -> tuple[Mapping[str, NamedArrays], NamedArrays, Mapping[str, float]]:
        """Take the task's local steps with `fedac.torch`'s optimizer."""
        params = dict(self.module.named_parameters())
        tensors = [to_tensors(arrays, params) for arrays in sequences.values()]
        load_buffers(self.module, buffers)
        optimizer = LocalOptimizer(
            params.values(), task.algorithm, lr=task.hp.eta, mu=1.0, local_steps=task.local_steps
        )
        optimizer.steps = task.first_step
        for name, p in params.items():
            optimizer.set_sequences(p, [sequence[name] for sequence in tensors])
        optimizer.refresh()
        self.module.train()
        with _seeded(params.values(), (task.seed, worker, task.first_step)):
            losses = [
                self._step(optimizer, Step(t=t, seed=task.seed, worker=worker))
                for t in range(task.first_step, task.first_step + task.local_steps)
            ]
        after: dict[str, dict[str, NDArray]] = {sequence: {} for sequence in sequences}
        for name, p in params.items():
            for sequence, tensor in zip(sequences, optimizer.sequences(p), strict=True):
                dtype = sequences[sequence][name].dtype
                after[sequence][name] = tensor.detach().cpu().numpy().astype(dtype)
        mean = float(np.mean(losses))
        return after, buffers_of(self.module), {"loss": mean} if np.isfinite(mean) else {}

    def evaluate_arrays(self, w: NamedArrays, buffers: NamedArrays) -> Mapping[str, float]:
        """Return the mean loss of the output, and the user's metrics."""
        load_arrays(self.module, w, buffers)
        self.module.eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, self.n_examples, EVALUATION_BATCH):
                rows = np.arange(start, min(start + EVALUATION_BATCH, self.n_examples))
                total += float(self.loss(self.module, self._batch(rows))) * len(rows)
            metrics = {} if self.metrics is None else dict(self.metrics(self.module, self.data))
        return {"loss": total / self.n_examples, **metrics}

    def _step(self, optimizer: LocalOptimizer, step: Step) -> float:
        optimizer.zero_grad()
        loss = self.loss(self.module, self._batch(step.rows(self.n_examples, self.batch_size)))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    def _batch(self, rows: Any) -> Any:
        if self._tensors:
            chosen = torch.from_numpy(rows)
            return tuple(tensor[chosen.to(tensor.device)] for tensor in self.data)
        return torch.utils.data.default_collate([self.data[int(row)] for row in rows])


@contextmanager
def _seeded(params: Iterable[Tensor], key: tuple[int, ...]) -> Iterator[None]:
    """Seed PyTorch's draws (dropout, for example) with a key; restore the generator afterwards.

    A client may then be replaced between two rounds, and a resumed run is the same.
    """
    devices = {p.device for p in params if p.device.type == "cuda"}
    (seed,) = np.random.SeedSequence(key).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(seed))
        yield


def _count(data: Any, *, tensors: bool) -> int:
    """Return the number of examples, or say what is wrong with the data."""
    if isinstance(data, tuple) and any(isinstance(part, np.ndarray) for part in data):
        raise InputError("data must be tensors; use torch.from_numpy(array)")
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise InputError(
            "data must be a tuple of tensors, or a dataset with len and [i], got "
            f"{type(data).__name__}"
        )
    sizes = {len(part) for part in data} if tensors else {len(data)}
    if len(sizes) != 1 or not min(sizes):
        raise InputError(f"data must have the same number of rows, at least 1, got {sorted(sizes)}")
    return sizes.pop()
