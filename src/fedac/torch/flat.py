"""Many tensors as one: what processes send is a single flat tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedac.torch.combine import CACHED_NUMBERS

# How many numbers a sample has, and in how many stretches they lie.
SAMPLED, STRETCHES = 2**16, 64


def flatten(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Copy tensors into one, with the most precise of their types, at least float32.

    >>> flatten([torch.ones(2), torch.full((1, 1), 3.0)], torch.device("cpu"))
    tensor([1., 1., 3.])
    """
    zeros = torch.zeros(0, dtype=torch.float32, device=device)
    return torch.cat([zeros, *_pieces(tensors, device)])


def flatten_again(
    tensors: Sequence[Tensor], device: torch.device, *, zeros: int, reuse: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Flatten tensors into one that ends with so many zeros; return also its norm.

    If `reuse` is a tensor like the result, it becomes the result: new memory takes longer than the
    copy itself. The norm is found where numbers are in the cache anyway.

    >>> flatten_again([torch.full((2,), 3.0)], torch.device("cpu"), zeros=1, reuse=None)
    (tensor([3., 3., 0.]), tensor(4.2426, dtype=torch.float64))
    """
    pieces = _pieces(tensors, device)
    numbers, dtype = zeros, torch.float32
    for piece in pieces:
        numbers, dtype = numbers + piece.numel(), torch.promote_types(dtype, piece.dtype)
    flat = reuse
    if flat is None or (flat.numel(), flat.dtype, flat.device) != (numbers, dtype, device):
        flat = torch.empty(numbers, dtype=dtype, device=device)
    flat[numbers - zeros :] = 0
    squares, start = [torch.zeros((), dtype=dtype, device=device)], 0
    for batch in _batches(pieces):
        sizes = [piece.numel() for piece in batch]
        part = flat[start : (start := start + sum(sizes))]
        torch._foreach_copy_(torch.split(part, sizes), batch)
        squares.append(torch.dot(part, part))
    return flat, torch.stack(squares).double().sum().sqrt()


def parts(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat tensor into tensors like the given ones.

    >>> parts(torch.arange(3.0), [torch.ones(1, 1), torch.ones(2)])
    [tensor([[0.]]), tensor([1., 2.])]
    """
    cut = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(like).to(like) for part, like in zip(cut, tensors, strict=True)]


@torch.no_grad()
def unflatten(flat: Tensor, tensors: Sequence[Tensor], *, divisor: float = 1.0) -> None:
    """Copy the parts of a flat tensor, over a number, back into the tensors.

    >>> x = torch.zeros(2)
    >>> unflatten(torch.tensor([2.0, 6.0]), [x], divisor=2.0)
    >>> x
    tensor([1., 3.])
    """
    cut = torch.split(flat, [tensor.numel() for tensor in tensors])
    for part, tensor in zip(cut, tensors, strict=True):
        if divisor != 1 and part.device == tensor.device:  # both in one pass over memory
            torch.div(part.view_as(tensor), divisor, out=tensor)
        else:
            tensor.copy_((part if divisor == 1 else part / divisor).view_as(tensor))


def is_finite(tensor: Tensor) -> bool:
    """Check for NaN and infinity, mostly in one pass over memory.

    >>> is_finite(torch.tensor([1.0, torch.inf])), is_finite(torch.full((3,), 3e38))
    (False, True)
    """
    # A norm that is finite says that all are. It may overflow if they are.
    norm = torch.linalg.vector_norm(tensor)
    return bool(torch.isfinite(norm)) or bool(torch.isfinite(tensor).all())


def sample(flat: Tensor) -> Tensor:
    """Return some numbers of a flat tensor, from all over it; all of them if there are few.

    >>> sample(torch.ones(1000)).shape, sample(torch.ones(1_000_000)).numel()
    (torch.Size([1000]), 65536)
    """
    if len(flat) <= SAMPLED:
        return flat
    rows = flat[: len(flat) // STRETCHES * STRETCHES].view(STRETCHES, -1)
    return rows[:, : SAMPLED // STRETCHES]


def _pieces(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    return [tensor.detach().reshape(-1).to(device) for tensor in tensors]


def _batches(pieces: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of tensors that fill the cache together."""
    batch: list[Tensor] = []
    numbers = 0
    for piece in pieces:
        batch.append(piece)
        numbers += piece.numel()
        if numbers >= CACHED_NUMBERS:
            yield batch
            batch, numbers = [], 0
    if batch:
        yield batch
