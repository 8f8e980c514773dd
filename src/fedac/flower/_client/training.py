"""A training loop of the user's own in a ClientApp of the user's own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message

from fedac.algorithms.linear import linear_form
from fedac.errors import InputError
from fedac.flower._arrays import ROUND, WEIGHT, NamedArrays
from fedac.flower._client.memory import ClientMemory
from fedac.flower._client.requests import Request, require_metrics
from fedac.flower._client.round import Visit
from fedac.flower._client.signatures import signed
from fedac.flower._client.torch_steps import begin_steps, end_steps, seeded
from fedac.flower._server.nodes import client_number
from fedac.flower._task import Task
from fedac.torch import LocalOptimizer

log = logging.getLogger("flwr.fedac")

STEPS = "local-steps"


class LocalTraining:
    """One round of a client that has a training loop of its own; `local_training` makes it.

    Attributes
    ----------
    optimizer : LocalOptimizer or torch.optim.Optimizer
        Whose `step` the loop calls: with the strategy's algorithm, or the one that was given.
    round : int
        The round, from 1 on.
    config : dict
        The entries of ``train_config``, and "server-round".
    """

    def __init__(
        self,
        message: Message,
        context: Context,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        memory_folder: str | Path | None,
    ) -> None:
        self._request = Request.read(message)
        self._task, self._model = self._request.task, model
        self._after: NamedArrays | None = None
        self._replied = False
        if optimizer is not None:
            _require_usable(optimizer, model, self._task)
        folder = None if memory_folder is None else Path(memory_folder)
        memory = ClientMemory(context.state, client_number(context), folder)
        self._visit = Visit(self._request.arrays, self._task, memory)
        self._steps = begin_steps(model, self._visit.local, self._task, optimizer)
        self._parameters = {*model.parameters()}
        self.optimizer: Any = self._steps if optimizer is None else optimizer
        self.round, self.config = self._task.round, self._request.config

    def draws(self) -> AbstractContextManager[None]:
        """Seed PyTorch's draws in a block."""
        return seeded(self._model, self._task, self._visit.memory.client)

    def reply(self, metrics: Mapping[str, Any]) -> Message:
        """Return the reply of this round, after the block.

        `metrics` are numbers, with "num-examples", this client's weight if weights are used. They
        get "local-steps", how many steps the loop took.
        """
        self._replied = True
        with signed(self._visit.memory.client):
            if self._after is None:
                raise InputError("call local.reply when the block of local_training has ended")
            taken = self._steps.steps - self._task.first_step
            numbers = require_metrics(_with_steps(metrics, taken))
            visited = self._visit.leave(self._after, taken, numbers[WEIGHT])
            return self._request.reply(numbers, visited)

    def close(self) -> None:
        """Take the sequences out of the optimizer, and let the model have the output."""
        task, steps = self._task, self._steps.steps - self._task.first_step
        if not steps:
            raise InputError(
                "the loop took no local step: it must call step of local.optimizer, at least once"
            )
        task.require_steps(steps)
        if {*self._model.parameters()} - self._parameters:
            raise InputError(
                "the model has other parameters than when the block began: a layer was replaced, "
                "and what replaced it was not trained; change the model before local_training"
            )
        self._after = end_steps(self._model, self._visit.local, task, self._steps)
        if all(np.array_equal(self._visit.local[k], array) for k, array in self._after.items()):
            log.warning(
                "round %d: %d steps changed nothing; was loss.backward() called?", self.round, steps
            )
        if self.optimizer is self._steps:
            self._steps.eval()

    def __del__(self) -> None:
        # A reply that the user has packed is dropped by the server, with less to say about it.
        if self.__dict__.get("_after") is not None and not self._replied:
            log.warning(
                "round %d: the block of local_training has ended, but local.reply was not called; "
                "return local.reply({...}) from the train function",
                self.round,
            )


