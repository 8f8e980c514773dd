# SPDX-License-Identifier: Apache-2.0
"""Gradients of many models at once: the two back ends of the network engine.

A back end is called with points W of shape (lanes, clients, parameters), buffers of the same
leading shape, a batch of rows for every client (the same for all lanes) and a key for every client.
It returns the gradients, with the l2 term, and the buffers after the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedac.errors import InputError
from fedac.objectives.network import LOSSES, Placed
from fedac.objectives.network.data import first_line
from fedac.objectives.network.layers import SeededDropout, seeded_dropouts
from fedac.objectives.network.placed import flat, load

BACKENDS = ("loop", "batched")
# Compiled code is made for one number of models; other numbers are padded to a multiple of it.
COMPILED_MODELS = 32


@dataclass(frozen=True)
class Batch:
    """The rows of one step: inputs and targets of shape (clients, rows, ...), and random keys."""

    x: Tensor
    y: Tensor
    keys: Tensor


class Compiled:
    """A function compiled as a whole, for one size of its arguments.

    Products of small matrices get code of their own where that is faster than the library's.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        how: dict[str, Any] = {"dynamic": False, "fullgraph": True}
        # No report on stderr. Older versions of PyTorch lack one of these options.
        silent = {"autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}
        known = torch._inductor.list_options()
        tuned: dict[str, Any] = {"max_autotune": True} | {
            k: v for k, v in silent.items() if k in known
        }
        self._tuned = torch.compile(function, options=tuned, **how)
        self._plain = torch.compile(function, **how)
        self._call = self._tuned

    def __call__(self, *given: Any) -> Any:
        """Call the function; compile it at the first call."""
        try:
            try:
                return self._call(*given)
            except torch._inductor.exc.InductorError:  # it has no such code for some sizes
                if self._call is self._plain:
                    raise
                self._call = self._plain
                return self._call(*given)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = f"the module cannot be compiled: {first_line(error, 130)}"
            raise InputError(f"{reason}; omit compile=True") from error


class Backend(Protocol):
    """Computes gradients of many models."""

    def __call__(self, W: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients and buffers after the step, in the shapes of W and `buffers`."""
        ...


class Loop:
    """One model after the other, by ordinary autograd: runs every module."""

    def __init__(self, placed: Placed) -> None:
        self.placed = placed
        self._dropouts = seeded_dropouts(placed.module)

    def __call__(self, W: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients and buffers after the step."""
        placed, G, after = self.placed, torch.empty_like(W), buffers
        keys = batch.keys.tolist()
        if buffers.shape[-1]:
            after = torch.empty_like(buffers)
        for client, key in enumerate(keys):
            for lane in range(len(W)):
                if placed.network.random:
                    torch.manual_seed(key)
                for dropout in self._dropouts:
                    dropout.key = batch.keys[client]
                if buffers.shape[-1]:
                    load(placed.buffers, buffers[lane, client].clone())
                x, y = batch.x[client], batch.y[client]
                G[lane, client] = placed.gradient(W[lane, client], x, y)
                if buffers.shape[-1]:
                    after[lane, client] = flat(placed.buffers).to(after)
        return G, after


class Batched:
    """All models at once: matrix products with a batch axis where possible, else `torch.vmap`."""

    def __init__(self, placed: Placed, *, compiled: bool = False) -> None:
        self.placed = placed
        self.module = placed.module
        self._dropouts = seeded_dropouts(placed.module)
        self._shapes = [p.shape for p in placed.parameters]
        self._sizes = [p.numel() for p in placed.parameters]
        self._names = list(placed.network.parameters)
        self._layers = stacked_layers(self.module, self._names)
        self._compiled: Callable[..., tuple[Tensor, Tensor]] | None = None
        if compiled:
            self._compiled = Compiled(self._pure_gradients)
            self._models: int | None = None

    def __call__(self, W: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients and buffers after the step."""
        lanes = len(W)
        models, moved = W.flatten(0, 1), buffers.flatten(0, 1)
        x, y, keys = (_for_lanes(t, lanes) for t in (batch.x, batch.y, batch.keys))
        if not self.module.training:
            self.module.train()
        if self._compiled is not None:
            G, moved = self._by_compiled_code(models, moved, x, y, keys)
        else:
            models = models.detach().requires_grad_()
            points = self._split(models)
            if self._layers is not None:
                total = self._stacked_loss(points, x, y, keys)
            else:
                losses, moved = torch.vmap(self._loss)(points, moved, x, y, keys)
                total, moved = losses.sum(), moved.detach()
            (G,) = torch.autograd.grad(total, models)
        G, l2 = G.view(W.shape), self.placed.network.l2
        return G.add_(W, alpha=l2) if l2 else G, moved.view(buffers.shape)

    def _split(self, models: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of flat models, with the models as first axis."""
        parts = models.split(self._sizes, dim=1)
        return tuple(p.unflatten(1, s) for p, s in zip(parts, self._shapes, strict=True))

    def _loss(
        self, points: tuple[Tensor, ...], buffers: Tensor, x: Tensor, y: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss of one model, and its buffers after the step."""
        placed, place = self.placed, 0
        named: dict[str, Tensor] = dict(zip(self._names, points, strict=True))
        changing = {}
        for name, buffer in zip(placed.network.changing, placed.buffers, strict=True):
            part = buffers[place : place + buffer.numel()].view(buffer.shape)
            if not buffer.is_floating_point():
                part = part.round()  # a mean of whole numbers, to rounding
            changing[name] = part.to(buffer.dtype, copy=True)
            place += buffer.numel()
        for dropout in self._dropouts:
            dropout.key = key
        output = placed.forward(functional_call, self.module, named | changing, (x,))
        for dropout in self._dropouts:  # compiled code must not leave what belongs to vmap
            dropout.forget_key()
        after = [b.reshape(-1).to(buffers.dtype) for b in changing.values()]
        return placed.network.mean_loss(output, y), torch.cat(after) if after else buffers

    def _stacked_loss(
        self, points: tuple[Tensor, ...], x: Tensor, y: Tensor, keys: Tensor
    ) -> Tensor:
        """Return the sum of the models' mean losses, by layers with a batch axis."""
        named = dict(zip(self._names, points, strict=True))
        network = self.placed.network
        assert self._layers is not None

        def apply(x: Tensor) -> Tensor:
            for layer in self._layers or ():
                x = layer(x, named, keys)
            return x

        output = self.placed.forward(apply, x)
        if network.loss == "cross-entropy" and output.ndim == 3:
            # Classes before rows, as they are in memory.
            classes_first = output.transpose(1, 2)
            return functional.cross_entropy(classes_first, y, reduction="sum") / x.shape[1]
        if isinstance(network.loss, str):
            losses = LOSSES[network.loss](output.flatten(0, 1), y.flatten(0, 1))
            return losses.sum() / x.shape[1]
        return torch.vmap(network.loss)(output, y).sum()

    def _pure_gradients(
        self, models: Tensor, buffers: Tensor, x: Tensor, y: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return gradients and buffers, by functions that can be compiled as a whole."""
        found, buffers = self._pure(self._split(models), buffers, x, y, keys)
        return torch.cat([g.flatten(1) for g in found], dim=1), buffers

    def _pure(
        self, points: tuple[Tensor, ...], buffers: Tensor, x: Tensor, y: Tensor, keys: Tensor
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        if self._layers is not None:
            return torch.func.grad(self._stacked_loss)(points, x, y, keys), buffers
        of_one = torch.func.grad(self._loss, has_aux=True)
        found: tuple[tuple[Tensor, ...], Tensor] = torch.func.vmap(of_one)(
            points, buffers, x, y, keys
        )
        return found

    def parts(self, state: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """Return flat vectors in parts, one for each parameter of the module."""
        split = [[p.contiguous() for p in each.split(self._sizes, dim=-1)] for each in state]
        return list(zip(*split, strict=True))

    def pure_gradients(
        self, W: list[Tensor], buffers: Tensor, batch: Batch
    ) -> tuple[list[Tensor], Tensor]:
        """Return what a call returns, in parts, by functions that can be part of compiled code."""
        x, y, keys = (_for_lanes(t, len(W[0])) for t in (batch.x, batch.y, batch.keys))
        points = tuple(
            w.flatten(0, 1).unflatten(1, s) for w, s in zip(W, self._shapes, strict=True)
        )
        found, moved = self._pure(points, buffers.flatten(0, 1), x, y, keys)
        G = [g.reshape(w.shape) for g, w in zip(found, W, strict=True)]
        if l2 := self.placed.network.l2:
            G = [g + l2 * w for g, w in zip(G, W, strict=True)]
        return G, moved.view(buffers.shape) if buffers.shape[-1] else buffers

    def _by_compiled_code(self, *stacked: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients and buffers, a fixed number of models at a time."""
        assert self._compiled is not None
        count = len(stacked[0])
        if self._models is None:  # pieces of equal size
            self._models = -(-count // -(-count // COMPILED_MODELS))
        pieces = []
        for first in range(0, count, self._models):
            some = [t[first : first + self._models] for t in stacked]
            if missing := self._models - len(some[0]):  # repeat the last model
                some = [torch.cat([t, t[-1:].expand(missing, *t.shape[1:])]) for t in some]
            pieces.append(self._compiled(*some))
        G, buffers = (torch.cat(part)[:count] for part in zip(*pieces, strict=True))
        return G, buffers


Layer = Callable[[Tensor, dict[str, Tensor], Tensor], Tensor]
# Layers that treat every element by itself, so that a batch axis does not matter.
ELEMENTWISE = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity,
    nn.Hardtanh, nn.ReLU6, nn.Mish,
)  # fmt: skip


def stacked_layers(module: nn.Module, names: list[str]) -> list[Layer] | None:
    """Return the layers of a plain feed-forward network as functions of stacked parameters.

    Faster than `torch.vmap`, which pays for every operation of the forward pass. None if the module
    has other layers, hooks, or parameters that are frozen or shared.
    """
    layers: list[Layer] = []

    def add(child: nn.Module, prefix: str) -> bool:
        if child._forward_hooks or child._forward_pre_hooks or child._backward_hooks:
            return False
        if type(child) is nn.Sequential:
            # Not named_children(), which leaves out a layer in its second place.
            return all(add(c, f"{prefix}{name}.") for name, c in child._modules.items() if c)
        if type(child) is nn.Linear:
            weight, bias = f"{prefix}weight", None if child.bias is None else f"{prefix}bias"
            if weight not in names or bias not in (None, *names):
                return False
            layers.append(_linear(weight, bias))
        elif type(child) in ELEMENTWISE:
            layers.append(lambda x, named, keys: child(x))
        elif type(child) is nn.Flatten and (child.start_dim, child.end_dim) == (1, -1):
            layers.append(lambda x, named, keys: x.flatten(2))
        elif type(child) is SeededDropout:
            layers.append(lambda x, named, keys: child.masked(x, keys) if child.p else x)
        else:
            return False
        return True

    shared = len(dict(module.named_parameters(remove_duplicate=False))) > len(names)
    return layers if not shared and add(module, "") else None


def _linear(weight: str, bias: str | None) -> Layer:
    def apply(x: Tensor, named: dict[str, Tensor], keys: Tensor) -> Tensor:
        # The product with the rows last in memory: up to four times faster backward for few
        # outputs, and the gradient of the weights comes out in their own order.
        W, rows = named[weight], x.flatten(1, -2).transpose(1, 2)
        if bias is None:
            z = torch.bmm(W, rows)
        elif torch.compiler.is_compiling():  # the sum becomes part of what follows
            z = torch.bmm(W, rows) + named[bias][:, :, None]
        else:
            z = torch.baddbmm(named[bias][:, :, None], W, rows)
        return z.transpose(1, 2).reshape(*x.shape[:-1], z.shape[1])

    return apply


def _for_lanes(values: Tensor, lanes: int) -> Tensor:
    """Repeat the rows of every client for all lanes: (lanes * clients, ...)."""
    if lanes == 1:
        return values
    return values.expand(lanes, *values.shape).flatten(0, 1)


def saved_bytes(placed: Placed, x: Tensor, y: Tensor) -> int:
    """Return the bytes that autograd keeps for the backward pass of one batch of one model."""
    total = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return tensor

    for dropout in seeded_dropouts(placed.module):
        dropout.key = torch.tensor(0, device=placed.device)
    placed.module.train()
    kept = [buffer.clone() for buffer in placed.buffers]
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        placed.network.mean_loss(placed.forward(placed.module, x), y)
    for buffer, before in zip(placed.buffers, kept, strict=True):
        buffer.data = before
    return total
