"""A client's round: receive, enter, local steps, leave, compress, keep the memory, reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedac.algorithms import ClientWork, State
from fedac.errors import InputError
from fedac.federation.compression import FLOAT32, Sender
from fedac.federation.round import compress, leave
from fedac.federation.sampling import sample_batch
from fedac.flower._arrays import (
    NamedArrays,
    NDArray,
    buffers_of,
    checksum,
    flatten,
    from_record,
    require_like,
    to_record,
    unflatten,
    with_prefix,
)
from fedac.flower._client.memory import ClientMemory
from fedac.flower._task import (
    ARRAYS,
    CLIENT,
    CONFIG,
    MEMORY,
    METRICS,
    ROUND,
    TASK,
    WEIGHT,
    Task,
    users_entries,
)
from fedac.validate import require_count

# The arrays of one sequence, in the order of the strategy's initial arrays.
ArrayList = list[NDArray]
GradFn = Callable[[ArrayList, "Step"], Sequence[npt.ArrayLike]]


class ClientRound:
    """A training round of one client: it enters when it is created, and leaves with `reply`.

    It has the server's `task`, the user's `config` entries, the `client` id, and as named arrays
    what the server `sent` and what to work on: the algorithm's `local` sequences and buffers.
    """

    def __init__(
        self, message: Message, context: Context, memory_folder: str | Path | None = None
    ) -> None:
        # Receive.
        self.message, self.client = message, client_id(context)
        self.task, self.config, self.sent = receive(message)
        algorithm = self.task.algorithm
        self._model = with_prefix(algorithm.sequences[0], self.sent)
        self._memory_before: State = ()
        self._memory_found = self._memory_lost = False
        self.local: NamedArrays = self.sent
        if algorithm.is_plain:
            return
        # Enter.
        self._memory = ClientMemory(context.state, self.client, memory_folder)
        sequences = flatten(algorithm.sequences, self.sent, self._model)
        self._memory_before = self._find_memory(algorithm.begin_memory(sequences))
        local = algorithm.enter(sequences, self._memory_before, self.task.hp)
        self.local = buffers_of(self.sent) | unflatten(
            algorithm.local_sequences, local, self._model
        )

    def take_steps(self, grad_fn: GradFn) -> dict[str, NDArray]:
        """Take the local steps of a NumPy model; return the named arrays after them."""
        names = self.task.algorithm.local_sequences
        sequences = [with_prefix(name, self.local) for name in names]
        # The server drops replies that are not finite: an overflow needs no warning here.
        with np.errstate(over="ignore", invalid="ignore"):
            lists = [list(arrays.values()) for arrays in sequences]
            stepped = local_steps(grad_fn, lists, self.task, worker=self.client)
        return {
            f"{name}/{key}": array
            for name, before, after in zip(names, sequences, stepped, strict=True)
            for key, array in zip(before, after, strict=True)
        }

    def reply(self, after: NamedArrays, steps: int, metrics: Mapping[str, Any]) -> Message:
        """Leave the round after some local steps, and return the reply.

        `after` is like `local`. `metrics` are numbers, with "num-examples" among them.
        """
        task, algorithm, version = self.task, self.task.algorithm, self.task.memory_version
        task.require_steps(steps)
        numbers = require_metrics(metrics)
        arrays: Mapping[str, Any] = after
        if not algorithm.is_plain or task.wire != FLOAT32:
            require_like(after, self.local)  # in bytes the server could not see the difference
            sequences = flatten(algorithm.sequences, self.sent, self._model)
            local = flatten(algorithm.local_sequences, after, self._model)
            with np.errstate(over="ignore", invalid="ignore"):  # as above
                # Leave.
                known = version is not None and self._memory_found and version.weight
                message, memory = leave(
                    algorithm,
                    local,
                    sequences,
                    self._memory_before,
                    task.hp,
                    ClientWork(steps=steps),
                    weight_ratio=known / numbers[WEIGHT] if known else 1.0,
                )
                # Compress.
                if task.wire == FLOAT32:
                    arrays = unflatten(algorithm.sequences, message, self._model)
                else:
                    sender = Sender(task.wire, task.wire_seed, self.client, task.round - 1)
                    _, memory = compress(algorithm, message, sequences, memory, sender)
                    arrays = dict(zip(algorithm.sequences, sender.data, strict=True))
                arrays = buffers_of(after) | arrays
                # Keep the memory.
                if version is not None:
                    self._memory.keep(
                        version.run,
                        task.round,
                        unflatten(algorithm.memory, memory, self._model),
                        before=version.round if self._memory_found else None,
                    )
        # Reply, in the order of what was sent: Flower's modifiers compare arrays one by one.
        order = [*(key for key in self.sent if key in arrays), *arrays]
        records: dict[str, Any] = {
            ARRAYS: to_record({key: arrays[key] for key in order}),
            CLIENT: ConfigRecord({CLIENT: str(self.client)}),
        }
        if algorithm.memory:
            # The checksum of what the memory says was sent: a modifier may still change it.
            records[MEMORY] = ConfigRecord(
                {"lost": self._memory_lost, "checksum": checksum(records[ARRAYS])}
            )
        records[METRICS] = MetricRecord({**numbers, ROUND: task.round})
        return Message(RecordDict(records), reply_to=self.message)

    def _find_memory(self, first: State) -> State:
        """Return the memory that the server names; if there is none, or it is lost, the first."""
        names, version = self.task.algorithm.memory, self.task.memory_version
        if not names:
            return ()
        if version is None:
            raise InputError("the server's message does not name the memory to use")
        if not version.round:
            return first
        like = unflatten(names, first, self._model)
        arrays = self._memory.find(version.run, version.round, like)
        self._memory_found, self._memory_lost = arrays is not None, arrays is None
        return first if arrays is None else flatten(names, arrays, self._model)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A local step: everything a gradient may depend on, except the arrays.

    Attributes
    ----------
    t : int
        Its number, counted from the start of the run.
    seed : int
        The seed of the run.
    worker : int
        The client id: its ``partition-id`` or, without one, its node id.
    """

    t: int
    seed: int
    worker: int

    def rows(self, n: int, size: int = 1) -> npt.NDArray[np.int64]:
        """Draw `size` of n rows with replacement, the same in every runtime.

        They are the batch that the simulator's client with this id draws at step t.

        Examples
        --------
        >>> Step(t=0, seed=1, worker=2).rows(100)
        array([49])
        """
        n, size = require_count("the number of rows", n), require_count("size", size)
        return sample_batch(self.seed, self.worker, self.t, n, size)


