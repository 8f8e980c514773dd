"""Many tensors as one: what processes send is a single flat tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

# Numbers that are copied before they are looked at: caches still hold them then, and more than so
# many calls would take longer than the work.
CHUNK = 2**18
# How many numbers a sample has, and in how many stretches they lie.
SAMPLED, STRETCHES = 2**16, 64


@torch.no_grad()
def flatten(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Copy tensors into one, with the most precise of their types, at least float32.

    >>> flatten([torch.ones(2), torch.full((1, 1), 3.0)], torch.device("cpu"))
    tensor([1., 1., 3.])
    """
    zeros = torch.zeros(0, dtype=torch.float32, device=device)
    return torch.cat([zeros, *_pieces(tensors, device)])


@torch.no_grad()
def flatten_again(
    tensors: Sequence[Tensor],
    device: torch.device,
    *,
    zeros: int,
    reuse: Tensor | None,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Flatten multiples of tensors into one that ends with so many zeros; return also its norm.

    If `reuse` is a tensor like the result, it becomes the result: new memory takes longer than the
    copy itself. The norm is found where numbers are in the cache anyway.

    >>> flatten_again([torch.full((2,), 3.0)], torch.device("cpu"), zeros=1, reuse=None)
    (tensor([3., 3., 0.]), tensor(4.2426, dtype=torch.float64))
    """
    pieces = _pieces(tensors, device)
    numbers = zeros + sum(piece.numel() for piece in pieces)
    dtype = reduce(torch.promote_types, {piece.dtype for piece in pieces}, torch.float32)
    flat = reuse
    if flat is None or (flat.numel(), flat.dtype, flat.device) != (numbers, dtype, device):
        with torch.inference_mode(False):  # the state may come to live in it
            flat = torch.empty(numbers, dtype=dtype, device=device)
    end = numbers - zeros
    flat[end:] = 0
    squares = [torch.zeros((), dtype=dtype, device=device)]
    # From the end, which the last step has left in the cache. This leaves the beginning there,
    # where the mean is read first.
    for batch in reversed(_batches(pieces)):
        sizes = [piece.numel() for piece in batch]
        part = flat[end - sum(sizes) : end]
        end -= sum(sizes)
        targets = torch.split(part, sizes)
        if factor == 1:
            torch._foreach_copy_(targets, batch)
        else:
            for target, piece in zip(targets, batch, strict=True):
                torch.mul(piece.to(dtype), factor, out=target)
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
    values = [part.view_as(tensor) for part, tensor in zip(cut, tensors, strict=True)]
    if divisor == 1:
        torch._foreach_copy_(list(tensors), values)
        return
    for value, tensor in zip(values, tensors, strict=True):
        if value.device == tensor.device:  # both in one pass over memory
            torch.div(value, divisor, out=tensor)
        else:
            tensor.copy_(value / divisor)


def is_finite(tensor: Tensor) -> bool:
    """Check for NaN and infinity, mostly in one pass over memory.

    >>> is_finite(torch.tensor([1.0, torch.inf])), is_finite(torch.full((3,), 3e38))
    (False, True)
    """
    # A norm that is finite says that all are. It may overflow if they are.
    norm = torch.linalg.vector_norm(tensor)
    return bool(torch.isfinite(norm)) or bool(torch.isfinite(tensor).all())


@torch.no_grad()
def checksum(tensors: Sequence[Tensor], device: torch.device) -> int:
    """Return a sum of the bits of tensors, which takes about half the time of a copy.

    >>> cpu = torch.device("cpu")
    >>> checksum([torch.ones(2), torch.zeros(3)], cpu) == checksum([torch.ones(2)], cpu)
    True
    >>> checksum([torch.tensor(1.0)], cpu) == checksum([torch.tensor(1.0 + 2**-23)], cpu)
    False
    """
    total = torch.zeros((), dtype=torch.int64, device=device)
    for batch in _batches(_pieces(tensors, device)):
        part = batch[0] if len(batch) == 1 else torch.cat(batch)
        # In the type of the bits, as other sums take much longer: it may wrap around.
        bits = torch.int64 if part.element_size() == 8 else torch.int32
        total += part.view(bits).sum(dtype=bits)
    return int(total)


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
    """Return tensors as flat ones; those that follow each other in memory are one."""
    joined = (
        run[0] if len(run) == 1 else run[0].as_strided((sum(t.numel() for t in run),), (1,))
        for run in _neighbours(tensors)
    )
    pieces = [piece.reshape(-1) for piece in joined]
    return [piece if piece.device == device else piece.to(device) for piece in pieces]


def _neighbours(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Group tensors of one type that follow each other in the same memory."""
    runs: list[list[Tensor]] = []
    end = limit = -1  # of the last tensor, and of the memory that it is in, once that is asked for
    for tensor in tensors:
        start, length, in_order = tensor.data_ptr(), tensor.nbytes, tensor.is_contiguous()
        follows = start == end and tensor.dtype == runs[-1][0].dtype
        if follows and limit < 0:
            memory = runs[-1][0].untyped_storage()
            limit = memory.data_ptr() + memory.nbytes()
        # Numbers that lie in another order (channels last, say) follow nothing, nor does anything
        # follow them.
        if follows and start + length <= limit and in_order:
            runs[-1].append(tensor)
        else:
            runs.append([tensor])
            limit = -1
        end = start + length if in_order else -1
    return runs


def _batches(pieces: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return lists of tensors that fill the cache together, parts of large ones among them."""
    batches: list[list[Tensor]] = []
    numbers = CHUNK
    for piece in pieces:
        for part in torch.split(piece, CHUNK) if piece.numel() > CHUNK else (piece,):
            if numbers >= CHUNK:
                batches.append([])
                numbers = 0
            batches[-1].append(part)
            numbers += part.numel()
    return batches
