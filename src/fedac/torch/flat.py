"""Many tensors in one, so that they travel in one message."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def flatten(tensors: Sequence[Tensor], device: torch.device, *, leading_zeros: int = 0) -> Tensor:
    """Copy tensors into one, with the most precise of their types, at least float32.

    >>> flatten([torch.ones(2), torch.full((1, 1), 3.0)], torch.device("cpu"), leading_zeros=1)
    tensor([0., 1., 1., 3.])
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    size = leading_zeros + sum(tensor.numel() for tensor in tensors)
    flat = torch.zeros(size, dtype=dtype, device=device)
    for part, tensor in zip(_split(flat[leading_zeros:], tensors), tensors, strict=True):
        part.copy_(tensor.detach())
    return flat


@torch.no_grad()
def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the parts of a flat tensor back into the tensors."""
    for part, tensor in zip(_split(flat, tensors), tensors, strict=True):
        tensor.copy_(part)


def _split(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
