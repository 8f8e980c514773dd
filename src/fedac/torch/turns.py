"""Two flat buffers that take turns: a mean to which the state moves need not be copied."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Turns:
    """The memory that the next round fills, while the state lives in other memory.

    When a round ends, the state moves to where the mean is, and what it leaves is filled next. So
    a round that fails has changed nothing but the buffer that it filled.

    Attributes
    ----------
    free : Tensor, optional
        A flat tensor for the next round, if it has the right size.

    Examples
    --------
    >>> turns, mean, w, buffer = Turns(), torch.arange(3.0), torch.zeros(2), torch.zeros(1)
    >>> turns.settle(mean, [w], [buffer])
    >>> w, buffer, w.data_ptr() == mean.data_ptr()
    (tensor([0., 1.]), tensor([2.]), True)
    """

    def __init__(self) -> None:
        self.free: Tensor | None = None

    @torch.no_grad()
    def settle(self, mean: Tensor, ours: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        """Let our tensors live in a flat mean from now on; others, which follow, get copies.

        So do those of ours that are of another type, or whose numbers lie in another order
        (channels last, say). All of ours that share memory must move together.
        """
        left: Tensor | None = None
        dtype, device = mean.dtype, mean.device
        sizes = [tensor.numel() for tensor in (*ours, *others)]
        parts = iter(torch.split(mean, sizes))
        for tensor, part in zip(ours, parts, strict=False):
            value, same_kind = part.view_as(tensor), tensor.dtype == dtype
            if same_kind and tensor.device == device and tensor.is_contiguous():
                left = _memory_of(tensor) if left is None else left
                tensor.data = value
            else:
                tensor.copy_(value)
        for tensor, part in zip(others, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
        if left is not None:
            self.free = left


def _memory_of(tensor: Tensor) -> Tensor:
    """Return all memory that a tensor is a part of."""
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return whole.set_(tensor.untyped_storage())
