"""Many tensors as one, to travel in one message."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def flatten(tensors: Sequence[Tensor], device: torch.device, *, ahead: int = 0) -> Tensor:
    """Copy tensors into one, after `ahead` zeros, in the finest of their precisions.

    >>> flatten([torch.ones(2), torch.full((1, 1), 3.0)], torch.device("cpu"), ahead=1)
    tensor([0., 1., 1., 3.])
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    flat = torch.zeros(ahead + sum(t.numel() for t in tensors), dtype=dtype, device=device)
    for part, tensor in zip(_parts(flat[ahead:], tensors), tensors, strict=True):
        part.copy_(tensor.detach())
    return flat


@torch.no_grad()
def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the parts of a flat tensor back to where they belong."""
    for part, tensor in zip(_parts(flat, tensors), tensors, strict=True):
        tensor.copy_(part)


def _parts(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
