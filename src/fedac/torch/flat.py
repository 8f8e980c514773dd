"""Many tensors as one: what processes send is a single flat tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# How many numbers a sample has, and in how many stretches they lie.
SAMPLED, STRETCHES = 2**16, 64


def flatten(
    tensors: Sequence[Tensor],
    device: torch.device,
    *,
    leading_zeros: int = 0,
    reuse: Tensor | None = None,
) -> Tensor:
    """Copy tensors into one, with the most precise of their types, at least float32.

    If `reuse` is a tensor like the result, it becomes the result: new memory takes longer than the
    copy itself.

    >>> flatten([torch.ones(2), torch.full((1, 1), 3.0)], torch.device("cpu"), leading_zeros=1)
    tensor([0., 1., 1., 3.])
    """
    zeros = torch.zeros(leading_zeros, dtype=torch.float32, device=device)
    pieces = [zeros, *(tensor.detach().reshape(-1).to(device) for tensor in tensors)]
    if reuse is not None and _is_like(reuse, pieces):
        return torch.cat(pieces, out=reuse)
    return torch.cat(pieces)


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


def _is_like(flat: Tensor, pieces: Sequence[Tensor]) -> bool:
    dtype = pieces[0].dtype
    for piece in pieces:
        dtype = torch.promote_types(dtype, piece.dtype)
    numbers = sum(piece.numel() for piece in pieces)
    return flat.dtype == dtype and flat.numel() == numbers and flat.device == pieces[0].device
