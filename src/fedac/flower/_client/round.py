# SPDX-License-Identifier: Apache-2.0
"""A client's round: receive, enter, local steps, leave, compress, keep the memory, reply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedac.algorithms import ClientWork, State
from fedac.errors import InputError
from fedac.federation.checkpoint import Envelope
from fedac.federation.compression import FLOAT32, Sender
from fedac.federation.round import compress, leave
from fedac.federation.sampling import sample_batch
from fedac.flower._arrays import (
    BadArraysError,
    NamedArrays,
    NDArray,
    buffers_of,
    checksum,
    flatten,
    read_archive,
    read_like,
    require_like,
    to_record,
    unflatten,
    with_prefix,
    write_archive,
)
from fedac.flower._task import ARRAYS, CLIENT, MEMORY, METRICS, ROUND, STEPS, WEIGHT, Task, receive
from fedac.validate import require_count

log = logging.getLogger("flwr.fedac")

# The arrays of one sequence, in the order of the strategy's initial arrays.
ArrayList = list[NDArray]
GradFn = Callable[[ArrayList, "Step"], Sequence[npt.ArrayLike]]

MEMORY_FILE = Envelope(package="fedac.flower memory", version=1)


class ClientRound:
    """A training round of one client: it enters when it is created, and leaves with `reply`.

    Attributes are the server's `task`, the user's `config` entries, the `client` id and two sets of
    named arrays: what the server `sent`, and the `local` sequences and buffers to train. If the
    algorithm `asks_gradient`, set `gradient` to the mean gradient of all rows of the client at
    `broadcast`, the model and its buffers as they were sent.
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
        self.broadcast = self._model | buffers_of(self.sent)
        self.asks_gradient = "gradient" in algorithm.asks
        self.gradient: NamedArrays = {}
        self.local: NamedArrays = self.sent
        if algorithm.is_plain:
            return
        # Enter, with the memory that the server names. If there is none, or it is lost: the first.
        self._memory = ClientMemory(context.state, self.client, memory_folder)
        sequences = flatten(algorithm.sequences, self.sent, self._model)
        self._memory_before = algorithm.begin_memory(sequences)
        version = self.task.memory_version
        if algorithm.memory and version is None:
            raise InputError("the server's message does not name the memory to use")
        if version is not None and version.round:
            like = unflatten(algorithm.memory, self._memory_before, self._model)
            found = self._memory.find(version.run, version.round, like)
            self._memory_found, self._memory_lost = found is not None, found is None
            if found is not None:
                self._memory_before = flatten(algorithm.memory, found, self._model)
        local = algorithm.enter(sequences, self._memory_before, self.task.hp)
        named = unflatten(algorithm.local_sequences, local, self._model)
        self.local = buffers_of(self.sent) | named

    def take_full_gradient(self, model: Any) -> None:
        """Take the gradient of all rows of a NumPy model, if the algorithm asks for it."""
        if not self.asks_gradient:
            return
        self.require_full_gradient(
            getattr(model, "full_gradient", None), "give your model a method full_gradient(w)"
        )
        w = [array.copy() for array in self._model.values()]
        gradient = _checked_gradient(model.full_gradient(w), [*self._model.values()])
        self.gradient = dict(zip(self._model, gradient, strict=True))

    def require_full_gradient(self, function: object, advice: str) -> None:
        """Raise InputError if the user gave no function for the gradient of all rows."""
        if not callable(function):
            raise InputError(
                f"'{self.task.algorithm.name}' needs the gradient of all rows of the client at the "
                f"start of a round; {advice}"
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
            done = ClientWork(steps=steps)
            if self.asks_gradient:
                named = {f"w/{key}": array for key, array in self.gradient.items()}
                (gradient,) = flatten(("w",), named, self._model)
                done = ClientWork(steps=steps, gradient=gradient)
            with np.errstate(over="ignore", invalid="ignore"):  # as above
                # Leave.
                known = version is not None and self._memory_found and version.weight
                message, memory = leave(
                    algorithm,
                    local,
                    sequences,
                    self._memory_before,
                    task.hp,
                    done,
                    weight_ratio=known / numbers[WEIGHT] if known else 1.0,
                )
                # Compress.
                if task.wire == FLOAT32:
                    arrays = unflatten(algorithm.sent, message, self._model)
                else:
                    sender = Sender(task.wire, task.wire_seed, self.client, task.draws)
                    _, memory = compress(algorithm, message, sequences, memory, sender)
                    arrays = dict(zip(algorithm.sent, sender.data, strict=True))
                arrays = buffers_of(after) | arrays
                # Keep the memory.
                if version is not None:
                    self._memory.keep(
                        version.run,
                        task.makes,
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
            # The checksum of the message that the memory assumes: a modifier may still change it.
            records[MEMORY] = ConfigRecord(
                {"lost": self._memory_lost, "checksum": checksum(records[ARRAYS])}
            )
        if "steps" in algorithm.asks:
            numbers[STEPS] = steps
        records[METRICS] = MetricRecord({**numbers, ROUND: task.round})
        return Message(RecordDict(records), reply_to=self.message)


class ClientMemory:
    """What the algorithm of one client keeps from one of its rounds to the next.

    It is kept in ``context.state``, which lasts as long as the run and the node, and in the files
    of `folder` if there is one. There are two versions (see `MemoryVersion`): the one that the
    server knows of, and the new one, whose reply the server may never use.
    """

    def __init__(self, state: RecordDict, client: int, folder: str | Path | None = None) -> None:
        self.state, self.client = state, client
        self.folder = None if folder is None else Path(folder)

    def find(self, run: str, made_in: int, like: NamedArrays) -> dict[str, NDArray] | None:
        """Return the memory that a round made if it can be used, or None if it is lost.

        It must have the keys, shapes and types of `like`, and be finite.
        """
        try:
            record = self.state.array_records.get(self._key(run, made_in))
            return read_like(record or self._from_file(run, made_in), like)
        except (BadArraysError, InputError) as problem:
            log.warning(
                "client %d: its memory of round %d is lost, so it starts again: %s",
                self.client, made_in, problem,
            )  # fmt: skip
            return None

    def keep(self, run: str, made_in: int, arrays: NamedArrays, *, before: int | None) -> None:
        """Keep the memory that a round made and the one before it; delete older ones.

        Files of other runs stay: two runs may share a folder.
        """
        stay = {self._key(run, number) for number in (made_in, before) if number is not None}
        for key in [key for key in self.state if key.startswith("fedac-memory/")]:
            if key not in stay:
                del self.state[key]
        self.state[self._key(run, made_in)] = to_record(arrays)
        if self.folder is None:
            return
        try:
            header = {"client": self.client, "run": run, "round": made_in}
            write_archive(MEMORY_FILE, self._path(self.folder, run, made_in), header, arrays)
            # A slow process may write the file of an earlier round later: it stays unused.
            for path in self.folder.glob(f"client-{self.client}-{run}-*.npz"):
                number = path.stem.rpartition("-")[2]
                if number.isdigit() and int(number) < (before or made_in):
                    path.unlink(missing_ok=True)
        except OSError as error:  # the context has it, as long as the run lasts
            log.warning("client %d: cannot save its memory: %s", self.client, error)

    def _from_file(self, run: str, made_in: int) -> ArrayRecord:
        if self.folder is None:
            raise BadArraysError("the context of this run has none, and there is no memory_folder")
        path = self._path(self.folder, run, made_in)
        header, arrays = read_archive(MEMORY_FILE, path)
        if (header.get("run"), header.get("round")) != (run, made_in):
            raise BadArraysError(f"'{path}' is of another round")
        return to_record(arrays)

    def _key(self, run: str, number: int) -> str:
        return f"fedac-memory/{run}/{number}"

    def _path(self, folder: Path, run: str, number: int) -> Path:
        return folder / f"client-{self.client}-{run}-{number}.npz"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A local step: everything a gradient may depend on, except the arrays.

    Attributes
    ----------
    t, seed : int
        Its number, counted from the start of the run, and the seed of the run.
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
        states = [
            algorithm.update(state, w, g, task.hp)
            for state, w, g in zip(states, w_md, _checked_gradient(given, w_md), strict=True)
        ]
    return tuple(
        [np.asarray(after, dtype=before.dtype) for before, after in zip(old, new, strict=True)]
        for old, new in zip(sequences, zip(*states, strict=True), strict=True)
    )


def _checked_gradient(given: object, w: ArrayList) -> ArrayList:
    """Return a user's gradient as arrays of the types of w; they must have its shapes."""
    if not isinstance(given, Sequence):
        raise InputError(f"the gradient must be a list of arrays, got {type(given).__name__}")
    shapes, wanted = [np.shape(g) for g in given], [array.shape for array in w]
    if shapes != wanted:
        raise InputError(f"the gradient has arrays of shapes {shapes}, not {wanted}")
    return [np.asarray(g, dtype=array.dtype) for g, array in zip(given, w, strict=True)]


def client_id(context: Context) -> int:
    """Return a client's id: its ``partition-id`` or, without one, its node id."""
    return int(context.node_config.get("partition-id", context.node_id))


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
