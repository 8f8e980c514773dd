"""What is kept of one parameter: names, types and first values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.record import serve_mean

# What is kept from round to round, and the field of the record with its names.
PARTS = {"sent": "sequences", "memory": "memory", "server": "server"}


def ends_with_mean(algorithm: Algorithm) -> bool:
    """Check whether the mean of what workers work on is all that ends a round.

    >>> from fedac.algorithms import get
    >>> [ends_with_mean(get(name)) for name in ("fedac-i", "fedprox(0.1)", "scaffold", "diloco")]
    [True, False, False, False]
    """
    keeps = algorithm.memory or algorithm.server
    return algorithm.is_plain and algorithm.serve is serve_mean and not keeps


@torch.no_grad()
def write(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors; some values may be tensors that are written to.

    >>> x, y = torch.tensor([1.0]), torch.tensor([2.0])
    >>> write([x, y], [y, x])
    >>> x, y
    (tensor([2.]), tensor([1.]))
    """
    copies = values if len(values) == 1 else [value.clone() for value in values]
    for tensor, value in zip(tensors, copies, strict=True):
        tensor.copy_(value)


def on_its_own(tensor: Tensor) -> Tensor:
    """Return a tensor to be saved: a copy if its memory holds more, which would be saved too.

    >>> w = torch.zeros(1000)[:2]
    >>> w.untyped_storage().nbytes(), on_its_own(w).untyped_storage().nbytes()
    (4000, 8)
    """
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def is_half(p: Tensor) -> bool:
    """Check whether a parameter has too few digits for its sequences."""
    return p.dtype in (torch.bfloat16, torch.float16)


def sequence_dtype(p: Tensor) -> torch.dtype:
    """Return the type of a parameter's sequences."""
    return torch.float32 if is_half(p) else p.dtype


def version(p: Tensor) -> tuple[int, int]:
    """Return what changes when a parameter is written to, or its memory replaced."""
    return p._version, p.data_ptr()


def first_values(algorithm: Algorithm, p: Tensor, hp: Hyperparameters) -> dict[str, Tensor]:
    """Return what is kept of a parameter at first, by name."""
    sequences, server = algorithm.split(algorithm.start(p.detach().to(sequence_dtype(p))))
    memory = algorithm.begin_memory(sequences)
    return {
        **dict(zip(algorithm.local_sequences, algorithm.enter(sequences, memory, hp), strict=True)),
        **dict(zip(keys(algorithm, "sent"), sequences, strict=True)),
        **dict(zip(keys(algorithm, "memory"), memory, strict=True)),
        **dict(zip(keys(algorithm, "server"), server, strict=True)),
    }


def keys(algorithm: Algorithm, part: str) -> list[str]:
    """Return the names in `state[p]` of a part of what is kept from round to round.

    >>> from fedac.algorithms import get
    >>> keys(get("scaffold"), "sent"), keys(get("scaffold"), "memory")
    (['sent/w', 'sent/c'], ['memory/c_m'])
    """
    return [f"{part}/{name}" for name in getattr(algorithm, PARTS[part])]


def is_complete(state: dict[str, Tensor], local: set[str], others: set[str], own: bool) -> bool:
    """Check for all tensors of a parameter, and no others; its `own` sequence is in itself."""
    missing = (local | others) - set(state)
    return set(state) <= local | others and (not missing or (own and missing == local))


def all_equal(values: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Compare tensors pairwise."""
    return len(values) == len(others) and all(map(torch.equal, values, others))
