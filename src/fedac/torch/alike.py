"""Giving all processes the same state, where no round has done so."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from fedac.torch.communication import Workers
from fedac.torch.flat import flatten, unflatten
from fedac.torch.state import SequenceOptimizer


def find_fresh(workers: Workers, optimizer: SequenceOptimizer) -> list[Tensor]:
    """Return the parameters that have not moved in any process: all, before the first step."""
    params = [p for p in optimizer.parameters() if p.is_floating_point()]
    if optimizer.steps == 0:
        return params
    moved = [bool(optimizer.state.get(p)) or p in optimizer.versions for p in params]
    reports = workers.exchange({"moved": moved})
    anywhere = [any(column) for column in zip(*(r["moved"] for r in reports), strict=True)]
    return [p for p, somewhere in zip(params, anywhere, strict=True) if not somewhere]


def take_first(workers: Workers, tensors: Sequence[Tensor], *, source: int = 0) -> None:
    """Take the tensors of rank 0, as DistributedDataParallel does, or of another rank."""
    if tensors:
        flat = flatten(tensors, workers.device)
        workers.broadcast(flat, source=source)
        unflatten(flat, tensors)


def is_alike(workers: Workers, tensors: Sequence[Tensor]) -> bool:
    """Check whether all processes have the same tensors, bit for bit."""
    found = 0
    for tensor in tensors:
        data = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        found = zlib.crc32(data.tobytes(), found)
    return len({report["hash"] for report in workers.exchange({"hash": found})}) == 1


def take_furthest(
    workers: Workers, optimizer: SequenceOptimizer, params: Sequence[Tensor]
) -> tuple[int, bool]:
    """Let all processes be in the same round, that of the one that has ended most.

    A process that is behind begins it anew. Return the rank whose round it is, and whether this
    process was behind.
    """
    mine = {"rounds": optimizer.rounds, "steps": optimizer.steps}
    reports = workers.exchange(mine)
    ahead = max(report["rounds"] for report in reports)
    behind = optimizer.rounds < ahead
    source = next(m for m, report in enumerate(reports) if report["rounds"] == ahead)
    optimizer.steps = max(r["steps"] for r in reports if r["rounds"] == ahead)
    if any(report["rounds"] < ahead for report in reports):
        for p in params:
            take_first(workers, optimizer.snapshot(p), source=source)
    if behind:
        optimizer.rounds = ahead
        for group in optimizer.param_groups:
            group["taken"] = 0
        for p in params:
            memory = () if optimizer.takes_mean else optimizer.kept(p, "memory")
            optimizer.set_sequences(p, optimizer.snapshot(p), memory)
    return source, behind
