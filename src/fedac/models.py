# SPDX-License-Identifier: Apache-2.0
"""Small plain networks for the command, the documentation and first tries.

A model is a function of the shape of a row and the number of outputs that returns a new
`torch.nn.Module`. `find_model` finds one by name, as in ``fedac compare --model 'mlp(128)'``.

>>> from fedac import models
>>> models.mlp(128)((64,), 10)[1]
Linear(in_features=64, out_features=128, bias=True)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedac.errors import InputError
from fedac.validate import import_named, parse_piece, require_count, unknown_name

if TYPE_CHECKING:
    from torch import Tensor, nn

Shape = tuple[int, ...]
Model = Callable[[Shape, int], "nn.Module"]


def softmax(shape: Shape, outputs: int) -> nn.Module:
    """Return one linear layer: softmax regression."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


def mlp(*widths: int) -> Model:
    """Return a model with hidden layers of these widths and ReLU. Default: one of 128."""
    sizes = [require_count("a width of mlp", width) for width in widths]

    def make(shape: Shape, outputs: int) -> nn.Module:
        from torch import nn

        layers: list[nn.Module] = [nn.Flatten()]
        last = math.prod(shape)
        for width in sizes or (128,):
            layers += [nn.Linear(last, width), nn.ReLU()]
            last = width
        return nn.Sequential(*layers, nn.Linear(last, outputs))

    return make


def cnn(shape: Shape, outputs: int) -> nn.Module:
    """Return two convolutions of 16 and 32 channels with pooling, and one linear layer.

    A row is an image (height, width) or (channels, height, width), or the pixels of a square one.
    """
    from torch import nn

    if len(shape) == 1:
        side = math.isqrt(shape[0])
        if side * side != shape[0]:
            raise InputError(
                f"cnn needs images: {shape[0]} columns are not the pixels of a square; pass X of "
                "shape (rows, channels, height, width), or use the model mlp"
            )
        shape = (1, side, side)
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InputError(f"cnn needs images of at least 4 x 4 pixels, got rows of shape {shape}")
    channels, height, width = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (channels, height, width)),
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), outputs),
    )


def char_gpt(layers: int = 2, width: int = 64, context: int = 64) -> Model:
    """Return a small transformer that predicts the next of up to `context` tokens.

    Pre-norm blocks with causal attention in heads of 16 numbers, no dropout, tied embeddings.
    """
    for name, number in {"layers": layers, "width": width, "context": context}.items():
        require_count(f"{name} of char_gpt", number)
    if width % 16:
        raise InputError(f"the width of char_gpt must be a multiple of 16, got {width}")

    def make(shape: Shape, outputs: int) -> nn.Module:
        if len(shape) != 1 or shape[0] > context:
            raise InputError(f"char_gpt needs rows of at most {context} tokens, got shape {shape}")
        return _char_gpt(int(layers), int(width), int(context), outputs)

    return make


def _char_gpt(layers: int, width: int, context: int, tokens: int) -> nn.Module:
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Tensor) -> Tensor:
            b, s, _ = x.shape
            qkv = self.qkv(self.before_attention(x)).view(b, s, 3, width // 16, 16)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(b, s, width))
            after: Tensor = x + self.mlp(self.before_mlp(x))
            return after

    class CharGPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm = nn.LayerNorm(width)
            for embedding in (self.token, self.place):
                nn.init.normal_(embedding.weight, std=0.02)

        def forward(self, tokens: Tensor) -> Tensor:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.blocks(self.token(tokens) + self.place(places))
            logits: Tensor = functional.linear(self.norm(x), self.token.weight)
            return logits

    return CharGPT()


@dataclass(frozen=True)
class Factory:
    """Makes the modules of a model for one shape of rows."""

    model: Model
    shape: Shape
    outputs: int

    def __call__(self) -> nn.Module:
        """Return a new module."""
        return self.model(self.shape, self.outputs)


MODELS: dict[str, Callable[..., Any]] = {
    "softmax": lambda: softmax, "mlp": mlp, "cnn": lambda: cnn, "char_gpt": char_gpt,
}  # fmt: skip


def find_model(name: str) -> Model:
    """Return a model by its name, such as ``mlp(128)``, or your own function as ``module:name``.

    >>> find_model("mlp(32,16)")((8,), 2)[1]
    Linear(in_features=8, out_features=32, bias=True)
    """
    if ":" in name:
        return _own_model(name)
    kind, numbers, _ = parse_piece(name)
    if kind not in MODELS:
        raise unknown_name("model", kind, [*MODELS, "module:function"])
    try:
        # Numbers are read as fractions.
        found: Model = MODELS[kind](*(int(n) if n == int(n) else n for n in numbers))
    except TypeError:
        raise InputError(f"the model {kind} does not take {len(numbers)} numbers") from None
    return found


def _own_model(name: str) -> Model:
    found = import_named("model", name, callable)
    if not callable(found):
        raise InputError(f"'{name}' must be a function that returns a torch.nn.Module")

    def make(shape: Shape, outputs: int) -> nn.Module:
        from inspect import Parameter, signature

        needed = [p for p in signature(found).parameters.values() if p.default is Parameter.empty]
        module: nn.Module = found(shape, outputs) if needed else found()
        return module

    return make
