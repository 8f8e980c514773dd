"""A client's round when it does not simply work on what was sent: enter, local steps, leave.

All three are coefficients in the task; this module has no formula of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedac.errors import InputError
from fedac.flower.memory import ClientMemory
from fedac.flower.messages import NamedArrays, NDArray, buffers_of, with_prefix
from fedac.flower.packets import pack
from fedac.flower.sequences import by_key, to_named
from fedac.flower.task import Task

# From what a client works on to the same after the local steps, and metrics.
LocalWork = Callable[[NamedArrays], tuple[NamedArrays, Mapping[str, float]]]


@dataclass(frozen=True)
class Visited:
    """What a client sends, and whether it had lost its memory."""

    arrays: NamedArrays
    metrics: Mapping[str, float]
    memory_lost: bool


def visit(sent: NamedArrays, task: Task, memory: ClientMemory, work: LocalWork) -> Visited:
    """Enter a round, let `work` take the local steps, leave, and keep what is to be remembered."""
    boundary = task.boundary
    if boundary is None:
        after, metrics = work(sent)
        message, _ = pack(task, memory.client, message=after, sent=sent, memory={})
        return Visited(message, metrics, memory_lost=False)
    model = with_prefix(task.sequences[0], sent)
    sequences = by_key(task.sequences, sent)
    firsts = {key: boundary.begin_memory(vectors) for key, vectors in sequences.items()}
    found = _find(task, memory, to_named(task.memory, firsts, model))
    kept = by_key(task.memory, found.arrays) or dict.fromkeys(sequences, ())
    local = {key: boundary.enter_round(sequences[key], kept[key]) for key in sequences}
    names = task.algorithm.sequences
    after, metrics = work(buffers_of(sent) | to_named(names, local, model))
    # The server drops replies that are not finite: an overflow needs no warning here.
    with np.errstate(over="ignore", invalid="ignore"):
        left = {
            key: boundary.leave_round(vectors, sequences[key], kept[key])
            for key, vectors in by_key(names, after).items()
        }
    message, remembered = pack(
        task,
        memory.client,
        message=buffers_of(after)
        | to_named(task.sequences, {key: leaving for key, (leaving, _) in left.items()}, model),
        sent=sent,
        memory=to_named(task.memory, {key: new for key, (_, new) in left.items()}, model),
    )
    if task.label is not None:
        memory.keep(task.label.run, task.round, remembered, before=found.made_in)
    return Visited(message, metrics, found.lost)


@dataclass(frozen=True)
class _Found:
    arrays: Mapping[str, NDArray]
    made_in: int | None = None
    lost: bool = False


def _find(task: Task, memory: ClientMemory, firsts: Mapping[str, NDArray]) -> _Found:
    """Return the memory that the server names; the first one if there is none, or it is lost."""
    if not task.memory:
        return _Found({})
    if task.label is None:
        raise InputError(
            "the server's message does not say which memory to use: was it made by "
            "configure_train of fedac.flower, and by the same version as this client?"
        )
    made_in = task.label.of_client(memory.client)
    if made_in is None:
        return _Found(firsts)
    arrays = memory.find(task.label.run, made_in, like=firsts)
    return _Found(firsts, lost=True) if arrays is None else _Found(arrays, made_in)
