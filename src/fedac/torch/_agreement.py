# SPDX-License-Identifier: Apache-2.0
"""Agreement between processes: checks that they match, and a common initial state."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.torch._averaging import Header, checksum, flatten, unflatten
from fedac.torch._communication import Workers, require_same
from fedac.torch._state import SequenceOptimizer

# Processes compute their lr with different roundings: on other hardware, or by other formulas.
TOLERANCE = 1e-9
# Tensors whose sums and norms differ by less, relative to the norm, count as equal.
CLOSE = 1e-5


def require_agreement(
    workers: Workers,
    optimizer: SequenceOptimizer,
    *,
    trained: Sequence[Tensor],
    buffers: Sequence[Tensor],
    options: dict[str, Any],
) -> None:
    """Raise an error if processes differ, before they wait for each other forever."""
    # Before the first step all processes take rank 0's start; a mean makes them equal anyway.
    is_compared = optimizer.steps > 0 and not optimizer.takes_mean
    moved = [optimizer.snapshot(p) for p in trained if is_compared and optimizer.state.get(p)]
    # Six digits show a different start, but not rounding, which differs between machines.
    sums = [
        f"{sum(float(t.double().abs().sum()) for t in ts):.6g}" for ts in zip(*moved, strict=True)
    ]
    mine = {
        "optimizer": describe_inner(optimizer),
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
        "state after the last round (sums of absolute values)": sums,
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


def require_same_steps(headers: Sequence[Header]) -> None:
    """Raise an error if unfinished workers have taken different numbers of steps."""
    if len({header.steps for header in headers if not header.finished}) > 1:
        advice = (
            ". All ranks must take the same number of steps, or train inside averages.join(). No "
            "state was averaged"
        )
        require_same("how many steps they have taken", [h.steps for h in headers], advice)


def agree_on_settings(
    workers: Workers, headers: Sequence[Header], settings: list[list[float]], *, steps: int
) -> list[list[float]]:
    """Return the settings of unfinished workers; raise an error if they differ."""
    if len({header.digest for header in headers}) == 1:
        return settings
    # All workers see that digests differ, so all of them exchange their settings.
    reports = workers.exchange({"settings": settings})
    by_worker = [reports[leader]["settings"] for leader in workers.leaders]
    furthest = max(range(len(headers)), key=lambda m: headers[m].steps)
    training = [s for s, h in zip(by_worker, headers, strict=True) if not h.finished]
    training = training or [by_worker[furthest]]
    advice = ". Schedulers must do the same in all processes. No state was averaged"
    require_close(f"lr after {steps} steps", training, advice)
    found: list[list[float]] = training[0]
    return found


def settings_of(groups: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Return lr, mu and weight_decay of all groups, which processes must have in common."""
    names = ("lr", "mu", "weight_decay")
    return [[float(group[name]) for name in names] for group in groups]


def require_close(name: str, by_rank: Sequence[list[list[float]]], advice: str = "") -> None:
    """Reject processes whose lr, mu or weight_decay differ by more than rounding."""
    first, *others = ([x for group in settings for x in group] for settings in by_rank)
    for other in others:
        pairs = zip(first, other, strict=False)
        close = all(math.isclose(x, y, rel_tol=TOLERANCE) for x, y in pairs)
        if not close or len(first) != len(other):
            texts = [" | ".join(map(_describe, settings)) for settings in by_rank]
            require_same(name, texts, advice)


def _describe(settings: list[float]) -> str:
    lr, mu, weight_decay = settings
    return f"lr={lr!r} mu={mu!r}" + f" weight_decay={weight_decay!r}" * bool(weight_decay)


def describe_inner(optimizer: SequenceOptimizer) -> str:
    inner = optimizer.inner
    return "an optimizer of fedac.torch" if inner is None else inner.title


def local_steps_of(optimizer: SequenceOptimizer) -> int:
    """Return the local steps of all groups, or raise an error if groups differ."""
    steps: set[int] = {group["local_steps"] for group in optimizer.param_groups}
    if len(steps) != 1:
        raise InputError(f"all parameter groups must have the same local_steps, got {steps}")
    return steps.pop()


