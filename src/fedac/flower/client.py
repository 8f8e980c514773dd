"""The client's side: K local steps from the sequences that came, and nothing kept after.

Steps are those of `fedac.algorithms`; this module has no formula of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedac.algorithms import Algorithm
from fedac.errors import InputError
from fedac.flower.aggregate import Array, Arrays
from fedac.flower.messages import (
    ARRAYS,
    BUFFER,
    CONFIG,
    METRICS,
    OUTPUT,
    ROUND,
    WEIGHT,
    Task,
    from_record,
    part,
    to_record,
    under,
)
from fedac.require import require_count

# Of one sequence: the model's arrays, in the order of the strategy's initial arrays.
ArrayList = list[Array]
GradFn = Callable[[ArrayList, "Step"], Sequence[npt.ArrayLike]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A local step: what a gradient may depend on besides the arrays.

    Attributes
    ----------
    t : int
        Its number, counted from the start of the run.
    seed : int
        The run's.
    worker : int
        The client's number: its ``partition-id``, or without one its node id.
    """

    t: int
    seed: int
    worker: int

    def rows(self, n: int, size: int = 1) -> npt.NDArray[np.int64]:
        """Draw `size` rows of n with replacement, the same in every runtime.

        With size 1 it is the row the simulator's worker of this number draws at step t.

        Examples
        --------
        >>> Step(t=0, seed=1, worker=2).rows(100)
        array([49])
        """
        from fedac.sampling import sample_index

        n, size = require_count("the number of rows", n), require_count("size", size)
        return sample_index(self.seed, self.worker, self.t * size + np.arange(size), n)


def local_steps(
    grad_fn: GradFn, sequences: Sequence[ArrayList], task: Task, *, worker: int = 0
) -> tuple[ArrayList, ...]:
    """Take the task's local steps over lists of NumPy arrays.

    Parameters
    ----------
    grad_fn : callable
        ``grad_fn(w_md, step) -> gradients``: lists of arrays, in the same order.
    sequences : sequence of lists of arrays
        The algorithm's sequences, as broadcast; they are not changed.
    task : Task
        What to do.
    worker : int
        The client's number, for its draws.

    Examples
    --------
    Two steps of FedAvg on w^2/2:

    >>> from fedac.algorithms.couplings import fedavg
    >>> task = Task(
    ...     algorithm="fedavg", hp=fedavg(eta=0.5), round=1, first_step=0, local_steps=2, seed=0
    ... )
    >>> local_steps(lambda w, step: w, [[np.array([8.0])]], task)
    ([array([2.])],)
    """
    algorithm = task.get_algorithm()
    # By array, not by sequence: query and update see one array's sequences at a time.
    states: list[tuple[Any, ...]] = list(zip(*sequences, strict=True))
    for t in range(task.first_step, task.first_step + task.local_steps):
        w_md = [np.asarray(algorithm.query(state, task.hp)) for state in states]
        step = Step(t=t, seed=task.seed, worker=worker)
        # Copies: a gradient may be computed in place.
        gradients = _gradients(grad_fn([point.copy() for point in w_md], step), w_md)
        states = [
            algorithm.update(state, point, gradient, task.hp)
            for state, point, gradient in zip(states, w_md, gradients, strict=True)
        ]
    return tuple(
        [np.asarray(after, dtype=before.dtype) for before, after in zip(old, new, strict=True)]
        for old, new in zip(sequences, zip(*states, strict=True), strict=True)
    )


def _gradients(given: Sequence[npt.ArrayLike], w_md: ArrayList) -> ArrayList:
    if not isinstance(given, Sequence):
        raise InputError(f"the gradient must be a list of arrays, got {type(given).__name__}")
    shapes, wanted = [np.shape(g) for g in given], [point.shape for point in w_md]
    if shapes != wanted:
        raise InputError(f"the gradient has arrays of shapes {shapes}, not {wanted}")
    if any(np.iscomplexobj(g) for g in given):
        raise InputError("the gradient is complex")
    return [np.asarray(g, dtype=point.dtype) for g, point in zip(given, w_md, strict=True)]


