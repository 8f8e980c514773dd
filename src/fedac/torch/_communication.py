"""How processes communicate: messages, and clear errors if one is lost or differs."""

from __future__ import annotations

import atexit
import json
import math
import time
import traceback
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.errors import InputError
from fedac.federation.schedule import Decay
from fedac.validate import require_nonnegative

# Longer values are cut in errors.
LONG = 100


class WorkerLostError(RuntimeError):
    """A synchronization failed: a worker has died or cannot be reached."""


class NonFiniteStateError(RuntimeError):
    """A worker's state holds NaN or infinity; no worker's state was changed."""


class Workers:
    """Processes that are averaged, with messages on `device`.

    A worker is one process, or all processes of a `node`, which train as one. Then one of them, the
    only one in `group`, communicates with other nodes, and hands on to its node what it receives.

    Parameters
    ----------
    group, node : ProcessGroup, optional
        See `Synchronizer`.
    device : torch.device
        Where messages are.

    Attributes
    ----------
    rank, size : int
        The rank of this worker, and the number of workers.
    leads : bool
        Whether this process communicates with other workers.
    leaders : list of int
        Where such processes are in what `exchange` returns.
    activity : str
        What the processes are doing, for errors.
    """

    _owns_groups = _lost = False
    _work: tuple[Any, ...] = ()  # sums or a gathering that were started

    def __init__(self, group: Any, node: Any, *, device: torch.device) -> None:
        _users.add(self)
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "there is no process group: call torch.distributed.init_process_group first, and "
                "start the program with torchrun"
            )
        for name, given in (("group", group), ("node", node)):
            if not (given in (None, dist.GroupMember.NON_GROUP_MEMBER) or is_group(given)):
                raise InputError(
                    f"{name} must be a process group, as torch.distributed.new_group returns, got "
                    f"{given!r}"
                )
        self.group: Any = dist.group.WORLD if group is None else group
        self.node, self.device = node, device
        self.activity = "the start"
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.leads = self.rank >= 0
        self.leaders = list(range(self.size))
        if node is None and not self.leads:
            raise InputError("this process is not a member of the group")
        if node is not None:
            self._find_leaders()

    def use_own_groups(self, timeout: float | None) -> None:
        """From now on communicate in groups of our own: no message of the user's can meet ours."""
        with self.guard():
            if self.leads:
                self.group = own_group(self.group, self.device, timeout)
            if self.node is not None:
                self.node = own_group(self.node, self.device, timeout)
        self._owns_groups = True

    def exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the messages of all processes, by rank. They are sent as JSON, not as pickles.

        Those of one node follow each other.
        """
        texts = [json.dumps(message)]
        if self.node is not None:
            texts = self._gather_texts(texts, self.node)
        if self.leads:
            texts = self._gather_texts(texts, self.group)
        if self.node is not None:
            texts = json.loads(self.hand_on_bytes(json.dumps(texts).encode()))
        return [json.loads(text) for text in texts]

    def start_sum(self, *buffers: Tensor) -> None:
        """Start to add up buffers over all workers, in place; call `finish` with them later."""
        with self.guard():
            if self.leads:
                self._work = tuple(
                    dist.all_reduce(buffer, group=self.group, async_op=True) for buffer in buffers
                )

    def start_gather(self, mine: Tensor) -> Tensor:
        """Start to gather a flat tensor of all workers; call `finish` with the result later.

        Every worker sends to every other one at once. An all-gather would hand messages on from one
        to the next, and wait for a round trip each time.
        """
        rows = torch.empty(self.size, len(mine), dtype=mine.dtype, device=mine.device)
        rows[self.rank] = mine
        with self.guard():
            if self.leads and self.size > 1:
                others = [m for m in range(self.size) if m != self.rank]
                # First what is expected: that is announced, and must not wait behind a message.
                work = [self._directly(dist.irecv, rows[m], m) for m in others]
                work += [self._directly(dist.isend, mine, m) for m in others]
                self._work = tuple(dist.batch_isend_irecv(work))
        return rows

    def finish(self, *tensors: Tensor) -> None:
        """Wait for sums or rows."""
        with self.guard():
            if self.leads:
                for work in self._work:
                    work.wait()
                self._work = ()  # it keeps the tensors alive
            for tensor in tensors:
                self._hand_on(tensor)

    def broadcast(self, tensor: Tensor, *, source: int = 0) -> None:
        """Give all processes the tensor of one worker."""
        with self.guard():
            if self.leads:
                dist.broadcast(tensor, dist.get_global_rank(self.group, source), group=self.group)
            self._hand_on(tensor)

    def broadcast_bytes(self, data: bytes, *, source: int = 0) -> bytes:
        """Return the bytes that one worker has; what the others give does not matter."""
        length = torch.tensor([len(data)], device=self.device)
        self.broadcast(length, source=source)
        sends = self.leads and self.rank == source
        tensor = self._as_tensor(data, int(length) if not sends else len(data))
        self.broadcast(tensor, source=source)
        return bytes(tensor.cpu().numpy())

    def sum_in_node(self, x: float) -> float:
        """Return the sum of a number over the processes of this worker."""
        if self.node is None:
            return x
        total = torch.tensor([x], dtype=torch.float64, device=self.device)
        with self.guard():
            dist.all_reduce(total, group=self.node)
        return float(total)

    def averages_gradients(self, model: object) -> bool:
        """Check whether a model averages its gradients over some of the workers."""
        if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
            return False
        mine = dist.get_process_group_ranks(self.group)
        return len(set(dist.get_process_group_ranks(model.process_group)) & set(mine)) > 1

    def require_same_in_node(self, x: float) -> None:
        """Refuse processes of one node that have different parameters, of which x is the sum."""
        if self.node is None:
            return
        mine = torch.tensor([x], dtype=torch.float64, device=self.device)
        rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.node))]
        with self.guard():
            dist.all_gather(rows, mine, group=self.node)
        if any(not torch.isclose(row, mine, rtol=1e-5, equal_nan=True) for row in rows):
            raise InputError(
                "the processes of one node have different parameters: wrap the model in "
                "DistributedDataParallel(model, process_group=node), and train what it returns"
            )

    def hand_on_bytes(self, data: bytes) -> bytes:
        """Return the bytes of the process that leads the node."""
        length = torch.tensor([len(data)], device=self.device)
        with self.guard():
            self._hand_on(length)
            tensor = self._as_tensor(data, int(length))
            self._hand_on(tensor)
        return bytes(tensor.cpu().numpy())

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
                "last checkpoint. (All processes must take as many steps, or use averages.join(), "
                f"and all must call synchronize, checkpoint and resume. {reason})"
            ) from error

    def _find_leaders(self) -> None:
        """Let the processes of a node find the one that communicates with other nodes."""
        mine = torch.tensor([self.rank, self.size], device=self.device)
        rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.node))]
        with self.guard():
            dist.all_gather(rows, mine, group=self.node)
        found = [i for i, row in enumerate(rows) if int(row[0]) >= 0]
        if len(found) != 1:
            raise InputError(
                f"group must have one process of every node; it has {len(found)} of this one"
            )
        self._leader = dist.get_global_rank(self.node, found[0])
        self.rank, self.size = rows[found[0]].tolist()
        reports = self.exchange({"leads": self.leads})
        self.leaders = [i for i, theirs in enumerate(reports) if theirs["leads"]]

    def _leave_groups(self, error: RuntimeError) -> None:
        """Break all connections of our own groups, so that no other process waits for this one."""
        mine = {group for group in (self.group, self.node) if self._owns_groups and not self._lost}
        self.group, self.node, self._work = None, None, ()
        self._lost = True
        traceback.clear_frames(error.__traceback__)  # they would keep connections alive
        for key, group in list(_own.items()):
            if group in mine:
                _discard(key)

    def _directly(self, do: Any, tensor: Tensor, other: int) -> dist.P2POp:
        return dist.P2POp(do, tensor, dist.get_global_rank(self.group, other), self.group)

    def _hand_on(self, tensor: Tensor) -> None:
        if self.node is not None:
            dist.broadcast(tensor, self._leader, group=self.node)

    def _as_tensor(self, data: bytes, length: int) -> Tensor:
        if len(data) != length:  # it is about to be received
            return torch.empty(length, dtype=torch.uint8, device=self.device)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)

    def _gather_texts(self, texts: list[str], group: Any) -> list[str]:
        """Return the texts of all processes of a group."""
        mine = json.dumps(texts).encode()
        size = dist.get_world_size(group)
        lengths = [torch.empty(1, dtype=torch.int64, device=self.device) for _ in range(size)]
        with self.guard():
            dist.all_gather(lengths, torch.tensor([len(mine)], device=self.device), group=group)
            longest = max(int(length) for length in lengths)
            tensor = self._as_tensor(mine.ljust(longest), longest)
            rows = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(rows, tensor, group=group)
        return [text for row in rows for text in json.loads(bytes(row.cpu().numpy()))]


def is_group(thing: object) -> bool:
    """Check for a process group."""
    return isinstance(thing, dist.ProcessGroup)


# Groups of our own by their ranks and timeout, and the default group they were made from: every
# group has threads and sockets, so a later synchronizer takes them over.
_own: dict[Any, Any] = {}
_made_from: Any = None
_users: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """Let our groups end their threads while the interpreter still runs.

    A thread of gloo that drops the last reference to a tensor needs the interpreter. If that is
    gone, the process aborts: "terminate called without an active exception".
    """
    global _made_from
    for workers in list(_users):
        workers.group, workers.node, workers._work = None, None, ()
    _own.clear()
    _made_from = None


def own_group(group: Any, device: torch.device, timeout: float | None) -> Any:
    """Return a group of our own with the processes of another one; all of them must call it."""
    global _made_from
    if _made_from is not dist.group.WORLD:
        _own.clear()
        _made_from = dist.group.WORLD
    ranks = dist.get_process_group_ranks(group)
    limit = (
        group._get_backend(device).options._timeout
        if timeout is None
        else timedelta(seconds=timeout)
    )
    key = (*ranks, limit)
    if not all(_gather_numbers(int(key in _own), group, device)):
        if key in _own:  # others have left it after a failure
            _discard(key)
        # PyTorch calls a new group by the number of groups that a process is in. Processes that
        # call it differently never meet, so those that are in fewer make some more.
        count = len(dist.distributed_c10d._world.pg_names)
        for _ in range(max(_gather_numbers(count, group, device)) - count):
            _add_group()
        _own[key] = dist.new_group(ranks, timeout=limit, use_local_synchronization=True)
    return _own[key]


def _discard(key: Any) -> None:
    """Leave a group of our own for good."""
    dist.destroy_process_group(_own.pop(key))
    _add_group()  # so that none is called like it: it would find the addresses of this one


def _add_group() -> None:
    """Let PyTorch count a group more: one that connects nothing, as the store may be lost."""
    names: dict[Any, Any] = dist.distributed_c10d._world.pg_names
    nobody: Any = dist.ProcessGroup
    names[nobody(0, 1)] = f"placeholder of fedac {len(names)}"


def _gather_numbers(mine: int, group: Any, device: torch.device) -> list[int]:
    number = torch.tensor([mine], device=device)
    numbers = [torch.empty_like(number) for _ in range(dist.get_world_size(group))]
    dist.all_gather(numbers, number, group=group)
    return [int(number) for number in numbers]


def require_same(name: str, values: Sequence[object]) -> None:
    """Refuse processes whose values, given by rank, differ.

    >>> require_same("local_steps", [8, 8, 16])
    Traceback (most recent call last):
    fedac.errors.InputError: processes differ in local_steps: 8 at rank 0, 1; 16 at rank 2
    """
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        text = str(value)
        if len(text) > LONG:  # the hash shows that texts differ after their beginning
            text = f"{text[:LONG]}... ({zlib.crc32(text.encode()):08x})"
        ranks.setdefault(text, []).append(str(rank))
    if len(ranks) > 1:
        found = "; ".join(f"{text} at rank {', '.join(who)}" for text, who in ranks.items())
        raise InputError(f"processes differ in {name}: {found}")


# --- The settings of parameter groups: lr, mu, weight_decay and local_steps, as used and saved.

# Schedulers end near 0, not at 0: LinearLR at -5e-19, say.
ROUNDING = 1e-12
# Processes compute their lr with different roundings: on other hardware, or by other formulas.
TOLERANCE = 1e-9
# What groups of other optimizers may hold; ours would silently ignore it.
UNSUPPORTED = ("momentum", "dampening", "nesterov", "betas", "maximize", "foreach")


def plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group as Python's numbers: NumPy's and tensors cannot be saved.

    An lr that falls is that of the first round. Older files have no weight decay.
    """
    settings = {name: group[name] for name in ("lr", "mu", "local_steps")}
    settings["weight_decay"] = group.get("weight_decay", 0.0)
    if isinstance(settings["lr"], Decay):
        settings["lr"] = settings["lr"].start
    return {n: v.item() if hasattr(v, "item") else v for n, v in settings.items()}