def describe_tensors(tensors: Sequence[Tensor]) -> str:
    """Return types and shapes: "float32 [2, 3], float32 [2]"."""
    return ", ".join(f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in tensors)


def find_fresh(workers: Workers, optimizer: SequenceOptimizer) -> list[Tensor]:
    """Return the parameters that have not moved in any process: all, before the first step."""
    params = [p for p in optimizer.parameters() if p.is_floating_point()]
    if optimizer.steps == 0:
        return params
    moved = [bool(optimizer.state.get(p)) or p in optimizer.versions for p in params]
    reports = workers.exchange({"moved": moved})
    anywhere = [any(column) for column in zip(*(r["moved"] for r in reports), strict=True)]
    return [p for p, somewhere in zip(params, anywhere, strict=True) if not somewhere]


def broadcast(workers: Workers, tensors: Sequence[Tensor], *, source: int = 0) -> None:
    """Copy the tensors of one rank to all others."""
    if tensors:
        flat = flatten(tensors, workers.device)
        workers.broadcast(flat, source=source)
        unflatten(flat, tensors)


def are_equal(workers: Workers, tensors: Sequence[Tensor]) -> bool:
    """Check whether all processes have the same tensors, bit for bit."""
    found = 0
    for tensor in tensors:
        data = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        found = zlib.crc32(data.tobytes(), found)
    return len({report["hash"] for report in workers.exchange({"hash": found})}) == 1


@torch.no_grad()
def require_same_start(
    workers: Workers, optimizer: SequenceOptimizer, named: dict[Tensor, str]
) -> bool:
    """Reject processes that began the round with different states; return whether bits differ.

    Rounding differs between machines, by much less than `CLOSE`.
    """
    states = [optimizer.snapshot(p) for p in named]
    sizes = [
        [[float(t.double().sum()), float(torch.linalg.vector_norm(t.double()))] for t in state]
        for state in states
    ]
    bits = checksum([t for state in states for t in state], workers.device)
    reports = workers.exchange({"bits": bits, "sizes": sizes})
    for i, name in enumerate(named.values()):
        first, *rest = (report["sizes"][i] for report in reports)
        ranks = [
            str(rank)
            for rank, other in enumerate(rest, 1)
            for mine, theirs in zip(first, other, strict=True)
            if any(abs(x - y) > CLOSE * mine[1] for x, y in zip(mine, theirs, strict=True))
        ]
        if ranks:
            raise InputError(
                f"rank {', '.join(dict.fromkeys(ranks))} and rank 0 began the round with different "
                f"values of '{name}': something has changed it since the call of synchronize (a "
                "layer that was reset, for example); change parameters before that call. No state "
                "was averaged or saved"
            )
    return len({report["bits"] for report in reports}) > 1


@torch.no_grad()
def recenter(workers: Workers, optimizer: SequenceOptimizer, params: Collection[Tensor]) -> None:
    """Set c to the weighted mean of all c_m, as if it had always been that mean."""
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
    """Move all processes to the round of the process that has ended the most rounds.

    A process that is behind begins that round from its start. Return the rank whose round it is,
    and whether this process was behind.
    """
    reports = workers.exchange({"rounds": optimizer.rounds, "steps": optimizer.steps})
    ahead = max(report["rounds"] for report in reports)
    behind = optimizer.rounds < ahead
    source = next(m for m, report in enumerate(reports) if report["rounds"] == ahead)
    optimizer.steps = max(r["steps"] for r in reports if r["rounds"] == ahead)
    if any(report["rounds"] < ahead for report in reports):
        for p in params:
            broadcast(workers, optimizer.snapshot(p), source=source)
    if behind:
        optimizer.rounds = ahead
        for group in optimizer.param_groups:
            group["taken"] = 0
        for p in params:
            memory = () if optimizer.takes_mean else optimizer.kept(p, "memory")
            optimizer.set_sequences(p, optimizer.snapshot(p), memory)
    return source, behind
