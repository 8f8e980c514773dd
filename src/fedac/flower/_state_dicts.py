"""PyTorch models and arrays: those of their `state_dict`, and those that travel."""

from __future__ import annotations

from collections.abc import Set

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedac.errors import InputError
from fedac.flower._arrays import BUFFER, Layout, ModelArrays, NamedArrays, NDArray, from_record
from fedac.torch._state import is_half

NAMES_SHOWN = 3


def torch_arrays(module: torch.nn.Module) -> ModelArrays:
    """Return a model's arrays, for the strategy to start from.

    They have the names of ``module.state_dict()``, and so have the outputs of the run: results,
    `evaluate_fn` and evaluations on clients get what ``load_state_dict`` takes.

    Parameters and floating-point buffers are averaged, a tensor with two names once. Counters and
    buffers that are not finite (masks) stay as they are here. Half precision travels as float32,
    because `fedac.torch` keeps sequences in float32.

    Examples
    --------
    >>> list(torch_arrays(torch.nn.BatchNorm1d(2)))
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    keys, masks = _keys(module), _masks(module)
    arrays = {name: to_numpy(tensor) for name, tensor in _named(module).items()}
    layout = {name: None if keys.get(name) in masks else keys.get(name) for name in arrays}
    fixed = {name: array for name, array in arrays.items() if layout[name] is None}
    return ModelArrays(arrays, Layout(layout, fixed))


@torch.no_grad()
def load_torch_arrays(module: torch.nn.Module, arrays: ArrayRecord | NamedArrays) -> None:
    """Load an output, the result of a run say, into a model.

    Examples
    --------
    >>> trained, model = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> load_torch_arrays(model, torch_arrays(trained))
    >>> bool((trained.weight == model.weight).all())
    True
    """
    found = from_record(arrays) if isinstance(arrays, ArrayRecord) else arrays
    _copy(found, _named(module))


@torch.no_grad()
def load_sent(module: torch.nn.Module, arrays: NamedArrays) -> None:
    """Load what travels into a model."""
    tensors, fixed = sent_tensors(module), _masks(module) - set(arrays)
    _copy(arrays, {key: tensor for key, tensor in tensors.items() if key not in fixed})


def sent_tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model that travel if they are finite, by their keys.

    Examples
    --------
    >>> list(sent_tensors(torch.nn.BatchNorm1d(2)))
    ['weight', 'bias', 'buffer/running_mean', 'buffer/running_var']
    """
    tensors = _named(module)
    return {key: tensors[name] for name, key in _keys(module).items()}


def sent_parameters(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model that travel, by their keys."""
    tensors = sent_tensors(module)
    return {key: tensor for key, tensor in tensors.items() if not key.startswith(BUFFER)}


def to_numpy(tensor: Tensor) -> NDArray:
    """Return a tensor as an array, half precision as float32."""
    array: NDArray = (tensor.detach().float() if is_half(tensor) else tensor.detach()).cpu().numpy()
    return array


def _named(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model's state_dict; a module's extra state need not be one."""
    state = module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}


def _keys(module: torch.nn.Module) -> dict[str, str]:
    """Return by name under which key a tensor travels: under its first name, if it has two."""
    parameters, first, keys = set(module.parameters()), dict[Tensor, str](), dict[str, str]()
    for name, tensor in _named(module).items():
        if tensor.is_floating_point() or tensor.requires_grad:
            key = name if tensor in parameters else f"{BUFFER}{name}"
            keys[name] = first.setdefault(tensor, key)
    return keys


def _masks(module: torch.nn.Module) -> set[str]:
    """Return the keys of buffers that are not finite."""
    buffers = sent_tensors(module).items()
    return {key for key, t in buffers if key.startswith(BUFFER) and not t.isfinite().all()}


def _copy(arrays: NamedArrays, tensors: dict[str, Tensor]) -> None:
    """Copy arrays into tensors, if they have the same names and shapes."""
    for name in (*arrays, *tensors):
        sent = arrays[name].shape if name in arrays else "missing"
        own = tuple(tensors[name].shape) if name in tensors else "missing"
        if sent != own:
            raise InputError(
                f"array '{name}': the server's is {sent}, the model's {own}: does the server "
                "start from torch_arrays(model) of the same model? "
                f"Only the server has: {_list(arrays.keys() - tensors.keys())}; only the model "
                f"has: {_list(tensors.keys() - arrays.keys())}"
            )
    for name, tensor in tensors.items():
        tensor.copy_(torch.tensor(arrays[name]))


def _list(names: Set[str]) -> str:
    shown = ", ".join(sorted(names)[:NAMES_SHOWN]) + ", ..." * (len(names) > NAMES_SHOWN)
    return shown or "none"
