# SPDX-License-Identifier: Apache-2.0
"""Replacement layers: dropout that repeats, and faster pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# Pixels from which `HalvingPool` is faster than PyTorch's own pooling.
WORTH_HALVING = 20_000


class SeededDropout(nn.Module):
    """Dropout whose mask is a function of a key, the layer and the place of an element.

    So a client draws the same mask in any back end and chunk. `key` is a whole number, also one per
    model under `torch.vmap`. A layer that a module calls several times in a forward pass draws
    another mask every time, `uses` masks in all.
    """

    key: Tensor | None = None
    uses = 1
    _counted: Tensor | None = None
    _calls = 0

    def __init__(self, p: float, layer: int, *, whole_channels: bool, original: nn.Module) -> None:
        super().__init__()
        self.p, self.layer, self.whole_channels = p, layer, whole_channels
        self.original = original

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements, or whole channels, with probability p."""
        if not self.training or not self.p:
            return x
        assert self.key is not None
        return self.masked(x, self.key)

    def masked(self, x: Tensor, key: Tensor) -> Tensor:
        """Return x of a batch masked by `key`; with a leading axis, one key for each entry."""
        shape: tuple[int, ...] = x.shape[key.ndim :]
        if self.whole_channels:
            shape = (*shape[:2], *(1 for _ in shape[2:]))
        places = torch.arange(math.prod(shape), device=x.device).view(shape)
        if self.uses > 1:
            key = self._key_of_call(key)
        key = key.view(*key.shape, *(1 for _ in shape))
        if self.p >= 1:
            return x * 0
        drawn = _mix(_mix(key + self.layer) + places)
        keep = drawn >= int(self.p * 2**31)
        return x * keep / (1 - self.p)

    def _key_of_call(self, key: Tensor) -> Tensor:
        """Return another key for every call of a forward pass; each pass has a new `key`."""
        if key is not self._counted:
            self._counted, self._calls = key, 0
        call, self._calls = self._calls, (self._calls + 1) % self.uses
        return _mix(key + call * 0x10001) if call else key

    def forget_key(self) -> None:
        """Drop the key; the next forward pass needs another."""
        self.key = self._counted = None

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"p={self.p}"


_DROPOUTS: dict[type[nn.Module], bool] = {
    nn.Dropout: False,
    nn.Dropout1d: True,
    nn.Dropout2d: True,
    nn.Dropout3d: True,
}


def _mix(z: Tensor) -> Tensor:
    """Scramble whole numbers to 31 bits; products stay below 2^63."""
    z = (z ^ (z >> 16)) & 0x7FFFFFFF
    z = (z * 0x45D9F3B) & 0x7FFFFFFF
    z = ((z ^ (z >> 15)) * 0x45D9F3B) & 0x7FFFFFFF
    return z ^ (z >> 16)


def with_seeded_dropout(module: nn.Module) -> nn.Module:
    """Replace the dropout layers inside a module."""
    return _replaced(
        module, lambda child, n: _seeded(child, n) if type(child) in _DROPOUTS else child
    )


def _seeded(dropout: Any, layer: int) -> SeededDropout:
    whole = _DROPOUTS[type(dropout)]
    seeded = SeededDropout(float(dropout.p), layer, whole_channels=whole, original=dropout)
    return seeded.train(dropout.training)


def without_seeded_dropout(module: nn.Module) -> nn.Module:
    """Put the original dropout layers back."""
    return _replaced(
        module, lambda child, n: child.original if isinstance(child, SeededDropout) else child
    )


def seeded_dropouts(module: nn.Module) -> list[SeededDropout]:
    """Return the dropout layers of a module."""
    return [child for child in module.modules() if isinstance(child, SeededDropout)]


@contextmanager
def count_uses(module: nn.Module, original: nn.Module) -> Iterator[None]:
    """Count how often a forward pass of `module`, a copy, calls each dropout layer."""
    layers, originals = seeded_dropouts(module), seeded_dropouts(original)
    calls: list[nn.Module] = []
    hooks = [
        layer.register_forward_hook(lambda called, *_: calls.append(called)) for layer in layers
    ]
    yield
    for hook in hooks:
        hook.remove()
    for layer, into in zip(layers, originals, strict=True):
        into.uses = max(1, sum(called is layer for called in calls))


class HalvingPool(torch.autograd.Function):
    """Max pooling of 2 x 2 pixels: what PyTorch computes, several times as fast on a CPU."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest of every four pixels, and their places for the backward pass."""
        height, width = (size // 2 * 2 for size in x.shape[-2:])
        corners = (x[..., i:height:2, j:width:2] for i in (0, 1) for j in (0, 1))
        a, b, c, d = (corner.contiguous() for corner in corners)
        top, bottom = torch.maximum(a, b), torch.maximum(c, d)
        # Of equal pixels the first one counts, as in PyTorch.
        down, right_above = bottom > top, b > a
        right = right_above ^ ((right_above ^ (d > c)) & down)  # a fast torch.where
        rows, columns = (torch.arange(0, size, 2, device=x.device) for size in (height, width))
        first = rows[:, None] * x.shape[-1] + columns
        from_first = (down.to(torch.int32) * x.shape[-1]).add_(right)
        return torch.maximum(top, bottom), first + from_first

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        """Keep the places."""
        (x,), (_, places) = inputs, output
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(x, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        """Hand the gradient to the largest pixels."""
        x, places = ctx.saved_tensors
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        )
        return found


class FastMaxPool2d(nn.MaxPool2d):
    """Max pooling of 2 x 2 pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest of every four pixels."""
        if x.numel() < WORTH_HALVING:
            plain: Tensor = super().forward(x)
            return plain
        pooled: tuple[Tensor, Tensor] = HalvingPool.apply(x)  # type: ignore[no-untyped-call]
        return pooled[0]


def with_fast_pooling(module: nn.Module) -> nn.Module:
    """Replace max pooling of 2 x 2 pixels inside a module."""

    def halves(child: nn.Module) -> bool:
        if type(child) is not nn.MaxPool2d:
            return False
        numbers = (child.kernel_size, child.stride, child.padding, child.dilation)
        sizes = tuple(n if isinstance(n, tuple) else (n, n) for n in numbers)
        usual = not (child.ceil_mode or child.return_indices)
        return usual and sizes == ((2, 2), (2, 2), (0, 0), (1, 1))

    return _replaced(module, lambda child, n: FastMaxPool2d(2) if halves(child) else child)


def _replaced(module: nn.Module, new: Callable[[nn.Module, int], nn.Module]) -> nn.Module:
    """Replace layers inside a module by what `new` returns for them and their numbers."""
    # A layer that has several names is replaced under each of them.
    named = list(module.named_modules(remove_duplicate=False))
    for number, (name, child) in enumerate(named):
        if (other := new(child, number)) is not child:
            if not name:
                return other
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, other)
    return module