def settings_of(groups: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Return lr, mu and weight_decay of all groups: what processes must have in common.

    The other hyperparameters follow from them.
    """
    names = ("lr", "mu", "weight_decay")
    return [[float(group[name]) for name in names] for group in groups]


def adopt(groups: Sequence[dict[str, Any]], settings: Sequence[Sequence[float]]) -> None:
    """Take over the settings of another process."""
    for group, (lr, mu, weight_decay) in zip(groups, settings, strict=True):
        group.update(lr=lr, mu=mu, weight_decay=weight_decay)
        group["last"] = plain_settings(group)


def require_close(name: str, by_rank: Sequence[list[list[float]]]) -> None:
    """Refuse processes whose lr, mu or weight_decay differ by more than rounding.

    >>> require_close("settings", [[[0.3, 1.0, 0.0]], [[0.1 + 0.2, 1.0, 0.0]]])
    >>> require_close("settings", [[[0.3, 1.0, 0.0]], [[0.2, 1.0, 0.0]]])
    Traceback (most recent call last):
    fedac.errors.InputError: processes differ in settings: lr=0.3 mu=1.0 at rank 0; lr=0.2 mu=1.0 \
at rank 1
    """
    first, *others = ([x for group in settings for x in group] for settings in by_rank)
    for other in others:
        pairs = zip(first, other, strict=False)
        close = all(math.isclose(x, y, rel_tol=TOLERANCE) for x, y in pairs)
        if not close or len(first) != len(other):
            require_same(name, [" | ".join(map(_describe, settings)) for settings in by_rank])


def _describe(settings: list[float]) -> str:
    lr, mu, weight_decay = settings
    return f"lr={lr!r} mu={mu!r}" + (f" weight_decay={weight_decay!r}" if weight_decay else "")


def require_weight_decay(settings: dict[str, Any]) -> float:
    """Return the weight decay, or refuse one that cannot be.

    >>> require_weight_decay({"lr": 0.5, "weight_decay": 3.0})
    Traceback (most recent call last):
    fedac.errors.InputError: lr * weight_decay must be below 1, got 0.5 * 3.0: a step would turn \
the signs of the parameters
    """
    lr, weight_decay = settings["lr"], require_nonnegative("weight_decay", settings["weight_decay"])
    if lr * weight_decay >= 1:
        raise InputError(
            f"lr * weight_decay must be below 1, got {lr} * {weight_decay}: a step would turn the "
            "signs of the parameters"
        )
    return weight_decay


def is_paused(group: dict[str, Any]) -> bool:
    """Check whether lr is 0, up to a scheduler's rounding."""
    return bool(abs(group["lr"]) <= ROUNDING * group.get("initial_lr", 0.0))


def require_supported(group: dict[str, Any]) -> None:
    """Refuse a group with settings of other optimizers.

    >>> require_supported({"params": [], "momentum": 0.9})
    Traceback (most recent call last):
    fedac.errors.InputError: a parameter group can set lr, mu and weight_decay, not momentum
    """
    for name in UNSUPPORTED:
        if group.get(name):
            raise InputError(f"a parameter group can set lr, mu and weight_decay, not {name}")


def upgrade(saved: dict[str, Any], groups: str) -> dict[str, Any]:
    """Return a saved state as it is now; `groups` is the name of its groups.

    Some of version 4, and all before, have no weight decay.
    Before version 4, there were only algorithms that do not count rounds and steps in a round.
    Before version 3, "last" was "shown", None at first, and a paused group had no rule.
    """
    saved = {"rounds_served": saved.get("rounds", 0), **saved}
    more = {"taken": 0, "weight_decay": 0.0, "counted": []}
    saved[groups] = [more | group for group in saved[groups]]
    for group in saved[groups]:
        if "shown" in group:
            group["last"] = group.pop("shown") or group
        group["last"] = plain_settings(group["last"])
    if "rules" not in saved:
        rule = {"algorithm": saved["algorithm"]}
        saved["rules"] = [
            rule | {"hyperparameters": hp, "settings": plain_settings(group)}
            for hp, group in zip(saved["coupling"], saved[groups], strict=True)
            if hp is not None
        ]
    return saved
