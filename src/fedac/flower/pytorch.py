"""PyTorch models: their arrays, and clients whose local steps are those of `fedac.torch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedac.errors import InputError
from fedac.flower.messages import (
    BUFFER,
    NamedArrays,
    NDArray,
    buffers_of,
    from_record,
    to_record,
    with_prefix,
)
from fedac.flower.steps import Step
from fedac.flower.task import Task
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
    batch_size : int or "full"
        Rows per local step, drawn with replacement; "full" takes all of them.
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
        batch_size: int | Literal["full"] = 32,
        metrics: Callable[[torch.nn.Module, Any], Mapping[str, float]] | None = None,
    ) -> None:
        self.module = module
        self.data = data
        self.loss = loss
        self.batch_size = None if batch_size == "full" else require_count("batch_size", batch_size)
        self.metrics = metrics
        # A tuple of tensors holds columns; a list is a dataset, whose items are rows.
        self._tensors = isinstance(data, tuple) and all(isinstance(part, Tensor) for part in data)
        if isinstance(data, tuple) and any(isinstance(part, np.ndarray) for part in data):
            raise InputError("data must be tensors; use torch.from_numpy(array)")
        sizes = sorted({len(part) for part in data} if self._tensors else {len(data)})
        if len(sizes) != 1 or not sizes[0]:
            raise InputError(f"data must have the same number of rows, at least 1, got {sizes}")
        self.n_examples = sizes[0]

    def train(
        self, arrays: NamedArrays, task: Task, worker: int
    ) -> tuple[NamedArrays, Mapping[str, float]]:
        """Take the task's local steps with `fedac.torch`'s optimizer."""
        names, params = task.algorithm.sequences, dict(self.module.named_parameters())
        _load(self.module, with_prefix(names[0], arrays) | buffers_of(arrays))
        optimizer = LocalOptimizer(
            params.values(), task.algorithm, lr=task.hp.eta, mu=1.0, local_steps=task.local_steps
        )
        optimizer.steps = task.first_step
        for name, p in params.items():
            optimizer.set_sequences(p, [torch.tensor(arrays[f"{s}/{name}"]) for s in names])
        optimizer.refresh()
        self.module.train()
        with _seeded(params.values(), (task.seed, worker, task.first_step)):
            losses = [
                self._step(optimizer, Step(t=t, seed=task.seed, worker=worker))
                for t in range(task.first_step, task.first_step + task.local_steps)
            ]
        after = {
            f"{s}/{name}": tensor
            for name, p in params.items()
            for s, tensor in zip(names, optimizer.sequences(p), strict=True)
        }
        after |= _buffers(self.module)
        trained = {key: _numpy(tensor).astype(arrays[key].dtype) for key, tensor in after.items()}
        mean = float(np.mean(losses))
        return trained, {"loss": mean} if np.isfinite(mean) else {}

    def evaluate_arrays(self, arrays: NamedArrays) -> Mapping[str, float]:
        """Return the mean loss of the output, and the user's metrics."""
        _load(self.module, arrays)
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
        n, size = self.n_examples, self.batch_size
        rows = np.arange(n) if size is None else step.rows(n, size)
        loss = self.loss(self.module, self._batch(rows))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    def _batch(self, rows: Any) -> Any:
        if self._tensors:
            chosen = torch.from_numpy(rows)
            return tuple(tensor[chosen.to(tensor.device)] for tensor in self.data)
        return torch.utils.data.default_collate([self.data[int(row)] for row in rows])


def torch_arrays(module: torch.nn.Module) -> ArrayRecord:
    """Return a model's arrays, for the strategy to start from.

    Parameters keep their names; floating-point buffers get the prefix ``buffer/``. Parameters in
    half precision travel as float32, because `fedac.torch` keeps their sequences in float32.

    Examples
    --------
    >>> list(torch_arrays(torch.nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    tensors = dict(module.named_parameters()) | _buffers(module)
    return to_record({name: _numpy(tensor) for name, tensor in tensors.items()})


def load_torch_arrays(module: torch.nn.Module, arrays: ArrayRecord) -> None:
    """Load the result of a run into a model.

    Examples
    --------
    >>> trained, model = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> load_torch_arrays(model, torch_arrays(trained))
    >>> bool((trained.weight == model.weight).all())
    True
    """
    _load(module, from_record(arrays))


@torch.no_grad()
def _load(module: torch.nn.Module, arrays: NamedArrays) -> None:
    """Copy arrays into a model, if they have the names and shapes of its tensors."""
    tensors = dict(module.named_parameters()) | _buffers(module)
    for name in (*arrays, *tensors):
        sent = arrays[name].shape if name in arrays else "missing"
        own = tuple(tensors[name].shape) if name in tensors else "missing"
        if sent != own:
            raise InputError(
                f"array '{name}': the server's is {sent}, the model's {own}: does the server "
                "start from torch_arrays of the same model?"
            )
    for name, tensor in tensors.items():
        tensor.copy_(torch.tensor(arrays[name]))


def _buffers(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return the floating-point buffers of a model, with the keys of their arrays."""
    buffers = module.named_buffers()
    return {f"{BUFFER}{name}": tensor for name, tensor in buffers if tensor.is_floating_point()}


def _numpy(tensor: Tensor) -> NDArray:
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    array: NDArray = (tensor.detach().float() if half else tensor.detach()).cpu().numpy()
    return array


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
