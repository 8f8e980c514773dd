# SPDX-License-Identifier: Apache-2.0
"""PyTorch models in a federation: their arrays, `TorchModel`, and custom training loops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, Context, Message
from torch import Tensor
from torch.nn import Module

from fedac.algorithms.linear import linear_form
from fedac.errors import InputError
from fedac.flower._arrays import (
    BUFFER,
    ModelArrays,
    NamedArrays,
    buffers_of,
    from_record,
    with_prefix,
)
from fedac.flower._client.round import ClientRound, Step, client_id, signed
from fedac.flower._task import ROUND, STEPS, WEIGHT, Task
from fedac.torch import LocalOptimizer
from fedac.torch._any_optimizer import WrappedOptimizer
from fedac.torch._state import is_half
from fedac.validate import require_count

log = logging.getLogger("flwr.fedac")

EVALUATION_BATCH = 1024


def torch_arrays(module: Module) -> ModelArrays:
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


def load_torch_arrays(module: Module, arrays: ArrayRecord | NamedArrays) -> None:
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
        module: Module,
        data: Any,
        loss: Callable[[Module, Any], Tensor],
        *,
        batch_size: int | Literal["full"] = 32,
        metrics: Callable[[Module, Any], Mapping[str, float]] | None = None,
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
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
        mean = float(np.mean(losses))
        after = end_steps(self.module, arrays, task, optimizer)
        return after, {"loss": mean} if np.isfinite(mean) else {}

    def full_gradient(self, arrays: NamedArrays) -> NamedArrays:
        """Return the mean gradient of all rows at `arrays`, in evaluation mode.

        So dropout draws nothing, and running statistics stay.
        """

        def backward() -> None:
            self.module.eval()
            rows = self.n_examples
            for chosen in _chunks(rows):
                part = self.loss(self.module, _batch(self.data, chosen))
                (part * (len(chosen) / rows)).backward()

        return gradient_at(self.module, arrays, backward)

    def evaluate_arrays(self, arrays: NamedArrays) -> Mapping[str, float]:
        """Return the mean loss of the output on the test data, and the user's metrics."""
        load_torch_arrays(self.module, arrays)
        self.module.eval()
        data = self.data if self.test is None else self.test
        total, rows = 0.0, _count("data", data)
        with torch.no_grad():
            for chosen in _chunks(rows):
                total += float(self.loss(self.module, _batch(data, chosen))) * len(chosen)
            metrics = {} if self.metrics is None else dict(self.metrics(self.module, data))
        return {"loss": total / rows, **metrics, WEIGHT: rows}


class LocalTraining:
    """One round of a client with its own training loop, made by `local_training`.

    Attributes
    ----------
    optimizer : LocalOptimizer or torch.optim.Optimizer
        The optimizer whose `step` the loop calls: the strategy's algorithm, or yours.
    round : int
        The round, from 1 on.
    config : dict
        The entries of ``train_config``, and "server-round".
    """

    def __init__(
        self,
        this: ClientRound,
        model: Module,
        optimizer: torch.optim.Optimizer | None,
        full_gradient: Callable[[], object] | None,
    ) -> None:
        if optimizer is not None:
            _require_usable(optimizer, model, this.task)
        if this.asks_gradient:
            this.require_full_gradient(full_gradient, "pass full_gradient=... to local_training")
            assert full_gradient is not None
            this.gradient = gradient_at(model, this.broadcast, full_gradient)
        self._this, self._model = this, model
        self._after: NamedArrays | None = None
        self._steps = begin_steps(model, this.local, this.task, optimizer)
        self._parameters = {*model.parameters()}
        self.optimizer: Any = self._steps if optimizer is None else optimizer
        self.round, self.config = this.task.round, this.config

    def reply(self, metrics: Mapping[str, Any]) -> Message:
        """Return the reply of this round, after the block.

        `metrics` are numbers, among them "num-examples", this client's weight with
        ``weighting="examples"``. "local-steps", the number of steps that the loop took, is added.
        """
        with signed(self._this.client):
            if self._after is None:
                raise InputError("call local.reply when the block of local_training has ended")
            taken = self._steps.steps - self._this.task.first_step
            if isinstance(metrics, Mapping):
                for name in (STEPS, ROUND):
                    if name in metrics:
                        raise InputError(f"metric '{name}' is added here; give yours another name")
                metrics = {**metrics, STEPS: taken}
            return self._this.reply(self._after, taken, metrics)

    def close(self) -> None:
        """Take the sequences out of the optimizer, and load the output into the model."""
        this, steps = self._this, self._steps.steps - self._this.task.first_step
        if not steps:
            raise InputError("the loop took no local step: it must call local.optimizer.step()")
        this.task.require_steps(steps)
        if {*self._model.parameters()} - self._parameters:
            raise InputError(
                "the model's parameters changed during the block: a layer was replaced, and its "
                "replacement was not trained; change the model before local_training"
            )
        self._after = end_steps(self._model, this.local, this.task, self._steps)
        if all(np.array_equal(this.local[key], array) for key, array in self._after.items()):
            log.warning(
                "round %d: %d steps changed nothing; was loss.backward() called?", self.round, steps
            )
        if self.optimizer is self._steps:
            self._steps.eval()


