"""PyTorch models in a federation: their arrays, and local steps by `fedac.torch`'s optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedac.errors import InputError
from fedac.flower._arrays import (
    BUFFER,
    ModelArrays,
    NamedArrays,
    NDArray,
    buffers_of,
    from_record,
    with_prefix,
)
from fedac.flower._client.round import Step
from fedac.flower._task import WEIGHT, Task
from fedac.torch import LocalOptimizer
from fedac.torch._any_optimizer import WrappedOptimizer
from fedac.torch._state import is_half
from fedac.validate import require_count

Loss = Callable[[torch.nn.Module, Any], Tensor]
EVALUATION_BATCH = 1024


def torch_arrays(module: torch.nn.Module) -> ModelArrays:
    """Return a model's arrays, for the strategy to start from.

    They have the names of ``module.state_dict()``, and so have the outputs of the run: results,
    `evaluate_fn` and evaluations on clients get what ``load_state_dict`` takes.

    Parameters and floating-point buffers are averaged, a tensor with two names once. Counters and
    buffers that are not finite (masks) keep their values. Half precision travels as float32,
    because `fedac.torch` keeps sequences in float32.

    Examples
    --------
    >>> list(torch_arrays(torch.nn.BatchNorm1d(2)))
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    keys, masks = _keys(module), _masks(module)
    arrays = {name: _to_numpy(tensor) for name, tensor in _named(module).items()}
    return ModelArrays(arrays, {n: None if keys.get(n) in masks else keys.get(n) for n in arrays})


def load_torch_arrays(module: torch.nn.Module, arrays: ArrayRecord | NamedArrays) -> None:
    """Load an output, such as the result of a run, into a model.

    Examples
    --------
    >>> trained, model = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> load_torch_arrays(model, torch_arrays(trained))
    >>> bool((trained.weight == model.weight).all())
    True
    """
    found = from_record(arrays) if isinstance(arrays, ArrayRecord) else arrays
    _copy(found, _named(module))


class TorchModel:
    """A PyTorch model, its data and its loss, for `client_app`.

    Parameters
    ----------
    module : Module
        The model. The algorithm trains its parameters; its floating-point buffers are averaged.
    data : tensors or dataset
        A tuple of tensors with the same first dimension, or anything with ``len`` and ``[i]``.
    loss : callable
        ``loss(module, batch) -> scalar tensor``, the mean over the batch.
    batch_size : int or "full"
        Rows per local step, drawn with replacement; "full" takes all of them.
    metrics : callable, optional
        ``metrics(module, data) -> dict``, reported with the loss in evaluations.
    test : tensors or dataset, optional
        Held-out data for evaluations, weighted by its rows. Default: `data`.

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
        losses = []
        with seeded(self.module, task, worker):
            for t in range(task.first_step, task.first_step + task.local_steps):
                step, n = Step(t=t, seed=task.seed, worker=worker), self.n_examples
                rows = np.arange(n) if self.batch_size is None else step.rows(n, self.batch_size)
                optimizer.zero_grad()
                loss = self.loss(self.module, _batch(self.data, rows))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(float(loss.detach()))
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


@contextmanager
def seeded(module: torch.nn.Module, task: Task, worker: int) -> Iterator[None]:
    """Seed PyTorch's draws (dropout, for example) and restore the generators afterwards.

    The seed depends only on the run's seed, the client id and the round, so a client may be
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
    """Load named arrays into a model and its optimizer; a user's `own` one is wrapped."""
    algorithm = task.local_algorithm
    names = algorithm.sequences
    sent = with_prefix(names[0], arrays) | buffers_of(arrays)
    fixed = _masks(module) - set(sent)
    _copy(sent, {key: t for key, t in _sent_tensors(module).items() if key not in fixed})
    params = _sent_parameters(module)
    optimizer: LocalOptimizer
    if own is None:
        optimizer = LocalOptimizer(
            params.values(), algorithm, lr=task.hp.eta, mu=1.0, local_steps=task.local_steps
        )
    else:
        optimizer = WrappedOptimizer(own, local_steps=task.local_steps)
        optimizer.attach()
    optimizer.steps = task.first_step
    trained = set(optimizer.parameters())
    for key, p in params.items():
        if p in trained:
            optimizer.set_sequences(p, [torch.tensor(arrays[f"{s}/{key}"]) for s in names])
    optimizer.refresh()
    return optimizer


def end_steps(
    module: torch.nn.Module, arrays: NamedArrays, task: Task, optimizer: LocalOptimizer
) -> dict[str, NDArray]:
    """Return the named arrays after the local steps."""
    trained, after = set(optimizer.parameters()), dict(arrays)
    for key, p in _sent_parameters(module).items():
        if p in trained:
            pairs = zip(task.algorithm.local_sequences, optimizer.sequences(p), strict=True)
            after |= {f"{s}/{key}": _to_numpy(tensor) for s, tensor in pairs}
    for key, tensor in _sent_tensors(module).items():
        if key.startswith(BUFFER) and key in arrays:
            after[key] = _to_numpy(tensor)
    # Copies: on a CPU, arrays share the memory of tensors.
    return {key: np.array(array, arrays[key].dtype) for key, array in after.items()}


def _sent_tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model that travel if they are finite, by their keys."""
    tensors = _named(module)
    return {key: tensors[name] for name, key in _keys(module).items()}


def _sent_parameters(module: torch.nn.Module) -> dict[str, Tensor]:
    tensors = _sent_tensors(module)
    return {key: tensor for key, tensor in tensors.items() if not key.startswith(BUFFER)}


def _named(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model's state_dict; a module's extra state need not be one."""
    state = module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}


def _keys(module: torch.nn.Module) -> dict[str, str]:
    """Return the key of each tensor that travels, by name; a tensor with two names has one key."""
    parameters, first, keys = set(module.parameters()), dict[Tensor, str](), dict[str, str]()
    for name, tensor in _named(module).items():
        if tensor.is_floating_point() or tensor.requires_grad:
            key = name if tensor in parameters else f"{BUFFER}{name}"
            keys[name] = first.setdefault(tensor, key)
    return keys


def _masks(module: torch.nn.Module) -> set[str]:
    """Return the keys of buffers that are not finite."""
    buffers = _sent_tensors(module).items()
    return {key for key, t in buffers if key.startswith(BUFFER) and not t.isfinite().all()}


@torch.no_grad()
def _copy(arrays: NamedArrays, tensors: dict[str, Tensor]) -> None:
    """Copy arrays into tensors, if they have the same names and shapes."""
    for name in (*arrays, *tensors):
        sent = arrays[name].shape if name in arrays else "missing"
        own = tuple(tensors[name].shape) if name in tensors else "missing"
        if sent != own:
            raise InputError(
                f"array '{name}': the server's is {sent}, the model's {own}: does the server "
                "start from torch_arrays(model) of the same model? "
                f"Only the server has: {sorted(arrays.keys() - tensors.keys())[:3]}; only the "
                f"model has: {sorted(tensors.keys() - arrays.keys())[:3]}"
            )
    for name, tensor in tensors.items():
        tensor.copy_(torch.tensor(arrays[name]))


def _to_numpy(tensor: Tensor) -> NDArray:
    """Return a tensor as an array, half precision as float32."""
    array: NDArray = (tensor.detach().float() if is_half(tensor) else tensor.detach()).cpu().numpy()
    return array


def _count(name: str, data: Any) -> int:
    """Return the number of rows of some data; raise an error if the data is invalid."""
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
