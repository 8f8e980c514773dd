"""The client: K local steps from the sequences it gets; it keeps nothing between rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedac.errors import InputError
from fedac.flower.messages import (
    ARRAYS,
    BUFFER,
    CONFIG,
    METRICS,
    OUTPUT,
    ROUND,
    TASK,
    WEIGHT,
    NamedArrays,
    NDArray,
    add_prefix,
    from_record,
    to_record,
    with_prefix,
)
from fedac.flower.steps import ArrayList, Step, local_steps
from fedac.flower.task import Task
from fedac.require import require_count


@runtime_checkable
class Model(Protocol):
    """What `make_model` returns: a NumPy model of one client."""

    n_examples: int
    """How many examples this client has: its weight if weights are used."""

    def gradient(self, w: ArrayList, step: Step) -> Sequence[npt.ArrayLike]:
        """Return the stochastic gradient at w, a list of arrays of the same shapes."""
        ...

    def evaluate(self, w: ArrayList) -> Mapping[str, float]:
        """Return metrics of the output w on this client's data; "loss" among them."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """Or a model that takes its local steps itself; see `TorchModel`."""

    n_examples: int

    def train(
        self, sequences: Mapping[str, NamedArrays], buffers: NamedArrays, task: Task, worker: int
    ) -> tuple[Mapping[str, NamedArrays], NamedArrays, Mapping[str, float]]:
        """Return the sequences and buffers after the task, and metrics."""
        ...

    def evaluate_arrays(self, w: NamedArrays, buffers: NamedArrays) -> Mapping[str, float]:
        """Return metrics of the output w."""
        ...


def client_app(
    load_data: Callable[[Context], Any],
    make_model: Callable[[Any], Model | Trainer],
    *,
    mods: list[Mod] | None = None,
) -> ClientApp:
    """Build a Flower ClientApp from two functions.

    Parameters
    ----------
    load_data : callable
        ``load_data(context) -> data``. ``context.node_config`` has this client's "partition-id" and
        "num-partitions", ``context.run_config`` the configuration of the run and the entries of
        your own that the server sends (``train_config``, ``evaluate_config``).
    make_model : callable
        ``make_model(data) -> model``: a `Model` with ``n_examples``, ``gradient(w, step)`` and
        ``evaluate(w)``, or a `TorchModel`.
    mods : list, optional
        Flower's modifiers, for training and evaluation.

    Notes
    -----
    Both functions are called for every message and nothing is kept, so a client may be replaced
    between two rounds. If loading is slow, cache it in `load_data`. Clients get the algorithm from
    the server, as numbers, so a record of your own needs nothing here.

    Examples
    --------
    >>> class Mean:
    ...     def __init__(self, data):
    ...         self.data, self.n_examples = data, len(data)
    ...     def gradient(self, w, step):
    ...         return [w[0] - self.data[step.rows(len(self.data))]]
    ...     def evaluate(self, w):
    ...         return {"loss": float(np.mean((w[0] - self.data) ** 2) / 2)}
    >>> app = client_app(lambda context: np.array([1.0, 3.0]), Mean)
    """
    app = ClientApp(mods=mods)

    def model_for(context: Context, message: Message, *needed: str) -> Model | Trainer:
        context = copy.copy(context)
        context.run_config = {**context.run_config, **message.content[CONFIG]}  # type: ignore[dict-item]
        model = make_model(load_data(context))
        if not isinstance(model, Trainer) and not all(hasattr(model, name) for name in needed):
            raise InputError(
                f"make_model must return an object with {' and '.join(needed)}, or a TorchModel, "
                f"got {type(model).__name__}"
            )
        return model

    @app.train()
    def train(message: Message, context: Context) -> Message:
        task = Task.from_record(message.content.config_records.get(TASK, {}))
        sent = from_record(message.content.array_records[ARRAYS])
        model = model_for(context, message, "n_examples", "gradient")
        arrays, metrics = _train(model, sent, task, worker_of(context))
        return _reply(message, task.round, model, metrics, arrays)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        sent = from_record(message.content.array_records[ARRAYS])
        model = model_for(context, message, "n_examples", "evaluate")
        output, buffers = with_prefix(OUTPUT, sent), with_prefix(BUFFER, sent)
        if not output:
            raise InputError(
                f"the message has no arrays under '{OUTPUT}/': does the server use a strategy of "
                "fedac.flower?"
            )
        if isinstance(model, Trainer):
            metrics = model.evaluate_arrays(output, buffers)
        else:
            metrics = model.evaluate(list(output.values()))
        return _reply(message, message.content[TASK][ROUND], model, metrics)  # type: ignore[arg-type]

    return app


def worker_of(context: Context) -> int:
    """Return a client's number: its partition-id, or its node id if it has none."""
    return int(context.node_config.get("partition-id", context.node_id))


def _train(
    model: Model | Trainer, sent: NamedArrays, task: Task, worker: int
) -> tuple[dict[str, NDArray], Mapping[str, float]]:
    """Return all sequences and buffers after the local steps, and metrics."""
    sequences = {name: with_prefix(name, sent) for name in task.algorithm.sequences}
    buffers: NamedArrays = with_prefix(BUFFER, sent)
    metrics: Mapping[str, float] = {}
    if isinstance(model, Trainer):
        after, buffers, metrics = model.train(sequences, buffers, task, worker)
    elif buffers:
        raise InputError(f"arrays under '{BUFFER}/' are for TorchModel; use other names")
    else:
        lists = [list(arrays.values()) for arrays in sequences.values()]
        # The server drops replies that are not finite: an overflow needs no warning here.
        with np.errstate(over="ignore", invalid="ignore"):
            stepped = local_steps(model.gradient, lists, task, worker=worker)
        after = {
            name: dict(zip(arrays, new, strict=True))
            for (name, arrays), new in zip(sequences.items(), stepped, strict=True)
        }
    packed = add_prefix(BUFFER, buffers)
    for name in sequences:
        packed |= add_prefix(name, after[name])
    return packed, metrics


def _reply(
    message: Message,
    server_round: int,
    model: Model | Trainer,
    metrics: Mapping[str, float],
    arrays: NamedArrays | None = None,
) -> Message:
    if not isinstance(metrics, Mapping):
        raise InputError(f"metrics must be a dict of numbers, got {type(metrics).__name__}")
    numbers = {name: float(value) for name, value in metrics.items()}
    examples = require_count("n_examples", model.n_examples)
    record = MetricRecord({**numbers, ROUND: server_round, WEIGHT: examples})
    content = RecordDict({METRICS: record})
    if arrays is not None:
        content[ARRAYS] = to_record(arrays)
    return Message(content, reply_to=message)
