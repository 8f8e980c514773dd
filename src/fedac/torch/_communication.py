# SPDX-License-Identifier: Apache-2.0
"""Communication between workers: collectives, and clear errors if a process is lost or differs."""

from __future__ import annotations

import atexit
import json
import time
import traceback
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedac.errors import InputError

# Longer values are truncated in errors.
LONG = 100


class WorkerLostError(RuntimeError):
    """A synchronization failed: a worker died or cannot be reached."""


class NonFiniteStateError(RuntimeError):
    """A worker's state holds NaN or infinity; no worker's state was changed."""


class Workers:
    """The workers that are averaged, with messages on `device`.

    A worker is one process, or all processes of a `node`, which train as one. Then one of them, the
    leader, is in `group`: it communicates with other nodes and passes on what it receives.
    """

    _owns_groups = _lost = False
    _work: tuple[Any, ...] = ()  # collectives under way

    def __init__(self, group: Any, node: Any, *, device: torch.device) -> None:
        _users.add(self)
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "there is no process group: call torch.distributed.init_process_group first, and "
                "start the program with torchrun"
            )
        for name, given in (("group", group), ("node", node)):
            is_group = isinstance(given, dist.ProcessGroup)
            if not (given in (None, dist.GroupMember.NON_GROUP_MEMBER) or is_group):
                raise InputError(
                    f"{name} must be a process group, as torch.distributed.new_group returns, got "
                    f"{given!r}"
                )
        self.group: Any = dist.group.WORLD if group is None else group
        self.node, self.device = node, device
        self.activity = "the start"  # for errors
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.leads = self.rank >= 0
        self.leaders = list(range(self.size))  # indices in the result of `exchange`
        if node is None and not self.leads:
            raise InputError("this process is not a member of the group")
        if node is not None:
            self._find_leaders()

    def use_own_groups(self, timeout: float | None) -> None:
        """Switch to private groups, so that our messages cannot mix with the user's."""
        with self.guard():
            if self.leads:
                self.group = own_group(self.group, self.device, timeout)
            if self.node is not None:
                self.node = own_group(self.node, self.device, timeout)
        self._owns_groups = True

    def exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the messages of all processes, by node and rank; they are sent as JSON."""
        messages = [message]
        if self.node is not None:
            messages = self._gather_json(messages, self.node)
        if self.leads:
            messages = self._gather_json(messages, self.group)
        if self.node is not None:  # only the leader knows the messages of other nodes
            messages = self._gather_json(messages if self.leads else [], self.node)
        return messages

    def start_sum(self, *buffers: Tensor) -> None:
        """Start an all-reduce of buffers, in place; call `finish` with them later."""
        with self.guard():
            if self.leads:
                self._work = tuple(
                    dist.all_reduce(buffer, group=self.group, async_op=True) for buffer in buffers
                )

    def start_gather(self, mine: Tensor) -> Tensor:
        """Start to gather the flat tensors of all workers; call `finish` with the result later.

        Every worker sends to all others at once. An all-gather would pass messages from one to the
        next, and wait for a round trip each time.
        """
        rows = torch.empty(self.size, len(mine), dtype=mine.dtype, device=mine.device)
        rows[self.rank] = mine
        with self.guard():
            if self.leads and self.size > 1:
                others = [m for m in range(self.size) if m != self.rank]
                peer = {m: dist.get_global_rank(self.group, m) for m in others}
                # Receives first: they are announced, and must not wait behind a message.
                work = [dist.P2POp(dist.irecv, rows[m], peer[m], self.group) for m in others]
                work += [dist.P2POp(dist.isend, mine, peer[m], self.group) for m in others]
                self._work = tuple(dist.batch_isend_irecv(work))
        return rows

    def finish(self, *tensors: Tensor) -> None:
        """Wait for the collectives that were started with these tensors."""
        with self.guard():
            if self.leads:
                for work in self._work:
                    work.wait()
                self._work = ()  # it keeps the tensors alive
            for tensor in tensors:
                self._pass_on(tensor)

    def broadcast(self, tensor: Tensor, *, source: int = 0) -> None:
        """Copy the tensor of one worker to all processes."""
        with self.guard():
            if self.leads:
                dist.broadcast(tensor, dist.get_global_rank(self.group, source), group=self.group)
            self._pass_on(tensor)

    def broadcast_bytes(self, data: bytes, *, source: int = 0) -> bytes:
        """Return the bytes that the source worker passes."""
        length = torch.tensor([len(data)], device=self.device)
        self.broadcast(length, source=source)
        sends = self.leads and self.rank == source
        tensor = self._as_tensor(data if sends else bytes(int(length)))
        self.broadcast(tensor, source=source)
        return bytes(tensor.cpu().numpy())

    def sum_in_node(self, x: float) -> float:
        """Return the sum of a number over the processes of this worker."""
        return x if self.node is None else sum(self._gather_in_node(x))

    def require_same_in_node(self, x: float) -> None:
        """Reject processes of one node with different parameters; x is their sum."""
        sums = self._gather_in_node(x)
        if not np.allclose(sums, x, rtol=1e-5, equal_nan=True):
            raise InputError(
                "the processes of this node have different parameters: wrap the model in "
                "DistributedDataParallel(model, process_group=node), and train what it returns"
            )

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Explain the errors of PyTorch's own communication."""
        before = time.perf_counter()
        try:
            if self._lost:
                raise RuntimeError("an earlier one has failed")
            yield
        except WorkerLostError:  # explained already
            raise
        except RuntimeError as error:
            waited = time.perf_counter() - before
            reason = str(error).partition("\n")[0]
            self._leave_groups(error)
            raise WorkerLostError(
                f"rank {self.rank} of {self.size}: {self.activity} failed after {waited:.1f} s; a "
                "worker has died, cannot be reached, or has stopped taking steps. Restart from the "
                "last checkpoint. (All processes must take the same number of steps, or use "
                "averages.join(), and all must call synchronize, checkpoint and resume. "
                f"{reason})"
            ) from error

    def _find_leaders(self) -> None:
        """Find the process of this node that communicates with other nodes."""
        ranks = self._gather_in_node(self.rank)
        found = [i for i, rank in enumerate(ranks) if rank >= 0]
        if len(found) != 1:
            raise InputError(
                f"group must have one process of every node; it has {len(found)} of this one"
            )
        self._leader = dist.get_global_rank(self.node, found[0])
        self.rank, self.size = int(ranks[found[0]]), int(max(self._gather_in_node(self.size)))
        reports = self.exchange({"leads": self.leads})
        self.leaders = [i for i, theirs in enumerate(reports) if theirs["leads"]]

    def _leave_groups(self, error: RuntimeError) -> None:
        """Close the connections of private groups, so that no process waits for this one."""
        mine = {group for group in (self.group, self.node) if self._owns_groups and not self._lost}
        self.group, self.node, self._work = None, None, ()
        self._lost = True
        traceback.clear_frames(error.__traceback__)  # they would keep connections alive
        for key, group in list(_own.items()):
            if group in mine:
                _discard(key)

    def _pass_on(self, tensor: Tensor) -> None:
        if self.node is not None:
            dist.broadcast(tensor, self._leader, group=self.node)

    def _gather_in_node(self, x: float) -> list[float]:
        with self.guard():
            return _gather_numbers(x, self.node, self.device)

    def _as_tensor(self, data: bytes) -> Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)

    def _gather_json(self, messages: list[Any], group: Any) -> list[Any]:
        """Return the messages of all processes of a group."""
        mine = json.dumps(messages).encode()
        with self.guard():
            longest = max(_gather_numbers(len(mine), group, self.device))
            tensor = self._as_tensor(mine.ljust(int(longest)))
            rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
            dist.all_gather(rows, tensor, group=group)
        return [message for row in rows for message in json.loads(bytes(row.cpu().numpy()))]