def local_steps(
    grad_fn: GradFn, sequences: Sequence[ArrayList], task: Task, *, worker: int = 0
) -> tuple[ArrayList, ...]:
    """Take the task's local steps over lists of NumPy arrays.

    `sequences` are what the algorithm works on, each a list of arrays; they are not changed.
    ``grad_fn(w_md, step)`` returns the gradients in the same order. `worker` is the client id, for
    its draws.

    Examples
    --------
    Two steps of FedAvg on w^2/2:

    >>> from fedac.algorithms import FEDAVG
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=2)
    >>> task = Task(algorithm=FEDAVG, hp=hp, round=1, first_step=0, local_steps=2, seed=0)
    >>> local_steps(lambda w, step: w, [[np.array([8.0])]], task)
    ([array([2.])],)
    """
    algorithm = task.algorithm
    # query and update get the sequences of one array at a time.
    states: list[State] = list(zip(*sequences, strict=True))
    for t in range(task.first_step, task.first_step + task.local_steps):
        w_md = [np.asarray(algorithm.query(state, task.hp)) for state in states]
        # Copies, because a gradient may be computed in place.
        given = grad_fn([w.copy() for w in w_md], Step(t=t, seed=task.seed, worker=worker))
        if not isinstance(given, Sequence):
            raise InputError(f"the gradient must be a list of arrays, got {type(given).__name__}")
        shapes, wanted = [np.shape(g) for g in given], [w.shape for w in w_md]
        if shapes != wanted:
            raise InputError(f"the gradient has arrays of shapes {shapes}, not {wanted}")
        states = [
            algorithm.update(state, w, np.asarray(g, dtype=w.dtype), task.hp)
            for state, w, g in zip(states, w_md, given, strict=True)
        ]
    return tuple(
        [np.asarray(after, dtype=before.dtype) for before, after in zip(old, new, strict=True)]
        for old, new in zip(sequences, zip(*states, strict=True), strict=True)
    )


def client_id(context: Context) -> int:
    """Return a client's id: its ``partition-id`` or, without one, its node id.

    >>> config = {"partition-id": 3, "num-partitions": 8}
    >>> client_id(Context(1, 77, config, RecordDict(), {}))
    3
    """
    return int(context.node_config.get("partition-id", context.node_id))


def receive(message: Message) -> tuple[Task, dict[str, Any], dict[str, NDArray]]:
    """Return the task, the user's config entries and the arrays of a message."""
    config: Mapping[str, Any] = message.content.config_records.get(CONFIG, {})
    if TASK not in config:
        raise InputError(
            "the server's strategy is not one of fedac.flower, whose messages this client needs: "
            "on the server, replace Flower's strategy by "
            "fedac.flower.FedAvg(eta=..., local_steps=...), FedAc or LocalStrategy"
        )
    arrays = from_record(message.content.array_records[ARRAYS])
    return Task.from_json(config[TASK]), users_entries(config), arrays


def require_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as Python numbers, "num-examples" among them."""
    if not isinstance(metrics, Mapping):
        raise InputError(f"metrics must be a dict of numbers, got {type(metrics).__name__}")
    if WEIGHT not in metrics:
        raise InputError(f"metrics need '{WEIGHT}', how many examples this client has")
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"metric '{name}' must be a number, got {value!r:.60}") from None
    return numbers | {WEIGHT: require_count(WEIGHT, metrics[WEIGHT])}


class ClientError(RuntimeError):
    """An exception on a client; the message begins with the client id."""


@contextmanager
def signed(client: int) -> Iterator[None]:
    """Put the client id before the text of exceptions, in one line.

    Flower sends only the text to the server. An error without a client id then comes from a
    ClientApp that does not know our messages, or from Flower.
    """
    try:
        yield
    except ClientError:  # it has the id already
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ClientError(f"client {client}: {text}") from error
