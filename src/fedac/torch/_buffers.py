"""The buffers of a model, such as the running statistics of BatchNorm."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedac.errors import InputError

# What DistributedDataParallel and torch.compile put before names.
WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod)\.")


class Buffers:
    """Which buffers of a model are averaged, and what they are now.

    Parameters
    ----------
    model : Module, optional
        Without one there are none.

    Attributes
    ----------
    names : list of str
        Of all buffers.

    Examples
    --------
    >>> buffers = Buffers(nn.BatchNorm1d(2))
    >>> buffers.names
    ['running_mean', 'running_var', 'num_batches_tracked']
    >>> buffers.averaged()
    [tensor([0., 0.]), tensor([1., 1.])]
    """

    def __init__(self, model: nn.Module | None) -> None:
        if not (model is None or isinstance(model, nn.Module)):
            raise InputError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self._model = model
        found = self._find()
        self.names = [WRAPPERS.sub(r"\1", name) for name in found]
        self._averaged = [
            name
            for name, buffer in found.items()
            if buffer.is_floating_point() and bool(buffer.isfinite().all())
        ]

    def averaged(self) -> list[Tensor]:
        """Return those that are averaged; a module may have put new tensors in their place."""
        found = self._find()
        return [found[name] for name in self._averaged]

    def all(self) -> list[Tensor]:
        """Return all of them."""
        return list(self._find().values())

    def _find(self) -> dict[str, Tensor]:
        return {} if self._model is None else dict(self._model.named_buffers())


@torch.no_grad()
def settle(
    tensors: Sequence[Tensor], mean: Sequence[Tensor], progress: Sequence[Tensor] | None
) -> None:
    """Replace tensors by a mean, plus how far each has moved since that was started.

    What cannot be negative, such as a variance, does not become so.

    >>> variance = torch.tensor([0.1])  # it was 0.9 when the average, 0.5, was started
    >>> settle([variance], [torch.tensor([0.5])], [torch.tensor([-0.8])])
    >>> variance
    tensor([0.1000])
    """
    for i, (tensor, value) in enumerate(zip(tensors, mean, strict=True)):
        new = value
        if progress is not None:
            new = value + progress[i]
            if bool((value >= 0).all()) and bool((tensor >= 0).all()):
                new = torch.maximum(new, torch.minimum(value, tensor))
        tensor.copy_(new)


def names_of(model: nn.Module | None, params: Sequence[Tensor]) -> list[str] | None:
    """Return the names that a model has for parameters; None without one.

    >>> model = nn.Linear(2, 1)
    >>> names_of(nn.ModuleDict({"module": model}), [model.bias])  # as DDP wraps it
    ['bias']
    """
    if model is None:
        return None
    names: dict[Tensor, str] = {
        p: WRAPPERS.sub(r"\1", name) for name, p in model.named_parameters()
    }
    if not any(p in names for p in params):
        raise InputError("the model has none of the optimizer's parameters; give the one it trains")
    return [names.get(p, "not in the model") for p in params]


def parameters_besides(model: nn.Module | None, params: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters of a model that an optimizer does not have: frozen ones, mostly.

    >>> model = nn.Linear(2, 1)
    >>> [p.shape for p in parameters_besides(model, [model.bias])]
    [torch.Size([1, 2])]
    """
    mine = set(params)
    found = () if model is None else model.parameters()
    return [p for p in found if p not in mine and p.is_floating_point()]


def forgotten(params: Sequence[Tensor]) -> list[str]:
    """Return the names of averageable buffers in the model of some parameters, wherever it is.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> sorted(forgotten([model[0].weight]))
    ['running_mean', 'running_var']
    """
    mine = set(params)
    found: dict[str, None] = {}
    for module in _modules():
        names = [name for name, b in module.named_buffers() if b.is_floating_point()]
        if names and any(p in mine for p in module.parameters()):
            found |= dict.fromkeys(name.rpartition(".")[2] for name in names)
    return list(found)


def _modules() -> Iterator[nn.Module]:
    # By the type: isinstance would run code of proxies that wait for being used.
    return (thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module))
