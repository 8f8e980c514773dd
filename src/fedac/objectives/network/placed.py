# SPDX-License-Identifier: Apache-2.0
"""A network on a device: its parameters and buffers as parts of flat vectors, and its losses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.objectives.network.data import first_line
from fedac.objectives.network.layers import with_fast_pooling
from fedac.objectives.network.losses import measure
from fedac.validate import Array

if TYPE_CHECKING:
    from fedac.objectives.network.objective import Network

# Rows that go through the module at once when a loss or a metric is computed: the activations of
# more do not stay in the cache.
BLOCK = 256
# Rows of the trial batch on which a module is checked; batch normalization needs two.
TRIAL = 4


class Placed:
    """A network on a device in one precision: its module, rows and how to evaluate it."""

    def __init__(self, network: Network, *, device: str, precision: str) -> None:
        self.network = network
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError):
            raise InputError(
                f"device must be one of PyTorch's, such as 'cpu', 'cuda:0' or 'mps', got {device!r}"
            ) from None
        if self.device.type == "meta":
            raise InputError("device='meta' holds no numbers; use 'cpu', 'cuda' or 'mps'")
        self.dtype = torch.float64 if precision == "float64" else torch.float32
        self.autocast = precision == "bfloat16"
        self.module = copy.deepcopy(network.module).to(self.device, self.dtype)
        if self.device.type == "cpu":
            self.module = with_fast_pooling(self.module)
        for p in self.module.parameters():
            p.grad = None
        self.parameters = network.parameters_of(self.module)
        self.buffers = network.buffers_of(self.module)
        self.X, self.y = map(self.place, (network.X, network.y))
        self.test = None if network.test is None else tuple(map(self.place, network.test))

    def place(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device, in the precision of the parameters if it has fractions."""
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

    def forward(self, module: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Call a module, in bfloat16 where that is asked for; the output is in full precision."""
        if module is self.module and self.network.changes_input:
            arguments = (arguments[0].clone(),)  # others need these rows, too
        try:
            if not self.autocast:
                return module(*arguments)
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                return module(*arguments).to(self.dtype)
        except Exception as error:
            if module is not self.module:  # all models at once, which the back end explains
                raise InputError(first_line(error, 160)) from error
            raise InputError(
                f"the module failed on an input of shape {tuple(arguments[0].shape)}: "
                f"{first_line(error, 130)}"
            ) from error

    @contextmanager
    def repeatable(self) -> Iterator[None]:
        """Fix the random numbers that the module draws, and keep those of the caller."""
        with torch.random.fork_rng(devices=[], enabled=self.network.random):
            if self.network.random:
                torch.manual_seed(0)
            yield

    def start_loss(self) -> float:
        """Return the loss of a few rows at the start, in evaluation mode."""
        load(self.parameters, torch.as_tensor(self.network.start(1)))
        load(self.buffers, torch.as_tensor(self.network.first_buffers))
        self.module.eval()
        with torch.no_grad(), self.repeatable():
            output = self.forward(self.module, self.X[:TRIAL])
            return float(self.network.mean_loss(output, self.y[:TRIAL]))

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
        with torch.no_grad(), self.repeatable():
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
                    found[name] = measure(name, metric, output, y)
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
