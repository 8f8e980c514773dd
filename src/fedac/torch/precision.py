"""Parameters beside the sequences they show: which precision, how near, whether touched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def is_rounded(p: Tensor, told: Tensor, sequences: Sequence[Tensor], growth: float) -> bool:
    """Say whether a parameter is what its sequences tell, but for rounding."""
    finite = [torch.nan_to_num(s, 0.0, 0.0, 0.0).abs().max().item() for s in sequences if s.numel()]
    limits = torch.finfo(p.dtype)
    slack = 8 * limits.eps * (max(1.0, growth) * max([0.0, *finite]) + limits.smallest_normal)
    # Through the parameter's own type, in which a large number may be infinity. Where a sequence
    # is not finite, how it was computed decides between infinity and NaN.
    held = p.to(told.dtype)
    seen = torch.where(torch.isfinite(told), told.to(p.dtype).to(told.dtype), held)
    return torch.allclose(held, seen, rtol=0, atol=slack, equal_nan=True)


def version(p: Tensor) -> tuple[int, int]:
    """Return what differs after others have written to a parameter, or exchanged its memory."""
    return p._version, p.data_ptr()


def is_short(p: Tensor) -> bool:
    """Say whether a parameter is too coarse to keep sequences in."""
    return p.dtype in (torch.bfloat16, torch.float16)


def state_dtype(p: Tensor) -> torch.dtype:
    """Return the precision of a parameter's sequences."""
    return torch.float32 if is_short(p) else p.dtype


def gradient(p: Tensor) -> Tensor:
    """Return a parameter's gradient in the precision of its sequences."""
    assert p.grad is not None
    return p.grad.to(state_dtype(p))
