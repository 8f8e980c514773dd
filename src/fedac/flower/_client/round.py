"""A client's round: it enters, takes local steps, and leaves with a message.

Entering and leaving are coefficients in the task; this module has no formula of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedac.algorithms.algorithm import State
from fedac.algorithms.linear import Boundary
from fedac.algorithms.memory.control_variates import reweigh_message
from fedac.errors import InputError
from fedac.flower._arrays import NamedArrays, NDArray, buffers_of, by_key, to_named, with_prefix
from fedac.flower._client.memory import ClientMemory
from fedac.flower._packets import pack
from fedac.flower._task import Task


@dataclass(frozen=True)
class Visited:
    """What a client sends, its number, and whether it had lost its memory."""

    arrays: NamedArrays
    client: int
    memory_lost: bool = False


class Visit:
    """A round of one client.

    Parameters
    ----------
    sent : dict
        What the server sent.
    task : Task
        What it asks for.
    memory : ClientMemory
        Where the client keeps what it remembers.

    Attributes
    ----------
    local : dict
        What the client works on: the sequences of ``task.algorithm``, and buffers.
    """

    def __init__(self, sent: NamedArrays, task: Task, memory: ClientMemory) -> None:
        self.sent, self.task, self.memory = sent, task, memory
        self.local = sent
        if task.boundary is not None:
            self._enter(task.boundary)

    def leave(self, after: NamedArrays, steps: int, examples: float) -> Visited:
        """Return the message after some local steps, and keep what is to be remembered.

        `examples` is the client's weight, if weights are used.
        """
        task, client = self.task, self.memory.client
        task.require_steps(steps)
        if task.boundary is None:
            message, _ = pack(task, client, message=after, sent=self.sent, memory={})
            return Visited(message, client)
        boundary = task.boundary.after(steps)
        model = with_prefix(task.sequences[0], self.sent)
        # The server drops replies that are not finite: an overflow needs no warning here.
        with np.errstate(over="ignore", invalid="ignore"):
            left = {
                key: boundary.leave_round(vectors, self._sequences[key], self._kept[key])
                for key, vectors in by_key(task.algorithm.sequences, after).items()
            }
            counted = self._found.weight
            ratio = counted / examples if counted else 1.0
            messages = {
                key: reweigh_message(task, leaving, self._kept[key], ratio)
                for key, (leaving, _) in left.items()
            }
        message, remembered = pack(
            task,
            client,
            message=buffers_of(after) | to_named(task.sequences, messages, model),
            sent=self.sent,
            memory=to_named(task.memory, {key: new for key, (_, new) in left.items()}, model),
        )
        if task.label is not None:
            self.memory.keep(task.label.run, task.round, remembered, before=self._found.made_in)
        return Visited(message, client, self._found.lost)

    def _enter(self, boundary: Boundary) -> None:
        task = self.task
        model = with_prefix(task.sequences[0], self.sent)
        self._sequences = by_key(task.sequences, self.sent)
        firsts = {key: boundary.begin_memory(x) for key, x in self._sequences.items()}
        self._found = _find(task, self.memory, to_named(task.memory, firsts, model))
        kept = by_key(task.memory, self._found.arrays)
        self._kept: dict[str, State] = kept or dict.fromkeys(self._sequences, ())
        entered = {
            key: boundary.enter_round(x, self._kept[key]) for key, x in self._sequences.items()
        }
        self.local = buffers_of(self.sent) | to_named(task.algorithm.sequences, entered, model)


@dataclass(frozen=True)
class _Found:
    arrays: Mapping[str, NDArray]
    made_in: int | None = None
    weight: float = 0.0
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
    label = task.label
    if not label.round:
        return _Found(firsts)
    arrays = memory.find(label.run, label.round, like=firsts)
    if arrays is None:
        return _Found(firsts, lost=True)
    return _Found(arrays, label.round, label.weight)
