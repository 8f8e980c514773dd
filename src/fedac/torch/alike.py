"""Giving all processes the same state, where no round has done so."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.torch.communication import Workers
from fedac.torch.flat import checksum, flatten, unflatten
from fedac.torch.state import SequenceOptimizer

# Sums and norms that differ by less, relative to the norm, are those of equal tensors.
CLOSE = 1e-5


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


@torch.no_grad()
def require_same_start(
    workers: Workers, optimizer: SequenceOptimizer, params: Sequence[Tensor], names: Sequence[str]
) -> bool:
    """Refuse processes that hold different states as of the last round; return if bits differ.

    Rounding differs between machines, by much less than `CLOSE`.
    """
    states = [optimizer.snapshot(p) for p in params]
    sizes = [
        [[float(t.double().sum()), float(torch.linalg.vector_norm(t.double()))] for t in state]
        for state in states
    ]
    bits = checksum([t for state in states for t in state], workers.device)
    reports = workers.exchange({"bits": bits, "sizes": sizes})
    first = reports[0]["sizes"]
    different = {
        rank: [
            name
            for name, mine, theirs in zip(names, first, report["sizes"], strict=True)
            if any(map(_differ, mine, theirs))
        ]
        for rank, report in enumerate(reports)
    }
    if ranks := [str(rank) for rank, found in different.items() if found]:
        name = different[int(ranks[0])][0]
        raise InputError(
            f"rank {', '.join(ranks)} and rank 0 began the round with other values of '{name}': "
            "something has changed it since the call of synchronize (a layer that was reset, say); "
            "change parameters before that call. No state was averaged or saved"
        )
    return len({report["bits"] for report in reports}) > 1


def _differ(mine: list[float], theirs: list[float]) -> bool:
    """Compare a tensor's sum and norm with those of another process."""
    return any(abs(x - y) > CLOSE * mine[1] for x, y in zip(mine, theirs, strict=True))


@torch.no_grad()
def recenter(workers: Workers, optimizer: SequenceOptimizer, params: Collection[Tensor]) -> None:
    """Make c the mean of all c_m by the weights they count with, as if it had always been."""
    algorithm = optimizer.algorithm
    pairs = [
        (algorithm.sequences.index(sequence), algorithm.memory.index(kept))
        for sequence, kept in algorithm.echoes
        if sequence in algorithm.changes
    ]
    for group in optimizer.param_groups:
        mine = [p for p in group["params"] if p in params]
        total = sum(group["counted"])
        for t, j in pairs if mine and total else ():
            flat = flatten([optimizer.kept(p, "memory")[j] for p in mine], workers.device)
            flat *= group["counted"][workers.rank] / total
            workers.start_sum(flat)
            workers.finish(flat)
            unflatten(flat, [optimizer.kept(p, "sent")[t] for p in mine])


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