# Private groups by ranks and timeout, and the default group they were made from. Every group has
# threads and sockets, so a later synchronizer takes them over.
_own: dict[Any, Any] = {}
_made_from: Any = None
_users: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """End the threads of our groups while the interpreter is still running.

    A gloo thread that drops the last reference to a tensor needs the interpreter. Without it the
    process aborts: "terminate called without an active exception".
    """
    global _made_from
    for workers in list(_users):
        workers.group, workers.node, workers._work = None, None, ()
    _own.clear()
    _made_from = None


def own_group(group: Any, device: torch.device, timeout: float | None) -> Any:
    """Return a private group of the same processes; all of them must call it."""
    global _made_from
    if _made_from is not dist.group.WORLD:
        _own.clear()
        _made_from = dist.group.WORLD
    ranks = dist.get_process_group_ranks(group)
    limit = group._get_backend(device).options._timeout
    if timeout is not None:
        limit = timedelta(seconds=timeout)
    key = (*ranks, limit)
    if not all(_gather_numbers(int(key in _own), group, device)):
        if key in _own:  # others have left it after a failure
            _discard(key)
        # PyTorch names a new group after the number of groups that a process is in, and processes
        # with different names never meet. The leader of a node is in one group more than its
        # other processes, which make up for it.
        count = len(dist.distributed_c10d._world.pg_names)
        for _ in range(int(max(_gather_numbers(count, group, device))) - count):
            _add_placeholder()
        _own[key] = dist.new_group(ranks, timeout=limit, use_local_synchronization=True)
    return _own[key]


def _discard(key: Any) -> None:
    """Leave a private group for good."""
    dist.destroy_process_group(_own.pop(key))
    _add_placeholder()  # a new group of the same name would find the addresses of this one


def _add_placeholder() -> None:
    """Make PyTorch count one more group, which connects nothing: the store may be lost."""
    names: dict[Any, Any] = dist.distributed_c10d._world.pg_names
    nobody: Any = dist.ProcessGroup
    names[nobody(0, 1)] = f"placeholder of fedac {len(names)}"


def _gather_numbers(mine: float, group: Any, device: torch.device) -> list[float]:
    number = torch.tensor([mine], dtype=torch.float64, device=device)
    numbers = [torch.empty_like(number) for _ in range(dist.get_world_size(group))]
    dist.all_gather(numbers, number, group=group)
    return [float(number) for number in numbers]


def require_same(name: str, values: Sequence[object], advice: str = "") -> None:
    """Reject processes whose values, listed by rank, differ."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        text = str(value)
        if len(text) > LONG:  # the hash shows that texts differ after their beginning
            text = f"{text[:LONG]}... ({zlib.crc32(text.encode()):08x})"
        ranks.setdefault(text, []).append(str(rank))
    if len(ranks) > 1:
        found = "; ".join(f"{text} at rank {', '.join(who)}" for text, who in ranks.items())
        raise InputError(f"processes differ in {name}: {found}{advice}")
