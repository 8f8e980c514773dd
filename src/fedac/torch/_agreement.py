"""What processes must have in common, as texts to compare and to show in errors."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.torch._communication import Workers, require_close, require_same, settings_of
from fedac.torch._flat import checksum, flatten, unflatten
from fedac.torch._state import Inside, SequenceOptimizer


def require_agreement(
    workers: Workers,
    optimizer: SequenceOptimizer,
    *,
    trained: Sequence[Tensor],
    buffers: Sequence[Tensor],
    options: dict[str, Any],
) -> None:
    """Refuse processes that differ now: later they would wait for each other."""
    mine = {
        "optimizer": describe_inside(optimizer),
        "algorithm": optimizer.algorithm.name,
        "local_steps": local_steps_of(optimizer),
        "settings": settings_of(optimizer.param_groups),
        "what a step computes": optimizer.fingerprint,
        "parameters": describe_tensors(optimizer.parameters()),
        "trained parameters": describe_tensors(trained),
        "buffers": describe_tensors(buffers),
        **options,
        "steps": optimizer.steps,
        "rounds": optimizer.rounds,
        "what the last round ended with (sums of all sizes)": describe_server(optimizer, trained),
    }
    reports = workers.exchange(mine)
    differences = []
    for name in mine:
        check = require_close if name == "settings" else require_same
        try:
            check(name, [theirs[name] for theirs in reports])
        except InputError as error:
            differences.append(str(error))
    if differences:
        raise InputError(". And ".join(differences))


def agree_on_state(workers: Workers, inside: Inside) -> None:
    """Find what of the optimizers' state is averaged; refuse processes where it differs."""
    names = inside.find_names()
    reports = workers.exchange({"names": names})
    require_same("the state of their optimizers", [theirs["names"] for theirs in reports])
    inside.names = names


def describe_inside(optimizer: SequenceOptimizer) -> str:
    """Say who takes the local steps."""
    inside = optimizer.inside
    return "an optimizer of fedac.torch" if inside is None else inside.title


def local_steps_of(optimizer: SequenceOptimizer) -> int:
    """Return the local steps of all groups, or refuse groups that differ."""
    steps: set[int] = {group["local_steps"] for group in optimizer.param_groups}
    if len(steps) != 1:
        raise InputError(f"all parameter groups must have the same local_steps, got {steps}")
    return steps.pop()


def describe_tensors(tensors: Sequence[Tensor]) -> str:
    """Return types and shapes.

    >>> import torch
    >>> describe_tensors([torch.ones(2, 3), torch.ones(2)])
    'float32 [2, 3], float32 [2]'
    """
    return ", ".join(f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in tensors)


def describe_server(optimizer: SequenceOptimizer, params: Sequence[Tensor]) -> str:
    """Return sizes of what the server holds, where every process plays the server.

    Six digits show a different start. Rounding, which differs between machines, does not show.
    """
    # Before the first step all processes take rank 0's start; a mean makes them equal anyway.
    if optimizer.steps == 0 or optimizer.takes_mean:
        return "made equal"
    state = [optimizer.snapshot(p) for p in params if optimizer.state.get(p)]
    return " ".join(
        f"{sum(float(t.double().abs().sum()) for t in ts):.6g}" for ts in zip(*state, strict=True)
    )


# --- Giving all processes the same state, where no round has done so.

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