@contextmanager
def local_training(
    message: Message,
    context: Context,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    memory_folder: str | Path | None = None,
) -> Iterator[LocalTraining]:
    """Train with a loop of your own, in a train function of your own.

    On entry the model gets the server's arrays; ``local.optimizer`` takes the local steps of the
    strategy's algorithm, from the state that the server sent. After the block
    ``return local.reply({...})`` sends what came of it.

    Parameters
    ----------
    message : Message
        That of the train function.
    context : Context
        That of the train function.
    model : Module
        The model, on its device. The server starts from ``torch_arrays`` of the same model.
    optimizer : Optimizer, optional
        An optimizer of your own over the model's parameters (AdamW, say) instead. It is for
        algorithms whose clients take steps of plain SGD: "fedavg" with any server rule, such as
        "fedavgm", "fedadam" or "diloco". The strategy's eta is then not used by clients.
    memory_folder : path, optional
        As for `client_app`.

    Notes
    -----
    Batches, epochs, clipping, accumulation of gradients and schedulers are yours. The loop may take
    any number of steps, and clients may differ in it; ``local_steps`` of the strategy is what the
    algorithm's coefficients are for. "local-steps" in the metrics has what it was.

    A scheduler may change the lr of ``local.optimizer``: lr over the strategy's eta multiplies the
    step (eta and gamma of FedAc). Algorithms with control variates, or others that do more than
    send their sequences, refuse it; let eta fall on the server, with ``eta=fedac.Decay(...)``.

    While training, the parameters hold w_md, where the next gradient is taken. To evaluate within
    the loop, call ``local.optimizer.eval()`` before and ``local.optimizer.train()`` after it. When
    the block has ended, they hold the client's output.

    In the block PyTorch's draws (shuffling, dropout) depend on the run's seed, the client's number
    and the round only.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from fedac.flower import FedAc, InProcessGrid, torch_arrays
    >>> X = torch.randn(64, 2)
    >>> data = torch.utils.data.TensorDataset(X, X.sum(dim=1, keepdim=True))
    >>> app = ClientApp()
    >>> @app.train()
    ... def train(message, context):
    ...     model = torch.nn.Linear(2, 1)
    ...     with local_training(message, context, model) as local:
    ...         for x, y in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
    ...             local.optimizer.zero_grad()
    ...             loss = torch.nn.functional.mse_loss(model(x), y)
    ...             loss.backward()
    ...             local.optimizer.step()
    ...     return local.reply({"train_loss": loss.item(), "num-examples": len(data)})
    >>> strategy = FedAc(eta=0.1, mu=0.1, local_steps=4, evaluate_every=0)
    >>> start = torch_arrays(torch.nn.Linear(2, 1))
    >>> result = strategy.start(InProcessGrid(app, 2), start, num_rounds=2)
    >>> result.history.metric("train/local-steps")
    [(1, 4.0), (2, 4.0)]
    """
    with signed(client_number(context)):
        local = LocalTraining(message, context, model, optimizer, memory_folder)
        with local.draws():
            yield local
        local.close()


def _with_steps(metrics: Mapping[str, Any], taken: int) -> Mapping[str, Any]:
    """Add the number of steps to metrics, which must not have the names that are added."""
    if not isinstance(metrics, Mapping):
        return metrics  # the reply refuses it
    for name in (STEPS, ROUND):
        if name in metrics:
            raise InputError(f"metric '{name}' is added here; give yours another name")
    return {**metrics, STEPS: taken}


def _require_usable(optimizer: object, model: torch.nn.Module, task: Task) -> None:
    """Refuse an optimizer of the user's that cannot take the place of the algorithm's steps."""
    if isinstance(optimizer, LocalOptimizer):
        raise InputError(
            "leave out optimizer: local.optimizer has the strategy's algorithm and its state"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer must be one of PyTorch, got {type(optimizer).__name__}")
    trained = {p for group in optimizer.param_groups for p in group["params"]}
    if trained.isdisjoint(model.parameters()):
        raise InputError("the optimizer has no parameter of the model; make it after the model")
    form = linear_form(task.algorithm, task.hp)
    if task.boundary is not None or form.query != (1.0,):
        raise InputError(
            f"'{task.algorithm.name}' has local steps of its own: leave out optimizer, and call "
            "step of local.optimizer. An optimizer of yours works with 'fedavg' and any server "
            "rule, such as 'fedavgm', 'fedadam' or 'diloco'"
        )
