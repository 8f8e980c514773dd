# SPDX-License-Identifier: Apache-2.0
"""`client_app` builds a ClientApp from two functions; `tell_number` is for your own ClientApp."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import Mod

from fedac.flower._arrays import NDArray
from fedac.flower._client.round import ClientRound, Step, client_id, require_metrics, signed
from fedac.flower._task import (
    CLIENT,
    CONFIG,
    EXAMPLES,
    METRICS,
    QUESTION,
    ROUND,
    WEIGHT,
    receive,
    users_entries,
)
from fedac.validate import require_count

if TYPE_CHECKING:
    from fedac.flower._client.torch_model import TorchModel


@runtime_checkable
class Model(Protocol):
    """What `make_model` returns: a NumPy model of one client.

    For "mimelite" it also needs ``full_gradient(w)``, the mean gradient of all of its rows at w.
    """

    n_examples: int
    """How many examples this client has: its weight with ``weighting="examples"``."""

    def gradient(self, w: list[NDArray], step: Step) -> Sequence[npt.ArrayLike]:
        """Return the stochastic gradient at w, a list of arrays of the same shapes."""
        ...

    def evaluate(self, w: list[NDArray]) -> Mapping[str, float]:
        """Return metrics of the output w on this client's data, "loss" among them.

        They are weighted by `n_examples` or, if measured on other data, by their "num-examples".
        """
        ...


def client_app(
    load_data: Callable[[Context], Any],
    make_model: Callable[[Any], Model | TorchModel],
    *,
    mods: list[Mod] | None = None,
    memory_folder: str | Path | None = None,
) -> ClientApp:
    """Build a Flower ClientApp from two functions.

    Parameters
    ----------
    load_data : callable
        ``load_data(context) -> data``. ``context.node_config`` has this client's "partition-id" and
        "num-partitions", ``context.run_config`` the configuration of the run and your own entries
        that the server sends (``train_config``, ``evaluate_config``).
    make_model : callable
        ``make_model(data) -> model``: a `Model` with ``n_examples``, ``gradient(w, step)`` and
        ``evaluate(w)``, or a `TorchModel`.
    mods : list, optional
        Flower's modifiers for training and evaluation. Those that change arrays (clipping and local
        differential privacy) are for training only, because evaluations reply with no arrays.
    memory_folder : path, optional
        A folder for this client's memory (SCAFFOLD's control variates, for example). Without it
        Flower keeps the memory, but only until the run ends or the node stops. Algorithms without
        memory write nothing.

    Notes
    -----
    Both functions are called for every message, and nothing that they return is kept. If loading is
    slow, cache it in `load_data`. Clients get the algorithm from the server, as numbers, so your
    own algorithm needs nothing here.

    Examples
    --------
    >>> import numpy as np
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
    changing = (fixedclipping_mod, adaptiveclipping_mod)
    watching = [m for m in mods or () if not (m in changing or isinstance(m, LocalDpMod))]

    @app.train(mods=mods)
    def train(message: Message, context: Context) -> Message:
        with signed(client_id(context)):
            this = ClientRound(message, context, memory_folder)
            model: Any = make_model(load_data(_with_config(context, this.config)))
            if hasattr(model, "evaluate_arrays"):  # a TorchModel
                if this.asks_gradient:
                    this.gradient = model.full_gradient(this.broadcast)
                after, metrics = model.train(this.local, this.task, this.client)
            else:
                this.take_full_gradient(model)
                after, metrics = this.take_steps(model.gradient), {}
            return this.reply(after, this.task.local_steps, _with_examples(model, metrics))

    @app.evaluate(mods=watching)
    def evaluate(message: Message, context: Context) -> Message:
        with signed(client_id(context)):
            task, config, arrays = receive(message)
            model = make_model(load_data(_with_config(context, config)))
            if hasattr(model, "evaluate_arrays"):
                metrics = model.evaluate_arrays(arrays)
            else:
                metrics = model.evaluate(list(arrays.values()))
            numbers = require_metrics(_with_examples(model, metrics))
            record = MetricRecord({**numbers, ROUND: task.round})
            return Message(RecordDict({METRICS: record}), reply_to=message)

    return app


def tell_number(app: ClientApp, examples: Callable[[Context], int] | None = None) -> ClientApp:
    """Let your own ClientApp tell the server its client id when asked; return the app.

    The server samples clients (``sample``) by their ids, so that runs are reproducible even though
    Flower draws new node ids every time. `client_app` does this already. The server's query has the
    message type "query.fedac" and does not reach your query function.

    Parameters
    ----------
    app : ClientApp
        Yours.
    examples : callable, optional
        ``examples(context) -> int``, the "num-examples" that the client will reply with. With
        control variates and ``weighting="examples"`` the server asks for it, to know a round's
        share of all examples.

    Examples
    --------
    >>> app = tell_number(ClientApp())
    """

    @app.query(QUESTION.partition(".")[2])
    def tell(message: Message, context: Context) -> Message:
        record = message.content.config_records.get(CONFIG, ConfigRecord())
        told: dict[str, Any] = {CLIENT: str(client_id(context))}
        if examples is not None and record.get(EXAMPLES):
            context = _with_config(context, users_entries(record))
            told[WEIGHT] = require_count(WEIGHT, examples(context))
        return Message(RecordDict({CLIENT: ConfigRecord(told)}), reply_to=message)

    return app


def _with_config(context: Context, config: Mapping[str, Any]) -> Context:
    """Return a context whose run_config also has the user's entries that the server sent."""
    context = copy.copy(context)
    context.run_config = {**context.run_config, **config}
    return context


def _with_examples(model: Model | TorchModel, metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Add the number of examples, unless the metrics have one: of held-out data, for example."""
    own = isinstance(metrics, Mapping)  # `require_metrics` refuses others
    return {WEIGHT: model.n_examples, **metrics} if own else metrics
