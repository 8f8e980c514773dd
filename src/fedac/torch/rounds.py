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

from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.record import State
from fedac.torch.layout import write
from fedac.torch.packets import Packet
from fedac.torch.settings import is_paused
from fedac.torch.state import SequenceOptimizer
from fedac.wire import Sender


class _Left(NamedTuple):
    """How a worker left the round with one parameter group."""

    params: list[Tensor]
    hp: Hyperparameters
    steps: int
    stood: bool  # whether it stood still in all workers: then the round changes nothing


class Round:
    """A round that this worker has left, until the mean of all messages arrives.

    Nothing of the optimizer changes before `serve` or `close`. Where the mean is all that ends a
    round, the message is what local steps work on, and takes the mean's place in the end. A worker
    that is `idle` has taken no step, unlike others, and its message is not used.

    Attributes
    ----------
    message : list of Tensor
        What is sent: of every parameter as many tensors as the algorithm has sequences.
    """

    @torch.no_grad()
    def __init__(
        self, optimizer: SequenceOptimizer, params: Sequence[Tensor], *, idle: bool = False
    ) -> None:
        self._optimizer = optimizer
        self._memory: dict[Tensor, State] = {}
        self._groups: list[_Left] = []
        self.message: list[Tensor] = []
        trained = set(map(id, params))  # a tensor's own hash takes longer
        for group in optimizer.param_groups:
            mine = [p for p in group["params"] if id(p) in trained]
            stood = is_paused(group) if idle else not group["taken"]
            hp = optimizer.hyperparameters(group["last"])
            left = _Left(mine, hp, group["taken"], stood)
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

    @torch.no_grad()
    def pack(self, sender: Sender, buffers: Sequence[Tensor]) -> Packet:
        """Round the message for the wire; what this worker will remember follows what arrives."""
        optimizer, S = self._optimizer, len(self._optimizer.algorithm.sequences)
        params = [p for p, _ in self._each_parameter()]
        packet = Packet(
            optimizer.algorithm,
            message=[tuple(self.message[S * i : S * (i + 1)]) for i in range(len(params))],
            began=[optimizer.kept(p, "sent") for p in params],
            memory=[self._memory.get(p) or optimizer.kept(p, "memory") for p in params],
            buffers=buffers,
            sender=sender,
        )
        for p, memory in zip(params, packet.memory, strict=True):
            if p in self._memory:
                self._memory[p] = memory
        return packet

    @torch.no_grad()
    def serve(self, mean: Sequence[Tensor], *, share: float, used: bool) -> None:
        """Do with the mean message what the server does, and remember the round.

        A worker whose message was not used does not: what the others know of it has not changed.
        """
        optimizer, received = self._optimizer, iter(mean)
        for p, left in self._each_parameter():
            message = tuple(next(received) for _ in optimizer.algorithm.sequences)
            if not left.stood:
                sent, server = optimizer.kept(p, "sent"), optimizer.kept(p, "server")
                serve = optimizer.algorithm.serve
                after = serve(message, sent, server, left.hp, optimizer.rounds, share)
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
        message, after = optimizer.algorithm.leave(local, sent, memory, left.hp, left.steps)
        # Copies: what is remembered may be what local steps move on.
        self._memory[p] = tuple(tensor.clone() for tensor in after)
        return message

    def _each_parameter(self) -> Iterator[tuple[Tensor, _Left]]:
        for left in self._groups:
            for p in left.params:
                yield p, left


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
            message, _ = algorithm.leave(local, sent, memory, hp, group["taken"])
            sent, server = algorithm.serve(message, sent, server, hp, optimizer.rounds, 1.0)
        state = (*sent, *server)
    w: Tensor = algorithm.output(state, hp, optimizer.steps)
    return w
