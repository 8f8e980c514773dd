"""Where a round ends: workers leave it, the mean of their messages is served, and they enter anew.

This is what the record's `leave`, `serve` and `enter` say, for all parameters of an optimizer.
Every process serves the same mean, so all of them know the new sequences without a broadcast. What
a worker remembers stays in its process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedac.algorithms.algorithm import ClientWork, RoundInfo, State
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.memory.control_variates import reweigh_message, reweigh_sequences
from fedac.federation.compression import Sender
from fedac.torch._communication import is_paused
from fedac.torch._compression import Packet
from fedac.torch._state import SequenceOptimizer, write


class _Left(NamedTuple):
    """How a worker left the round with one parameter group."""

    group: dict[str, Any]
    params: list[Tensor]
    hp: Hyperparameters
    steps: int
    stood: bool  # whether it stood still in all workers: then the round changes nothing


class Round:
    """A round that this worker has left, until the mean of all messages arrives.

    Nothing of the optimizer changes before `serve` or `close`. Where the mean is all that ends a
    round, the message is what local steps work on, and takes the mean's place in the end. A worker
    that is `idle` has taken no step, unlike others, and its message is not used. Others count by
    `weight`.

    Attributes
    ----------
    message : list of Tensor
        What is sent: of every parameter as many tensors as the algorithm has sequences.
    """

    @torch.no_grad()
    def __init__(
        self,
        optimizer: SequenceOptimizer,
        params: Sequence[Tensor],
        *,
        rank: int,
        weight: float,
        idle: bool = False,
    ) -> None:
        self._optimizer, self._rank, self._weight = optimizer, rank, weight
        self._memory: dict[Tensor, State] = {}
        self._groups: list[_Left] = []
        self.message: list[Tensor] = []
        trained = set(map(id, params))  # a tensor's own hash takes longer
        for group in optimizer.param_groups:
            mine = [p for p in group["params"] if id(p) in trained]
            stood = is_paused(group) if idle else not group["taken"]
            hp = optimizer.hyperparameters(group["last"])
            left = _Left(group, mine, hp, group["taken"], stood)
            self._groups.append(left)
            for p in mine:
                self.message += self._leave(p, left)

    def couple_anew(self) -> None:
        """Let the server work with the settings that the groups have now."""
        groups = zip(self._optimizer.param_groups, self._groups, strict=False)
        self._groups = [
            left._replace(hp=self._optimizer.hyperparameters(group["last"]))
            for group, left in groups
        ]

    @property
    def private(self) -> list[Tensor]:
        """What this worker will remember: it is not sent."""
        return [tensor for memory in self._memory.values() for tensor in memory]

    @property
    def began(self) -> list[Tensor]:
        """Where the round began: like the message, one tensor for each of its tensors."""
        return [s for p, _ in self._each_parameter() for s in self._optimizer.kept(p, "sent")]

    @torch.no_grad()
    def pack(
        self, flat: Tensor, *, sender: Sender, residuals: list[Tensor] | None, leading: int
    ) -> Packet:
        """Round the message, with which a flat tensor begins, for the wire.

        What this worker will remember follows what arrives.
        """
        optimizer = self._optimizer
        params = [p for p, _ in self._each_parameter()]
        # The packet writes to it. What the optimizer keeps stays as it is until the mean arrives.
        memory = [
            tuple(tensor.contiguous() for tensor in self._memory[p])
            if p in self._memory
            else tuple(map(torch.clone, optimizer.kept(p, "memory")))
            for p in params
        ]
        packet = Packet(
            optimizer.algorithm,
            flat,
            began=[optimizer.kept(p, "sent") for p in params],
            memory=memory,
            residuals=residuals,
            leading=leading,
            sender=sender,
        )
        for p, mine in zip(params, memory, strict=True):
            if p in self._memory:
                self._memory[p] = mine
        return packet

    @torch.no_grad()
    def serve(self, mean: Sequence[Tensor], *, weights: Sequence[float], used: bool) -> None:
        """Do with the mean message what the server does, and remember the round.

        A worker whose message was not used does not: what the others know of it has not changed.
        """
        optimizer, received = self._optimizer, iter(mean)
        algorithm = optimizer.algorithm
        for left in self._groups:
            if not left.stood:
                share, ratio = count(left.group, weights)
                this = RoundInfo(number=optimizer.rounds, share=share)
            for p in left.params:
                message = tuple(next(received) for _ in algorithm.sequences)
                if left.stood:
                    continue
                sent, server = optimizer.kept(p, "sent"), optimizer.kept(p, "server")
                began = reweigh_sequences(algorithm, sent, ratio)
                after = algorithm.serve(message, began, server, left.hp, this)
                write((*sent, *server), (*after[0], *after[1]))
                if used:
                    write(optimizer.kept(p, "memory"), self._memory[p])

    @torch.no_grad()
    def enter_next(self, progress: Sequence[Tensor] | None) -> None:
        """Enter the next round, and add what this worker has moved since it left this one."""
        optimizer, given = self._optimizer, iter(progress or ())
        for p, left in self._each_parameter():
            local = optimizer.sequences(p)
            moved = [] if progress is None else [next(given) for _ in local]
            if not left.stood:
                optimizer.enter(p)
                for tensor, more in zip(local, moved, strict=False):
                    tensor += more

    def close(self) -> None:
        """Count the round; steps taken since it was left belong to the next one."""
        optimizer = self._optimizer
        for group, left in zip(optimizer.param_groups, self._groups, strict=False):
            group["taken"] = max(0, group["taken"] - left.steps)
        optimizer.rounds += not all(left.stood for left in self._groups)

    def _leave(self, p: Tensor, left: _Left) -> State:
        """Return the message of one parameter."""
        optimizer, local = self._optimizer, tuple(self._optimizer.sequences(p))
        if optimizer.takes_mean:
            return local
        sent, memory = optimizer.kept(p, "sent"), optimizer.kept(p, "memory")
        if not left.steps:
            return sent
        message, after = optimizer.algorithm.leave(
            local, sent, memory, left.hp, ClientWork(steps=left.steps)
        )
        if self._weight > 0:
            ratio = left.group["counted"][self._rank] / self._weight
            message = reweigh_message(optimizer.algorithm, message, memory, ratio)
        # Copies: what is remembered may be what local steps move on.
        self._memory[p] = tuple(tensor.clone() for tensor in after)
        return message

    def _each_parameter(self) -> Iterator[tuple[Tensor, _Left]]:
        for left in self._groups:
            for p in left.params:
                yield p, left


def count(group: dict[str, Any], weights: Sequence[float]) -> tuple[float, float]:
    """Note how much workers count in a round; those that are not in it count as before.

    Return the share of those that are, and the old total over the new one.

    >>> group = {"counted": [2.0, 2.0]}
    >>> count(group, [6.0, 0.0]), group
    ((0.75, 0.5), {'counted': [6.0, 2.0]})
    """
    before = group["counted"]
    group["counted"] = [w if w > 0 else kept for w, kept in zip(weights, before, strict=True)]
    total = sum(group["counted"])
    return sum(w for w in weights if w > 0) / total, sum(before) / total


@torch.no_grad()
def output(optimizer: SequenceOptimizer, group: dict[str, Any], p: Tensor) -> Tensor:
    """Return the algorithm's output for one parameter.

    In the middle of a round, it is what it would be if the round ended now, with this worker alone.
    """
    algorithm, hp = optimizer.algorithm, optimizer.hyperparameters(group["last"])
    if optimizer.takes_mean:
        state: State = tuple(optimizer.sequences(p))
    else:
        sent, server = optimizer.kept(p, "sent"), optimizer.kept(p, "server")
        if group["taken"]:
            local, memory = tuple(optimizer.sequences(p)), optimizer.kept(p, "memory")
            message, _ = algorithm.leave(local, sent, memory, hp, ClientWork(steps=group["taken"]))
            sent, server = algorithm.serve(
                message, sent, server, hp, RoundInfo(number=optimizer.rounds)
            )
        state = (*sent, *server)
    w: Tensor = algorithm.output(state, hp, optimizer.steps)
    return w


# --- Two flat buffers that take turns: a mean to which the state moves need not be copied.


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
