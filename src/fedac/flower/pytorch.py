"""PyTorch clients: local steps by `fedac.torch`, batches by the shared sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedac.errors import InputError
from fedac.flower.aggregate import Array, Arrays
from fedac.flower.client import Step
from fedac.flower.messages import BUFFER, Task, from_record, part, to_record, under
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
        A tuple of tensors with one first dimension, or anything with ``len`` and ``[i]``.
    loss : callable
        ``loss(module, batch) -> scalar tensor``, the mean over the batch.
    batch_size : int
        Rows per local step, drawn with replacement.
    metrics : callable, optional
        ``metrics(module, data) -> dict``, measured beside the loss in an evaluation.

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
        # Columns; a list is a dataset, and its items are rows.
        self._tensors = isinstance(data, tuple) and all(isinstance(part, Tensor) for part in data)
        self.n_examples = _count(data, tensors=self._tensors)

    def train(
        self, sequences: Mapping[str, Arrays], buffers: Arrays, task: Task, worker: int
    ) -> tuple[Mapping[str, Arrays], Arrays, Mapping[str, float]]:
        """Take the task's local steps with `fedac.torch`'s optimizer."""
        params = dict(self.module.named_parameters())
        for arrays in sequences.values():
            _require_known(arrays, params)
        _load_buffers(self.module, buffers)
        # The server has coupled already: its hyperparameters are the ones to use.
        algorithm = replace(task.get_algorithm(), couple=lambda *, eta, mu, K: task.hp)
        optimizer = LocalOptimizer(
            params.values(), algorithm, lr=task.hp.eta, mu=1.0, local_steps=task.local_steps
        )
        optimizer.steps = task.first_step
        for name, p in params.items():
            values = [_tensor(arrays, name, p) for arrays in sequences.values()]
            optimizer.set_sequences(p, values)
        optimizer.refresh()
        self.module.train()
        with _own_draws(params.values(), (task.seed, worker, task.first_step)):
            losses = [
                self._step(optimizer, Step(t=t, seed=task.seed, worker=worker))
                for t in range(task.first_step, task.first_step + task.local_steps)
            ]
        after: dict[str, dict[str, Array]] = {name: {} for name in sequences}
        for name, p in params.items():
            for sequence, tensor in zip(sequences, optimizer.sequences(p), strict=True):
                like = sequences[sequence][name]
                after[sequence][name] = tensor.detach().cpu().numpy().astype(like.dtype)
        mean = float(np.mean(losses))
        return after, _buffers(self.module), {"loss": mean} if np.isfinite(mean) else {}

    def evaluate_arrays(self, w: Arrays, buffers: Arrays) -> Mapping[str, float]:
        """Return the mean loss of the output, and the metrics that were asked for."""
        _load(self.module, w)
        _load_buffers(self.module, buffers)
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
def _own_draws(params: Iterable[Tensor], key: tuple[int, ...]) -> Iterator[None]:
    """Let PyTorch's draws (dropout's, say) depend on a key only, and disturb nobody else's.

    So a client may be replaced between two rounds, and a resumed run is the same.
    """
    devices = {p.device for p in params if p.device.type == "cuda"}
    (seed,) = np.random.SeedSequence(key).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(seed))
        yield


def _count(data: Any, *, tensors: bool) -> int:
    """Return the number of examples, or say what data are needed."""
    if isinstance(data, tuple) and any(isinstance(part, np.ndarray) for part in data):
        raise InputError("data must be tensors: torch.from_numpy(array) makes one")
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise InputError(
            "data must be a tuple of tensors, or a dataset with len and [i], got "
            f"{type(data).__name__}"
        )
    sizes = {len(part) for part in data} if tensors else {len(data)}
    if len(sizes) != 1 or not min(sizes):
        raise InputError(f"data must have one number of examples, at least 1, got {sorted(sizes)}")
    return sizes.pop()


def torch_arrays(module: torch.nn.Module) -> ArrayRecord:
    """Return a model's arrays as the strategy's initial arrays.

    Parameters keep their names; floating-point buffers stand under ``buffer/``. Parameters in
    half precision travel as float32, in which `fedac.torch` keeps their sequences.

    Examples
    --------
    >>> list(torch_arrays(torch.nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    params = {name: _numpy(p) for name, p in module.named_parameters()}
    return to_record({**params, **under(BUFFER, _buffers(module))})


def load_torch_arrays(module: torch.nn.Module, arrays: ArrayRecord) -> None:
    """Put a run's result into a model.

    Examples
    --------
    >>> one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> load_torch_arrays(other, torch_arrays(one))
    >>> bool((one.weight == other.weight).all())
    True
    """
    values = from_record(arrays)
    _load(module, {k: v for k, v in values.items() if not k.startswith(f"{BUFFER}/")})
    _load_buffers(module, part(BUFFER, values))


def _numpy(tensor: Tensor) -> Array:
    short = tensor.dtype in (torch.bfloat16, torch.float16)
    wide = tensor.detach().to(torch.float32) if short else tensor.detach()
    array: Array = wide.cpu().numpy()
    return array


def _tensor(arrays: Arrays, name: str, like: Tensor) -> Tensor:
    if name not in arrays:
        raise InputError(f"the server sent no array '{name}': does it start from the same model?")
    if arrays[name].shape != tuple(like.shape):
        raise InputError(
            f"the server's array '{name}' has shape {arrays[name].shape}, the client's "
            f"{tuple(like.shape)}: do they have the same model?"
        )
    return torch.from_numpy(np.array(arrays[name])).to(like.device)


def _require_known(names: Iterable[str], known: Mapping[str, object]) -> None:
    for name in names:
        if name not in known:
            raise InputError(
                f"the server's array '{name}' is none of the client's: does the server start from "
                "torch_arrays of the same model?"
            )


@torch.no_grad()
def _load(module: torch.nn.Module, arrays: Arrays) -> None:
    _require_known(arrays, dict(module.named_parameters()))
    for name, p in module.named_parameters():
        p.copy_(_tensor(arrays, name, p))


@torch.no_grad()
def _load_buffers(module: torch.nn.Module, arrays: Arrays) -> None:
    named = dict(module.named_buffers())
    _require_known(arrays, named)
    for name in arrays:
        named[name].copy_(_tensor(arrays, name, named[name]))


def _buffers(module: torch.nn.Module) -> dict[str, Array]:
    return {
        name: _numpy(buffer) for name, buffer in module.named_buffers()
        if buffer.is_floating_point()
    }  # fmt: skip
