"""Between a PyTorch model and the arrays that travel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedac.errors import InputError
from fedac.flower.messages import (
    BUFFER,
    NamedArrays,
    NDArray,
    add_prefix,
    from_record,
    split_buffers,
    to_record,
)


def torch_arrays(module: torch.nn.Module) -> ArrayRecord:
    """Return a model's arrays, for the strategy to start from.

    Parameters keep their names; floating-point buffers get the prefix ``buffer/``. Parameters in
    half precision travel as float32, because `fedac.torch` keeps their sequences in float32.

    Examples
    --------
    >>> list(torch_arrays(torch.nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    params = {name: _numpy(p) for name, p in module.named_parameters()}
    return to_record({**params, **add_prefix(BUFFER, buffers_of(module))})


def load_torch_arrays(module: torch.nn.Module, arrays: ArrayRecord) -> None:
    """Load the result of a run into a model.

    Examples
    --------
    >>> trained, model = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> load_torch_arrays(model, torch_arrays(trained))
    >>> bool((trained.weight == model.weight).all())
    True
    """
    load_arrays(module, *split_buffers(from_record(arrays)))


@torch.no_grad()
def load_arrays(module: torch.nn.Module, parameters: NamedArrays, buffers: NamedArrays) -> None:
    """Copy arrays into all parameters of a model, and into some of its buffers."""
    named = dict(module.named_parameters())
    for name, value in to_tensors(parameters, named).items():
        named[name].copy_(value)
    load_buffers(module, buffers)


@torch.no_grad()
def load_buffers(module: torch.nn.Module, buffers: NamedArrays) -> None:
    """Copy arrays into some of a model's buffers."""
    named = dict(module.named_buffers())
    chosen = {name: buffer for name, buffer in named.items() if name in buffers}
    for name, value in to_tensors(buffers, chosen).items():
        named[name].copy_(value)


def buffers_of(module: torch.nn.Module) -> dict[str, NDArray]:
    """Return the floating-point buffers of a model."""
    buffers = dict(module.named_buffers())
    return {name: _numpy(b) for name, b in buffers.items() if b.is_floating_point()}


def to_tensors(arrays: NamedArrays, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return arrays as tensors, if they have the names and shapes of a model's tensors."""
    for name in (*arrays, *expected):
        if name not in expected:
            raise InputError(
                f"the client's model has no array '{name}': does the server start from "
                "torch_arrays of the same model?"
            )
        if name not in arrays:
            raise InputError(f"the server sent no array '{name}': does it have the same model?")
        if arrays[name].shape != tuple(expected[name].shape):
            raise InputError(
                f"the server's array '{name}' has shape {arrays[name].shape}, the client's "
                f"{tuple(expected[name].shape)}: do they have the same model?"
            )
    return {
        name: torch.from_numpy(np.array(arrays[name])).to(tensor.device)
        for name, tensor in expected.items()
    }


def _numpy(tensor: Tensor) -> NDArray:
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    array: NDArray = (tensor.detach().float() if half else tensor.detach()).cpu().numpy()
    return array
