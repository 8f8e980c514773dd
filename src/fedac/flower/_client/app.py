"""The client: K local steps from the sequences it gets, and what its algorithm remembers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import Mod

from fedac.flower._arrays import WEIGHT, NamedArrays, NDArray, with_prefix
from fedac.flower._client.memory import ClientMemory
from fedac.flower._client.requests import Request, require_metrics
from fedac.flower._client.round import Visit
from fedac.flower._client.signatures import signing
from fedac.flower._client.steps import ArrayList, Step, local_steps
from fedac.flower._server.nodes import client_number, tell_number, with_config
from fedac.flower._task import Task


@runtime_checkable
class Model(Protocol):
    """What `make_model` returns: a NumPy model of one client."""

    n_examples: int
    """How many examples this client has: its weight if weights are used."""

    def gradient(self, w: ArrayList, step: Step) -> Sequence[npt.ArrayLike]:
        """Return the stochastic gradient at w, a list of arrays of the same shapes."""
        ...

    def evaluate(self, w: ArrayList) -> Mapping[str, float]:
        """Return metrics of the output w on this client's data; "loss" among them.

        If weights are used, they count by `n_examples`, or by the "num-examples" among them if the
        data is other than that of training.
        """
        ...


@runtime_checkable
class Trainer(Protocol):
    """Or a model that takes its local steps itself; see `TorchModel`.

    Arrays have keys ``<sequence>/<name>``, as in `fedac.flower._arrays`. The sequences are those
    of ``task.algorithm``, what this client works on.
    """

    n_examples: int

    def train(
        self, arrays: NamedArrays, task: Task, worker: int
    ) -> tuple[NamedArrays, Mapping[str, float]]:
        """Return the sequences and buffers after the task, and metrics."""
        ...

    def evaluate_arrays(self, arrays: NamedArrays) -> Mapping[str, float]:
        """Return metrics of the output, whose arrays have the names of the initial ones.

        If weights are used, they count by `n_examples`, or by the "num-examples" among them.
        """
        ...


def client_app(
    load_data: Callable[[Context], Any],
    make_model: Callable[[Any], Model | Trainer],
    *,
    mods: list[Mod] | None = None,
    memory_folder: str | Path | None = None,
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
        Flower's modifiers, for training and evaluation; those that change arrays (clipping and
        local differential privacy) for training only, since an evaluation replies with none.
    memory_folder : path, optional
        A folder of the client's own for what its algorithm remembers (the control variates of
        "scaffold", say). Without it Flower keeps the memory, but only until the run ends or the
        node stops. An algorithm without memory writes nothing.

    Notes
    -----
    Both functions are called for every message and nothing is kept of what they return. If loading
    is slow, cache it in `load_data`. Clients get the algorithm from the server, as numbers, so a
    record of your own needs nothing here.

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
    app = tell_number(ClientApp(), lambda context: make_model(load_data(context)).n_examples)
    watching = [mod for mod in mods or () if not _changes_arrays(mod)]
    folder = None if memory_folder is None else Path(memory_folder)

    def prepare(message: Message, context: Context) -> tuple[Request, Model | Trainer]:
        request = Request.read(message)
        return request, make_model(load_data(with_config(context, request.config)))

    @app.train(mods=mods)
    @signing
    def train(message: Message, context: Context) -> Message:
        request, model = prepare(message, context)
        task, worker = request.task, client_number(context)
        visit = Visit(request.arrays, task, ClientMemory(context.state, worker, folder))
        if isinstance(model, Trainer):
            after, metrics = model.train(visit.local, task, worker)
        else:
            after, metrics = _train(model, visit.local, task, worker), {}
        numbers = require_metrics(_with_examples(model, metrics))
        return request.reply(numbers, visit.leave(after, task.local_steps, numbers[WEIGHT]))

    @app.evaluate(mods=watching)
    @signing
    def evaluate(message: Message, context: Context) -> Message:
        request, model = prepare(message, context)
        if isinstance(model, Trainer):
            metrics = model.evaluate_arrays(request.arrays)
        else:
            metrics = model.evaluate(list(request.arrays.values()))
        return request.reply(_with_examples(model, metrics))

    return app


def _changes_arrays(modifier: Mod) -> bool:
    return modifier in (fixedclipping_mod, adaptiveclipping_mod) or isinstance(modifier, LocalDpMod)


def _with_examples(model: Model | Trainer, metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Add the number of examples, unless the metrics have one: of held-out data, say."""
    own = isinstance(metrics, Mapping)  # the reply refuses others
    return {WEIGHT: model.n_examples, **metrics} if own else metrics


def _train(model: Model, sent: NamedArrays, task: Task, worker: int) -> dict[str, NDArray]:
    """Return all that the client works on, after the local steps."""
    sequences = {name: with_prefix(name, sent) for name in task.algorithm.sequences}
    lists = [list(arrays.values()) for arrays in sequences.values()]
    # The server drops replies that are not finite: an overflow needs no warning here.
    with np.errstate(over="ignore", invalid="ignore"):
        stepped = local_steps(model.gradient, lists, task, worker=worker)
    return {
        f"{name}/{key}": array
        for name, after in zip(sequences, stepped, strict=True)
        for key, array in zip(sequences[name], after, strict=True)
    }
