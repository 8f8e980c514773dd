# SPDX-License-Identifier: Apache-2.0
"""A network as an objective: checks of what the user gives, and the interface to the engines."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedac.data.dataset import Dataset
from fedac.errors import InputError
from fedac.objectives.base import Objective, RowNumbers
from fedac.objectives.network.data import (
    as_array,
    as_tensor,
    encode,
    first_line,
    is_map_style,
    read_pairs,
)
from fedac.objectives.network.layers import (
    count_uses,
    seeded_dropouts,
    with_seeded_dropout,
    without_seeded_dropout,
)
from fedac.objectives.network.losses import (
    LOSSES,
    Loss,
    Metric,
    check_loss,
    find_metrics,
)
from fedac.objectives.network.placed import TRIAL, Placed, flat, load
from fedac.validate import Array, content_hash, require_nonnegative, unknown_name

BUFFERS = ("mean", "local", "refuse")


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
        check_loss(loss)
        self.loss = loss
        self.metrics = find_metrics(metrics, loss)
        self._named_metrics = tuple(self.metrics) if metrics is not None else ()
        self.clients = X.clients if isinstance(X, Dataset) else None
        self.classes: tuple[Any, ...] | None = None  # labels that are not numbers from 0
        self.X, self.y = self._rows(X, y, "the data")
        self.n_samples = len(self.X)
        self.weights: Array | None = None
        self._factory = None if isinstance(module, nn.Module) else _checked_factory(module)
        given = module if isinstance(module, nn.Module) else self._make(1)
        _check_parameters(given)
        # A function may return a module that its caller keeps.
        self.module = with_seeded_dropout(_copied(given).cpu())
        self.parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise InputError("the module has no parameters that require gradients")
        self.dim = sum(p.numel() for p in self.parameters.values())
        self.outputs: int | None = None  # of a loss over classes
        self.random, self.changing, self.changes_input = self._try()
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
        if isinstance(test, str | int | float):
            raise InputError(f"test must be a pair (X, y) or a data set, got {test!r:.60}")
        new = copy.copy(self)
        new.__dict__.pop("_placed", None)
        X, y = test if isinstance(test, tuple) and len(test) == 2 else (test, None)
        X, y = new._rows(X, y, "the test set")
        for name, ours, theirs in (("input", self.X, X), ("target", self.y, y)):
            if theirs.shape[1:] != ours.shape[1:]:
                raise InputError(
                    f"{name}s of the test set have shape {tuple(theirs.shape[1:])}, those of the "
                    f"data {tuple(ours.shape[1:])}"
                )
            if theirs.is_floating_point() and not ours.is_floating_point():
                raise InputError(f"{name}s of the data are whole numbers, but not in the test set")
        self._check_labels(y, "the test set")
        # Whole numbers may stand for fractions: a network gets them in the type of the data.
        new.test = X.to(self.X.dtype), y.to(self.y.dtype)
        return new

    def require_test(self) -> None:
        """Raise an error if metrics were asked for, but there are no rows to compute them on."""
        if self._named_metrics and self.test is None:
            raise InputError(
                f"the metric '{self._named_metrics[0]}' needs a test set: add test=(X, y)"
            )

    def weighted(self, weights: Array) -> Self:
        """Return the network with its rows weighted in proportion to `weights`."""
        new = copy.copy(self)
        new.__dict__.pop("_placed", None)
        new.weights = np.asarray(weights) / np.mean(weights)
        return new

    def start(self, seed: int) -> Array:
        """Return the parameters of a run before training."""
        module = self._make(seed) if self._factory else self.module
        found = {name: p.cpu() for name, p in module.named_parameters() if p.requires_grad}
        sizes = [{n: tuple(p.shape) for n, p in each.items()} for each in (found, self.parameters)]
        if sizes[0] != sizes[1]:
            count = sum(p.numel() for p in found.values())
            raise InputError(
                "the function must make the same layers for every seed, but it makes one module "
                f"with {count} parameters and one with {self.dim}"
            )
        return flat(list(found.values())).numpy()

    def module_of(self, w: Array, buffers: Array | None = None) -> nn.Module:
        """Return a copy of the module with these parameters and buffers, in evaluation mode."""
        module = without_seeded_dropout(copy.deepcopy(self.module))
        load(self.parameters_of(module), torch.as_tensor(w))
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

    def parameters_of(self, module: nn.Module) -> list[Tensor]:
        """Return the parameters of a copy of the module that require gradients."""
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
        try:
            if isinstance(self.loss, str):
                return LOSSES[self.loss](output, target).mean()
            loss: Any = self.loss(output, target)
        except Exception as error:  # a user's function may fail in any way
            raise InputError(
                f"the loss failed on an output of shape {tuple(output.shape)} and targets of shape "
                f"{tuple(target.shape)}: {first_line(error, 70)}"
            ) from error
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return loss.reshape(())
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise InputError(
            f"loss must return a tensor with one number, the mean over the batch; got {what:.60}"
        )

    @cached_property
    def _placed(self) -> Placed:
        placed = Placed(self, device="cpu", precision="float64")
        try:
            placed.start_loss()
        except InputError:  # a constant of the module or the loss may be in single precision
            placed = Placed(self, device="cpu", precision="float32")
        return placed

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
        with placed.repeatable():
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
        # NumPy has no bfloat16.
        arrays += [
            (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
            for tensor in (*constant, *frozen)
        ]
        return content_hash(" ".join(parts), *arrays)

    def test_fingerprint(self) -> str:
        """Return a hash of the test rows and of what the metrics compute; empty without them."""
        if self.test is None:
            return ""
        found = " ".join(
            f"{name}={value:.6g}" for name, value in self.evaluate(self.start(1)).items()
        )
        return content_hash(found, *(tensor.double().numpy() for tensor in self.test))

    @property
    def _behaviour(self) -> str:
        """The loss of a few rows: modules with the same layers may compute different things."""
        return f"{self._placed.start_loss():.6g}"

    def _rows(self, X: Any, y: Any, what: str) -> tuple[Tensor, Tensor]:
        """Return inputs and targets as tensors."""
        own_targets = isinstance(X, Dataset) or is_map_style(X)
        if own_targets and y is not None:
            raise InputError("y is given twice: a Dataset has its own targets")
        if isinstance(X, Dataset):
            X, y = X.X, X.labels
        elif own_targets:
            X, y = read_pairs(X, what)
        if y is None and self.loss != "next-token":
            raise InputError(f"y is missing: pass X and y of {what}, or a Dataset of pairs")
        inputs = as_tensor(X, f"X of {what}")
        if not inputs.numel():
            raise InputError(f"X of {what} has no rows or no columns: shape {tuple(inputs.shape)}")
        if y is None:
            if inputs.ndim != 2 or inputs.shape[1] < 2 or inputs.is_floating_point():
                raise InputError("next-token needs X of whole numbers, a row per sequence")
            return inputs[:, :-1], inputs[:, 1:].contiguous()
        labels = as_array(y, f"y of {what}")
        if len(labels) != len(inputs):
            raise InputError(f"{what}: X has {len(inputs)} rows but y has {len(labels)}")
        if not labels.size:
            raise InputError(f"y of {what} has no columns: shape {labels.shape}")
        if self.loss in ("cross-entropy", "next-token"):
            targets, self.classes = encode(labels, what, self.classes)
            return inputs, targets
        targets = as_tensor(y, f"y of {what}")
        return inputs, targets.double() if self.loss == "mse" else targets

    def _make(self, seed: int) -> nn.Module:
        """Call the factory, with PyTorch's random numbers set to the seed."""
        assert self._factory is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            try:
                module = self._factory()
            except Exception as error:  # a user's function may fail in any way
                raise InputError(
                    f"the function that makes the module failed: {first_line(error)}"
                ) from error
        if not isinstance(module, nn.Module):
            raise InputError(
                f"the function must return a torch.nn.Module, got {type(module).__name__}"
            )
        return module

    def _try(self) -> tuple[bool, tuple[str, ...], bool]:
        """Train on a few rows.

        Returns whether that draws random numbers, the buffers that it changes, and whether it
        changes its input in place.
        """
        module = _copied(self.module)
        # As in a simulation, all parameters in one precision; in half, few operations run on a CPU.
        double = any(p.dtype == torch.float64 for p in self.parameters.values())
        dtype = torch.float64 if double else torch.float32
        module = module.to(dtype).train()
        for dropout in seeded_dropouts(module):
            dropout.key = torch.tensor(0)
        x, y = self.X[:TRIAL], self.y[:TRIAL]
        x, y = (t.to(dtype) if t.is_floating_point() else t for t in (x, y))
        given, x = x, x.clone()
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with torch.random.fork_rng(devices=[]):
            state = torch.get_rng_state()
            try:
                with count_uses(module, self.module):
                    output = module(x)
            except Exception as error:
                raise InputError(
                    f"the module failed on an input of shape {tuple(x.shape)} and type {x.dtype}: "
                    f"{first_line(error, 80)}{_type_hint(x, error)}"
                ) from error
            loss = self._try_loss(output, y)
            try:
                torch.autograd.backward(loss)
            except RuntimeError as error:
                raise InputError(f"the loss has no gradient: {first_line(error)}") from error
            random = not torch.equal(state, torch.get_rng_state())
        changing = tuple(
            name for name, buffer in module.named_buffers() if not torch.equal(buffer, before[name])
        )
        return random, changing, not torch.equal(x, given)

    def _try_loss(self, output: Any, target: Tensor) -> Tensor:
        """Return the loss of a trial batch, or explain why it does not fit."""
        if not isinstance(output, Tensor):
            raise InputError(
                f"the module must return a tensor, got {type(output).__name__}; wrap it in a "
                "module that returns the part the loss needs"
            )
        shape = tuple(output.shape)
        if not shape or shape[0] != len(target):
            raise InputError(
                f"the module must return a row for each row of its input, got shape {shape} for "
                f"{len(target)} rows"
            )
        if self.loss in ("cross-entropy", "next-token"):
            self._check_classes(shape)
        if self.loss == "mse" and output.numel() != target.numel():
            raise InputError(
                f"the module's output for {len(target)} rows has shape {shape}, the targets "
                f"{tuple(target.shape)}"
            )
        loss = self.mean_loss(output, target)
        if not bool(torch.isfinite(loss)):
            raise InputError(
                "the loss at the start is not finite; scale X, or check the module and the loss"
            )
        return loss

    def _check_classes(self, shape: tuple[int, ...]) -> None:
        """Raise InputError unless an output of this shape fits the targets."""
        axis = 1 if self.loss == "cross-entropy" else 2
        if len(shape) <= axis or shape[axis] < 2:
            raise InputError(f"{self.loss} needs an output for each class, got shape {shape}")
        self.outputs = shape[axis]
        places = shape[1:axis] + shape[axis + 1 :]
        if self.y.shape[1:] != places:
            hint = ""
            if self.y.ndim == 2 and not places:
                hint = f"; use {'y[:, 0]' if self.y.shape[1] == 1 else 'y.argmax(1)'}"
            raise InputError(
                f"{self.loss} of an output of shape {shape} needs y of shape "
                f"{(self.n_samples, *places)}, got {tuple(self.y.shape)}{hint}"
            )
        self._check_labels(self.y, "the data")
        # Negative numbers may be labels, but also mean that something is missing.
        first, count = (self.classes or (0,))[0], len(self.classes or ())
        if isinstance(first, int | float) and first < 0 and count != self.outputs:
            raise InputError(
                f"y has the label {first}; with negative labels, the module needs one output for "
                f"each of the {count} labels, not {self.outputs}"
            )

    def _check_labels(self, y: Tensor, what: str) -> None:
        """Raise InputError for classes without an output."""
        if self.outputs is None:
            return
        for label in (int(y.min()), int(y.max())):
            if not 0 <= label < self.outputs:
                named = f" (classes number the labels {self.classes})" if self.classes else ""
                raise InputError(
                    f"y of {what} has the class {label}, but the module has {self.outputs} "
                    f"outputs, for classes 0 to {self.outputs - 1}{named}"
                )


def _checked_factory(factory: Any) -> Any:
    if not callable(factory):
        raise InputError(
            f"module must be a torch.nn.Module or a function that makes one, got {factory!r:.60}"
        )
    return factory


def _check_parameters(module: nn.Module) -> None:
    """Raise InputError for parameters that are not real numbers in memory."""
    for name, p in module.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise InputError(f"the parameter '{name}' is lazy: call the module on a few rows first")
        if p.is_complex():
            raise InputError(f"the parameter '{name}' is complex; use its real and imaginary parts")
        if p._backward_hooks:
            raise InputError(f"the parameter '{name}' has a hook, which a copy loses: remove it")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise InputError(f"'{name}' is on the meta device, without numbers: use to_empty first")


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever an attribute of the module does
        raise InputError(f"the module cannot be copied: {first_line(error, 120)}") from error


def _type_hint(x: Tensor, error: Exception) -> str:
    """Return what to do about inputs of a type that the module does not take."""
    if not any(word in str(error) for word in ("dtype", "Long", "Float")):
        return ""
    if x.is_floating_point():
        return "; if X are tokens, pass whole numbers"
    return "; unless X are tokens, pass floats"