@contextmanager
def local_training(
    message: Message,
    context: Context,
    model: Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    full_gradient: Callable[[], object] | None = None,
    memory_folder: str | Path | None = None,
) -> Iterator[LocalTraining]:
    """Train with your own loop, in your own train function.

    On entry the server's arrays are loaded into the model. ``local.optimizer`` takes the local
    steps of the strategy's algorithm, from the state that the server sent. After the block,
    ``return local.reply({...})`` sends the result.

    Parameters
    ----------
    message : Message
        The message of the train function.
    context : Context
        The context of the train function.
    model : Module
        The model, on its device. The server starts from ``torch_arrays`` of the same model.
    optimizer : Optimizer, optional
        Your own optimizer over the model's parameters (AdamW, for example) instead. It is for
        algorithms whose clients take plain SGD steps: "fedavg" with any server rule, such as
        "fedavgm", "fedadam" or "diloco". Clients then ignore the strategy's eta.
    full_gradient : callable, optional
        For "mimelite": ``full_gradient()`` adds the gradient of the mean loss of all rows of the
        client to the parameters' ``grad``, with one or more calls of ``backward``. It is called
        once, before the block, with the server's arrays in the model. Others do not call it.
    memory_folder : path, optional
        As in `client_app`.

    Notes
    -----
    Batches, epochs, clipping, gradient accumulation and schedulers are yours. The loop may take any
    number of steps, and it may differ between clients; the algorithm's coefficients are for the
    strategy's ``local_steps``. Only "scaffnew", "led" and "fedavg-weighted" need exactly that many.
    The metric "local-steps" has the number taken.

    A scheduler may change the lr of ``local.optimizer``: the step (eta and gamma of FedAc) is
    multiplied by lr over the strategy's eta. Algorithms with control variates, and others that send
    more than their sequences, raise an error if it does; use ``eta=fedac.Decay(...)`` on the server
    instead.

    While training, the parameters hold w_md, where the next gradient is taken. To evaluate within
    the loop, call ``local.optimizer.eval()`` before and ``local.optimizer.train()`` after it. When
    the block has ended, they hold the client's output.

    In the block, PyTorch's draws (shuffling, dropout) depend only on the run's seed, the client id
    and the round.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from fedac.flower import FedAc, InProcessGrid, torch_arrays
    >>> X = torch.randn(64, 2)
    >>> data = torch.utils.data.TensorDataset(X, X.sum(dim=1, keepdim=True))
    >>> app = ClientApp()
    >>> @app.train()
    ... def train(message, context):
    ...     model = torch.nn.Linear(2, 1)
    ...     with local_training(message, context, model) as local:
    ...         for x, y in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
    ...             local.optimizer.zero_grad()
    ...             loss = torch.nn.functional.mse_loss(model(x), y)
    ...             loss.backward()
    ...             local.optimizer.step()
    ...     return local.reply({"train_loss": loss.item(), "num-examples": len(data)})
    >>> strategy = FedAc(eta=0.1, mu=0.1, local_steps=4, evaluate_every=0)
    >>> start = torch_arrays(torch.nn.Linear(2, 1))
    >>> result = strategy.start(InProcessGrid(app, 2), start, num_rounds=2)
    >>> result.history.metric("train/local-steps")
    [(1, 4.0), (2, 4.0)]
    """
    with signed(client_id(context)):
        this = ClientRound(message, context, memory_folder)
        with seeded(model, this.task, this.client):
            local = LocalTraining(this, model, optimizer, full_gradient)
            yield local
        local.close()