@runtime_checkable
class Model(Protocol):
    """What `make_model` returns, if it is NumPy."""

    n_examples: int
    """How many examples this client has: its weight where weights are asked for."""

    def gradient(self, w: ArrayList, step: Step) -> Sequence[npt.ArrayLike]:
        """Return the stochastic gradient at w, a list of arrays like w."""
        ...

    def evaluate(self, w: ArrayList) -> Mapping[str, float]:
        """Return metrics of the output w on this client's data; "loss" among them."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """What `make_model` returns, if it takes its local steps itself; see `TorchModel`."""

    n_examples: int

    def train(
        self, sequences: Mapping[str, Arrays], buffers: Arrays, task: Task, worker: int
    ) -> tuple[Mapping[str, Arrays], Arrays, Mapping[str, float]]:
        """Return the sequences and buffers after the task, and metrics."""
        ...

    def evaluate_arrays(self, w: Arrays, buffers: Arrays) -> Mapping[str, float]:
        """Return metrics of the output w."""
        ...


def client_app(
    load_data: Callable[[Context], Any],
    make_model: Callable[[Any], Model | Trainer],
    *,
    mods: list[Mod] | None = None,
) -> ClientApp:
    """Build a Flower ClientApp out of two functions.

    Parameters
    ----------
    load_data : callable
        ``load_data(context) -> data``. ``context.node_config`` says which part is wanted
        ("partition-id" of "num-partitions"), ``context.run_config`` what the run was started with,
        and the entries of your own that the server sends (``train_config``, ``evaluate_config``).
    make_model : callable
        ``make_model(data) -> model``: a `Model` with ``n_examples``, ``gradient(w, step)`` and
        ``evaluate(w)``, or a `TorchModel`.
    mods : list, optional
        Flower's modifiers, for training and evaluation both.

    Notes
    -----
    Both are called for every message, and nothing is kept: a client may be replaced between two
    rounds. Where loading is slow, cache it in `load_data`.

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
    for name, function in (("load_data", load_data), ("make_model", make_model)):
        if not callable(function):
            raise InputError(f"{name} must be a function, got {type(function).__name__}")
    app = ClientApp(mods=mods)

    def model_for(context: Context, config: ConfigRecord, *needed: str) -> Model | Trainer:
        seen = copy.copy(context)
        seen.run_config = {**context.run_config, **Task.not_ours(config)}  # type: ignore[dict-item]
        model = make_model(load_data(seen))
        if not isinstance(model, Trainer) and not all(hasattr(model, name) for name in needed):
            raise InputError(
                f"make_model must return an object with {' and '.join(needed)}, or a TorchModel, "
                f"got {type(model).__name__}"
            )
        return model

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content.config_records[CONFIG]
        task = Task.from_config(config)
        sent = from_record(message.content.array_records[ARRAYS])
        model = model_for(context, config, "n_examples", "gradient")
        arrays, metrics = _train(model, sent, task, worker_of(context))
        return _reply(message, task.round, model, metrics, arrays)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        config = message.content.config_records[CONFIG]
        sent = from_record(message.content.array_records[ARRAYS])
        model = model_for(context, config, "n_examples", "evaluate")
        output, buffers = part(OUTPUT, sent), part(BUFFER, sent)
        if not output:
            raise InputError(
                f"the message holds no arrays under '{OUTPUT}/': is the strategy one of "
                "fedac.flower?"
            )
        if isinstance(model, Trainer):
            metrics = model.evaluate_arrays(output, buffers)
        else:
            metrics = model.evaluate(list(output.values()))
        return _reply(message, int(config[ROUND]), model, metrics)  # type: ignore[arg-type]

    return app


def worker_of(context: Context) -> int:
    """Return a client's number: its partition-id, or its node id where it has none."""
    return int(context.node_config.get("partition-id", context.node_id))


def _train(
    model: Model | Trainer, sent: Arrays, task: Task, worker: int
) -> tuple[dict[str, Array], Mapping[str, float]]:
    algorithm: Algorithm = task.get_algorithm()
    sequences = {name: part(name, sent) for name in algorithm.sequences}
    buffers = part(BUFFER, sent)
    metrics: Mapping[str, float] = {}
    after: Mapping[str, Arrays]
    if isinstance(model, Trainer):
        after, new_buffers, metrics = model.train(sequences, buffers, task, worker)
    else:
        if buffers:
            raise InputError(f"arrays under '{BUFFER}/' are for TorchModel; use other names")
        lists = [list(arrays.values()) for arrays in sequences.values()]
        # An overflow is the server's to see: it drops replies that are not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            stepped = local_steps(model.gradient, lists, task, worker=worker)
        after = {
            name: dict(zip(sequences[name], arrays, strict=True))
            for name, arrays in zip(sequences, stepped, strict=True)
        }
        new_buffers = buffers
    packed = under(BUFFER, new_buffers)
    for name in algorithm.sequences:
        packed |= under(name, after[name])
    return packed, metrics


def _reply(
    message: Message,
    server_round: int,
    model: Model | Trainer,
    metrics: Mapping[str, float],
    arrays: Arrays | None = None,
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
