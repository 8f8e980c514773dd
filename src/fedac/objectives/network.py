"""Networks: any `torch.nn.Module` with its data and loss, as an objective on flat parameters."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from fedac.data.dataset import Dataset
from fedac.errors import InputError, MissingPackageError
from fedac.objectives.base import Objective, RowNumbers
from fedac.objectives.network_layers import (
    seeded_dropouts,
    with_fast_pooling,
    with_seeded_dropout,
    without_seeded_dropout,
)
from fedac.validate import Array, content_hash, look_up, require_nonnegative, unknown_name

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError:
    raise MissingPackageError("networks need PyTorch: pip install 'fedac[torch]'") from None

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(output, target)`` returns the mean loss of a batch."""
BUFFERS = ("mean", "local", "refuse")
# Rows that go through the module at once when a loss or a metric is computed.
BLOCK = 1024
# Rows of the trial batch on which a module is checked; batch normalization needs two.
TRIAL = 4


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of every row."""
    losses = functional.cross_entropy(output, target, reduction="none")
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error of every row, the mean over its outputs."""
    return ((output.reshape(target.shape) - target) ** 2).reshape(len(target), -1).mean(1)


def next_token(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of every sequence, the mean over its tokens."""
    losses = functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
    return losses.view(target.shape).mean(1)


LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "mse": mean_squared_error,
    "next-token": next_token,
}
"""The loss of every row, by name."""


def _accuracy(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(-1) == target).double().mean())


def _top_5(output: Tensor, target: Tensor) -> float:
    best = output.topk(min(5, output.shape[-1]), dim=-1).indices
    return float((best == target[..., None]).any(-1).double().mean())


def _perplexity(output: Tensor, target: Tensor) -> float:
    losses = functional.cross_entropy(output.flatten(0, -2), target.flatten())
    return math.exp(min(float(losses), 700.0))


def _r2(output: Tensor, target: Tensor) -> float:
    rest = ((output.reshape(target.shape) - target) ** 2).sum()
    total = ((target - target.mean(0)) ** 2).sum()
    return float(1 - rest / total) if float(total) else math.nan


def _mae(output: Tensor, target: Tensor) -> float:
    return float((output.reshape(target.shape) - target).abs().mean())


Metric = Callable[[Tensor, Tensor], float]


def _with_classes_last(metric: Metric, output: Tensor, target: Tensor) -> float:
    return metric(output.movedim(1, -1), target)


METRICS: dict[str, Metric] = {
    "accuracy": _accuracy, "top-5": _top_5, "perplexity": _perplexity, "r2": _r2, "mae": _mae,
}  # fmt: skip
DEFAULT_METRICS = {
    "cross-entropy": ("accuracy",),
    "mse": ("r2", "mae"),
    "next-token": ("perplexity", "accuracy"),
}


class Network(Objective):
    """The mean loss of a module over rows, as a function of its flat parameters.

    The parameters that require gradients come in the order of ``module.parameters()``. The module
    is copied and never changed.

    Parameters
    ----------
    module : nn.Module or callable
        An instance starts from its own parameters. A function without arguments, such as a class,
        is called once per seed, with PyTorch's random numbers set to the seed.
    X : array, tensor, map-style Dataset or fedac.Dataset
        The inputs, a row each. A map-style Dataset yields pairs (input, target).
    y : array or tensor, optional
        The targets: numbers, or labels of any kind. Not needed with a Dataset, nor for next-token,
        which predicts every token of a row of X from those before it.
    loss : str or callable
        "cross-entropy", "mse", "next-token", or a function ``(output, target) -> mean loss``.
        Default: cross-entropy.
    l2 : float
        Adds l2/2 times the squared length of the parameters.
    test : pair (X, y) or data set, optional
        Rows on which metrics are computed at every record.
    metrics : sequence or mapping, optional
        Metrics on the test rows: "accuracy", "top-5", "perplexity", "r2", "mae"; or functions
        ``(output, target) -> float`` by name. Default: those that fit the loss.
    buffers : "mean", "local" or "refuse"
        Buffers that change in training, such as BatchNorm's statistics: average them like the
        parameters, keep them on the clients, or raise an error.

    Examples
    --------
    >>> import torch
    >>> task = Network(torch.nn.Linear(2, 3), [[1.0, 0.0], [0.0, 1.0]], [0, 2])
    >>> task.dim, task.n_samples
    (9, 2)
    >>> round(task.value(np.zeros(9)), 6)  # log 3
    1.098612
    """

    is_network = True

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        X: Any,
        y: Any = None,
        *,
        loss: str | Loss = "cross-entropy",
        l2: float = 0.0,
        test: Any = None,
        metrics: Sequence[str] | Mapping[str, Metric] | None = None,
        buffers: str = "mean",
    ) -> None:
        self.l2 = require_nonnegative("l2", l2)
        self.buffers = buffers
        if buffers not in BUFFERS:
            raise unknown_name("buffers", str(buffers), BUFFERS)
        if isinstance(loss, str):
            look_up("loss", loss, LOSSES)
        elif not callable(loss):
            raise InputError(f"loss must be a name or a function (output, target), got {loss!r}")
        self.loss = loss
        self.classes: tuple[Any, ...] = ()
        self.clients = X.clients if isinstance(X, Dataset) else None
        self.X, self.y = self._rows(X, y, "the data")
        self.n_samples = len(self.X)
        self.weights: Array | None = None
        self._factory = None if isinstance(module, nn.Module) else _checked_factory(module)
        self.module = with_seeded_dropout(
            self._make(1) if self._factory else copy.deepcopy(cast("nn.Module", module))
        )
        self.parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise InputError("the module has no parameters that require gradients")
        self.dim = sum(p.numel() for p in self.parameters.values())
        self.metrics = self._metrics(metrics)
        self.random, self.changing = self._try()
        if self.changing and buffers == "refuse":
            raise InputError(
                f"the module changes its buffer '{self.changing[0]}' in training; use "
                "buffers='mean' or 'local', or a layer without running statistics, such as "
                "GroupNorm"
            )
        self.test: tuple[Tensor, Tensor] | None = None
        if test is not None:
            self.test = self.tested_on(test).test

    def __repr__(self) -> str:
        name = type(self.module).__name__
        return f"Network({name}, {self.dim:,} parameters, {self.n_samples:,} rows)"

    @property
    def labels(self) -> npt.NDArray[Any]:
        """The targets by which a split may divide the rows; zeros if a row has several."""
        return self.y.numpy() if self.y.ndim == 1 else np.zeros(self.n_samples, np.int64)

    def tested_on(self, test: Any) -> Self:
        """Return the same network with other test rows: a pair (X, y) or a data set."""
        new = copy.copy(self)
        X, y = test if isinstance(test, tuple) and len(test) == 2 else (test, None)
        new.test = self._rows(X, y, "the test set")
        if new.test[0].shape[1:] != self.X.shape[1:]:
            raise InputError(
                f"a row of the test set has shape {tuple(new.test[0].shape[1:])}, one of the data "
                f"{tuple(self.X.shape[1:])}"
            )
        if new.test[1].shape[1:] != self.y.shape[1:]:
            raise InputError("the targets of the test set have another shape than those of data")
        return new

    def weighted(self, weights: Array) -> Self:
        """Return the network with its rows weighted in proportion to `weights`."""
        new = copy.copy(self)
        new.__dict__.pop("_placed", None)
        new.weights = np.asarray(weights) / np.mean(weights)
        return new

    def start(self, seed: int) -> Array:
        """Return the parameters of a run before training."""
        module = self._make(seed) if self._factory else self.module
        found = [p for p in module.parameters() if p.requires_grad]
        return flat(found).double().numpy().copy()

    def module_of(self, w: Array, buffers: Array | None = None) -> nn.Module:
        """Return a copy of the module with these parameters and buffers, in evaluation mode."""
        module = without_seeded_dropout(copy.deepcopy(self.module))
        load(self._of(module), torch.as_tensor(w))
        if buffers is not None and len(buffers):
            load(self.buffers_of(module), torch.as_tensor(buffers))
        return module.eval()

    def buffers_of(self, module: nn.Module) -> list[Tensor]:
        """Return the buffers of a copy of the module that change in training."""
        named = dict(module.named_buffers())
        return [named[name] for name in self.changing]

    @property
    def averaged_buffers(self) -> int:  # type: ignore[override]
        """Numbers in the buffers that the server averages."""
        return len(self.first_buffers) if self.buffers == "mean" else 0

    def _of(self, module: nn.Module) -> list[Tensor]:
        named = dict(module.named_parameters())
        return [named[name] for name in self.parameters]

    @cached_property
    def first_buffers(self) -> Array:
        """The changing buffers before training, flat."""
        return flat(self.buffers_of(self.module)).double().numpy()

    def row_losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of every row."""
        if isinstance(self.loss, str):
            return LOSSES[self.loss](output, target)
        return torch.stack([
            self.mean_loss(one[None], y[None]) for one, y in zip(output, target, strict=True)
        ])  # fmt: skip

    def mean_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch, without the l2 term."""
        if isinstance(self.loss, str):
            return LOSSES[self.loss](output, target).mean()
        return self.loss(output, target).reshape(())

    @cached_property
    def _placed(self) -> Placed:
        return Placed(self, device="cpu", precision="float64")

    def value(self, w: Array) -> float:
        """Return F(w), in evaluation mode."""
        buffers = torch.as_tensor(self.first_buffers)
        return self._placed.evaluate(torch.as_tensor(w), buffers)[0]

    def evaluate(self, w: Array) -> dict[str, float]:
        """Return the loss and the metrics of w on the test rows."""
        buffers = torch.as_tensor(self.first_buffers)
        return self._placed.evaluate(torch.as_tensor(w), buffers)[1]

    def step_seconds(self, batch: int) -> float:
        """Return the time of one local step of one client, the fastest of three."""
        placed = Placed(self, device="cpu", precision="float32")
        for dropout in seeded_dropouts(placed.module):
            dropout.key = torch.tensor(0)
        w = torch.as_tensor(self.start(1), dtype=torch.float32)
        times, threads = [], torch.get_num_threads()
        torch.set_num_threads(1)
        for _ in range(3):
            begun = time.perf_counter()
            placed.gradient(w, placed.X[:batch], placed.y[:batch])
            times.append(time.perf_counter() - begun)
        torch.set_num_threads(threads)
        return min(times)

    def gradient(self, w: Array) -> Array:
        """Return the gradient of F at w."""
        rows = np.arange(self.n_samples)
        weights = np.ones(len(rows)) if self.weights is None else self.weights
        total = np.zeros(self.dim)
        for row, weight in zip(rows, weights, strict=True):
            total += weight * self.stochastic_gradients(w[None], rows[row : row + 1])[0]
        return total / len(rows)

    def stochastic_gradients(self, W: Array, rows: RowNumbers) -> Array:
        """Return the gradient of row rows[m] at W[m] for every m."""
        if self.changing or self.random or seeded_dropouts(self.module):
            raise InputError(
                "the reference engine takes gradients row by row, which a network with BatchNorm "
                "or dropout does not allow; use engine='network'"
            )
        placed = self._placed
        gradients = [
            placed.gradient(torch.tensor(w), placed.X[i : i + 1], placed.y[i : i + 1])
            for w, i in zip(W, rows.tolist(), strict=True)
        ]
        return np.stack([g.numpy() for g in gradients])

    def fingerprint(self) -> str:
        """Return a hash of the module, its start, the loss and the rows."""
        name = self.loss if isinstance(self.loss, str) else getattr(self.loss, "__name__", "own")
        parts = ["network", repr(self.module), name, repr(self.l2), self.buffers, self._behaviour]
        arrays = [self.start(1), self.X.numpy(), self.y.numpy()]
        arrays += [] if self.weights is None else [self.weights]
        constant = [b for n, b in self.module.named_buffers() if n not in self.changing]
        frozen = [p.detach() for p in self.module.parameters() if not p.requires_grad]
        arrays += [tensor.numpy() for tensor in (*constant, *frozen)]
        return content_hash(" ".join(parts), *arrays)

    @property
    def _behaviour(self) -> str:
        """The loss of a few rows: modules with the same layers may compute different things."""
        placed = self._placed
        with torch.no_grad():
            placed.module.eval()
            output = placed.module(placed.X[:TRIAL])
            return f"{float(self.mean_loss(output, placed.y[:TRIAL])):.6g}"

    def _rows(self, X: Any, y: Any, what: str) -> tuple[Tensor, Tensor]:
        """Return inputs and targets as tensors."""
        if isinstance(X, Dataset):
            if y is not None:
                raise InputError("y is given twice: a Dataset has its own targets")
            X, y = X.X, X.labels
            X = X.toarray() if hasattr(X, "toarray") else X
        elif y is None and hasattr(X, "__getitem__") and not hasattr(X, "shape") and len(X):
            first = X[0]
            if isinstance(first, tuple | list) and len(first) == 2 and not isinstance(X, list):
                pairs = [X[i] for i in range(len(X))]
                X = torch.stack([torch.as_tensor(np.asarray(x)) for x, _ in pairs])
                y = np.array([np.asarray(target) for _, target in pairs])
        inputs = _as_tensor(X, f"X of {what}")
        if inputs.ndim < 1 or not len(inputs):
            raise InputError(f"X of {what} has no rows")
        if y is None and self.loss == "next-token":
            if inputs.ndim != 2 or inputs.shape[1] < 2 or inputs.is_floating_point():
                raise InputError("next-token needs X of whole numbers, a row per sequence")
            return inputs[:, :-1], inputs[:, 1:].contiguous()
        if y is None:
            raise InputError(f"y is missing: the targets of {what}")
        targets = self._targets(y, what)
        if len(targets) != len(inputs):
            raise InputError(f"{what}: X has {len(inputs)} rows but y has {len(targets)}")
        return inputs, targets

    def _targets(self, y: Any, what: str) -> Tensor:
        array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
        if self.loss not in ("cross-entropy", "next-token"):
            numbers = _as_tensor(array, f"y of {what}")
            return numbers.double() if self.loss == "mse" else numbers
        whole = array.dtype.kind in "iu" or (
            array.dtype.kind == "f" and bool(np.isfinite(array).all() and (array % 1 == 0).all())
        )
        if whole and array.size and array.min() >= 0 and not self.classes:
            return torch.as_tensor(array.astype(np.int64))
        if array.dtype.kind == "f" and not whole:
            raise InputError(
                f"y of {what} has numbers such as {array.flat[np.argmax(array % 1 != 0)]:g}, which "
                "are not classes; use loss='mse'"
            )
        if array.dtype.kind == "O":
            array = array.astype(str)
        if not self.classes:
            self.classes = tuple(np.unique(array).tolist())
        places = {label: place for place, label in enumerate(self.classes)}
        try:
            codes = [places[label] for label in array.ravel().tolist()]
        except KeyError as error:
            raise InputError(f"{what} has the label {error.args[0]!r}, the data does not") from None
        return torch.tensor(codes).view(array.shape)

    def _metrics(self, given: Sequence[str] | Mapping[str, Metric] | None) -> dict[str, Metric]:
        if given is None:
            given = DEFAULT_METRICS.get(self.loss, ()) if isinstance(self.loss, str) else ()
        if isinstance(given, Mapping):
            wrong = [name for name, metric in given.items() if not callable(metric)]
            if wrong:
                raise InputError(f"the metric '{wrong[0]}' must be a function (output, target)")
            return dict(given)
        try:
            names = [given] if isinstance(given, str) else list(given)
        except TypeError:
            raise InputError(
                f"metrics must be names or functions by name, got {given!r:.60}"
            ) from None
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise InputError(
                f"metrics must be names, got {wrong[0]!r:.60}; give functions by name, as in "
                "metrics={'error': function}"
            )
        found = {name: look_up("metric", name, METRICS) for name in names}
        if self.loss != "cross-entropy":
            return found
        # Where a row has many targets, such as pixels, its classes are in the second axis.
        return {name: partial(_with_classes_last, metric) for name, metric in found.items()}

    def _make(self, seed: int) -> nn.Module:
        """Call the factory, with PyTorch's random numbers set to the seed."""
        assert self._factory is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            module = self._factory()
        if not isinstance(module, nn.Module):
            raise InputError(
                f"the factory must return a torch.nn.Module, got {type(module).__name__}"
            )
        return module

    def _try(self) -> tuple[bool, tuple[str, ...]]:
        """Train on a few rows; return whether that draws random numbers, and changed buffers."""
        module = copy.deepcopy(self.module).train()
        for dropout in seeded_dropouts(module):
            dropout.key = torch.tensor(0)
        like = next(iter(self.parameters.values()))
        x, y = self.X[:TRIAL], self.y[:TRIAL]
        x, y = (t.to(like.dtype) if t.is_floating_point() else t for t in (x, y))
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with torch.random.fork_rng(devices=[]):
            state = torch.get_rng_state()
            try:
                output = module(x)
            except Exception as error:
                raise InputError(
                    f"the module failed on {len(x)} rows, an input of shape {tuple(x.shape)} and "
                    f"type {x.dtype}: {_first_line(error)}"
                ) from error
            loss = self._try_loss(output, y)
            try:
                torch.autograd.backward(loss)
            except RuntimeError as error:
                raise InputError(f"the loss has no gradient: {_first_line(error)}") from error
            random = not torch.equal(state, torch.get_rng_state())
        changing = tuple(
            name for name, buffer in module.named_buffers() if not torch.equal(buffer, before[name])
        )
        return random, changing

    def _try_loss(self, output: Any, target: Tensor) -> Tensor:
        """Return the loss of a trial batch, or explain why it does not fit."""
        if not isinstance(output, Tensor):
            raise InputError(
                f"the module must return a tensor, got {type(output).__name__}; wrap it in a "
                "module that returns the part the loss needs"
            )
        if self.loss in ("cross-entropy", "next-token"):
            self._check_classes(output)
        if self.loss == "mse" and output.numel() != target.numel():
            raise InputError(
                f"the module's output for {len(target)} rows has shape {tuple(output.shape)}, the "
                f"targets {tuple(target.shape)}"
            )
        try:
            loss = self.mean_loss(output, target)
        except Exception as error:
            raise InputError(
                f"the loss failed on an output of shape {tuple(output.shape)} and targets of shape "
                f"{tuple(target.shape)}: {_first_line(error)}"
            ) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise InputError(f"loss must return one number, the mean over the batch; got {what}")
        if not bool(torch.isfinite(loss)):
            raise InputError("the loss at the start is not finite; scale X or check the module")
        return loss

    def _check_classes(self, output: Tensor) -> None:
        axis = 1 if self.loss == "cross-entropy" else 2
        if output.ndim <= axis or output.shape[axis] < 2:
            raise InputError(
                f"{self.loss} needs an output for each class, got shape {tuple(output.shape)}"
            )
        most = int(self.y.max())
        if most >= output.shape[axis]:
            raise InputError(
                f"y has the class {most}, but the module has {output.shape[axis]} outputs, for "
                f"classes 0 to {output.shape[axis] - 1}"
            )


class Placed:
    """A network on a device in one precision: its module, rows and how to evaluate it."""

    def __init__(self, network: Network, *, device: str, precision: str) -> None:
        self.network = network
        self.device = torch.device(device)
        self.dtype = torch.float64 if precision == "float64" else torch.float32
        self.autocast = precision == "bfloat16"
        self.module = copy.deepcopy(network.module).to(self.device, self.dtype)
        if self.device.type == "cpu":
            self.module = with_fast_pooling(self.module)
        for p in self.module.parameters():
            p.grad = None
        self.parameters = network._of(self.module)
        self.buffers = network.buffers_of(self.module)
        self.X, self.y = map(self.place, (network.X, network.y))
        self.test = None if network.test is None else tuple(map(self.place, network.test))

    def place(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device, in the precision of the parameters if it has fractions."""
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

    def forward(self, module: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Call a module, in bfloat16 where that is asked for; the output is in full precision."""
        if not self.autocast:
            return module(*arguments)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            return module(*arguments).to(self.dtype)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of one batch at w, with the l2 term, by ordinary autograd."""
        load(self.parameters, w)
        self.module.train()
        loss = self.network.mean_loss(self.forward(self.module, x), y)
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        gradient = flat_gradients(found, self.parameters)
        return gradient + self.network.l2 * w if self.network.l2 else gradient

    def evaluate(
        self, w: Tensor, buffers: Tensor, clients: Callable[[Array], Array] | None = None
    ) -> tuple[float, dict[str, float]]:
        """Return F(w) and, with test rows, the loss and the metrics on them.

        `clients` returns the mean of per-row losses for every client: adds their spread.
        """
        network = self.network
        load(self.parameters, w)
        load(self.buffers, buffers.clone())  # a later forward pass may change them in place
        self.module.eval()
        with torch.no_grad():
            losses = self._row_losses(self.X, self.y)
            weights = network.weights
            mean = losses.mean() if weights is None else (losses * weights).mean()
            value = float(mean) + network.l2 / 2 * float(w.double() @ w.double())
            found = {}
            if self.test is not None:
                X, y = self.test
                output = torch.cat([self.forward(self.module, x) for x in X.split(BLOCK)])
                tested = [
                    network.mean_loss(o, t) * len(t)
                    for o, t in zip(output.split(BLOCK), y.split(BLOCK), strict=True)
                ]
                found["loss"] = float(sum(tested)) / len(y)
                for name, metric in network.metrics.items():
                    found[name] = float(metric(output, y))
        if clients is not None:
            of_clients = np.sort(clients(losses))
            worst = of_clients[-max(1, math.ceil(len(of_clients) / 10)) :]
            found["client-loss-spread"] = float(of_clients.std())
            found["client-loss-worst"] = float(worst.mean())
        return value, found

    def _row_losses(self, X: Tensor, y: Tensor) -> Array:
        """Return the loss of every row in float64."""
        return np.concatenate([
            self.network.row_losses(self.forward(self.module, x), t).double().cpu().numpy()
            for x, t in zip(X.split(BLOCK), y.split(BLOCK), strict=True)
        ])  # fmt: skip


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one flat vector."""
    parts = [t.detach().reshape(-1).to(torch.float64) for t in tensors]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def flat_gradients(found: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Return gradients as one flat vector; zeros for parameters that were not used."""
    return torch.cat([
        torch.zeros_like(p).reshape(-1) if g is None else (g.to_dense() if g.is_sparse else g)
        .reshape(-1) for g, p in zip(found, like, strict=True)
    ])  # fmt: skip


def load(tensors: Sequence[Tensor], vector: Tensor) -> None:
    """Point tensors at the parts of a flat vector; those of another type get a copy."""
    place = 0
    for tensor in tensors:
        part = vector[place : place + tensor.numel()].view(tensor.shape)
        if not tensor.is_floating_point():
            part = part.round()  # a mean of whole numbers, to rounding
        if part.dtype == tensor.dtype and part.device == tensor.device:
            tensor.data = part
        else:
            tensor.data = part.to(tensor.device, tensor.dtype)
        place += tensor.numel()


def _checked_factory(factory: Any) -> Any:
    if not callable(factory):
        raise InputError(
            f"module must be a torch.nn.Module or a function that makes one, got {factory!r:.60}"
        )
    return factory


def _as_tensor(values: Any, what: str) -> Tensor:
    """Return finite numbers as a tensor; whole numbers become int64, others float32 or float64."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "iufb":
            raise InputError(f"{what} must be numbers, got {array.dtype}")
        tensor = torch.as_tensor(np.ascontiguousarray(array))
    if not tensor.is_floating_point():
        return tensor.to(torch.int64)
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        place = tuple(int(i) for i in bad.nonzero()[0])
        raise InputError(f"{what} has {float(tensor[place])} in row {place[0]}")
    return tensor


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