def _require_usable(optimizer: object, model: Module, task: Task) -> None:
    """Raise an error if the user's optimizer cannot replace the algorithm's local steps."""
    if isinstance(optimizer, LocalOptimizer):
        raise InputError(
            "leave out optimizer: local.optimizer has the strategy's algorithm and its state"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer must be one of PyTorch, got {type(optimizer).__name__}")
    trained = {p for group in optimizer.param_groups for p in group["params"]}
    if trained.isdisjoint(model.parameters()):
        raise InputError("the optimizer has no parameter of the model; make it after the model")
    form = linear_form(task.local_algorithm, task.hp)
    if not task.algorithm.is_plain or form.query != (1.0,):
        raise InputError(
            f"'{task.algorithm.name}' has its own local steps: leave out optimizer, and call "
            "local.optimizer.step(). Your own optimizer works with 'fedavg' and any server rule, "
            "such as 'fedavgm', 'fedadam' or 'diloco'"
        )


@contextmanager
def seeded(module: Module, task: Task, worker: int) -> Iterator[None]:
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
    module: Module, arrays: NamedArrays, task: Task, own: torch.optim.Optimizer | None = None
) -> LocalOptimizer:
    """Load named arrays into a model and its optimizer; a user's `own` one is wrapped."""
    algorithm = task.local_algorithm
    names, tensors = algorithm.sequences, _sent_tensors(module)
    _load_sent(module, with_prefix(names[0], arrays) | buffers_of(arrays))
    params = {key: tensor for key, tensor in tensors.items() if not key.startswith(BUFFER)}
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


def gradient_at(
    module: Module, arrays: NamedArrays, backward: Callable[[], object]
) -> dict[str, npt.NDArray[Any]]:
    """Return the gradient that `backward` computes with `arrays` in the model, by key."""
    _load_sent(module, arrays)
    module.zero_grad()
    backward()
    found = {
        key: np.zeros(tensor.shape) if tensor.grad is None else np.array(_to_numpy(tensor.grad))
        for key, tensor in _sent_tensors(module).items()
        if not key.startswith(BUFFER)
    }
    module.zero_grad()
    return found


def end_steps(
    module: Module, arrays: NamedArrays, task: Task, optimizer: LocalOptimizer
) -> NamedArrays:
    """Return the named arrays after the local steps."""
    trained, after = set(optimizer.parameters()), dict(arrays)
    for key, tensor in _sent_tensors(module).items():
        if tensor in trained:
            pairs = zip(task.algorithm.local_sequences, optimizer.sequences(tensor), strict=True)
            after |= {f"{s}/{key}": _to_numpy(value) for s, value in pairs}
        elif key.startswith(BUFFER) and key in arrays:
            after[key] = _to_numpy(tensor)
    # Copies: on a CPU, arrays share the memory of tensors.
    return {key: np.array(array, arrays[key].dtype) for key, array in after.items()}


def _load_sent(module: Module, sent: NamedArrays) -> None:
    """Load what travels into a model, by its keys; a mask keeps its values."""
    fixed = _masks(module) - set(sent)
    tensors = _sent_tensors(module)
    _copy(sent, {key: tensor for key, tensor in tensors.items() if key not in fixed})


def _named(module: Module) -> dict[str, Tensor]:
    """Return the tensors of a model's state_dict; a module's extra state need not be one."""
    state = module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}


def _keys(module: Module) -> dict[str, str]:
    """Return the key of each tensor that travels, by name; a tensor with two names has one key."""
    parameters, first, keys = set(module.parameters()), dict[Tensor, str](), dict[str, str]()
    for name, tensor in _named(module).items():
        if tensor.is_floating_point() or tensor.requires_grad:
            key = name if tensor in parameters else f"{BUFFER}{name}"
            keys[name] = first.setdefault(tensor, key)
    return keys


def _sent_tensors(module: Module) -> dict[str, Tensor]:
    """Return the tensors of a model that travel if they are finite, by their keys."""
    tensors = _named(module)
    return {key: tensors[name] for name, key in _keys(module).items()}


def _masks(module: Module) -> set[str]:
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


def _to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array, half precision as float32."""
    tensor = tensor.detach()
    return (tensor.float() if is_half(tensor) else tensor).cpu().numpy()


def _chunks(rows: int) -> Iterator[npt.NDArray[np.int64]]:
    """Return the numbers of all rows, in batches that fit into memory."""
    for start in range(0, rows, EVALUATION_BATCH):
        yield np.arange(start, min(start + EVALUATION_BATCH, rows))


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
