"""`local_training`: your own training loop in your own ClientApp."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message

from fedac.algorithms.linear import linear_form
from fedac.errors import InputError
from fedac.flower._arrays import NamedArrays
from fedac.flower._client.round import ClientRound, client_id, signed
from fedac.flower._client.torch_model import begin_steps, end_steps, seeded
from fedac.flower._task import ROUND, Task
from fedac.torch import LocalOptimizer

log = logging.getLogger("flwr.fedac")

STEPS = "local-steps"


class LocalTraining:
    """One round of a client with its own training loop, made by `local_training`.

    Attributes
    ----------
    optimizer : LocalOptimizer or torch.optim.Optimizer
        The optimizer whose `step` the loop calls: the strategy's algorithm, or yours.
    round : int
        The round, from 1 on.
    config : dict
        The entries of ``train_config``, and "server-round".
    """

    def __init__(
        self,
        this: ClientRound,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        if optimizer is not None:
            _require_usable(optimizer, model, this.task)
        self._this, self._model = this, model
        self._after: NamedArrays | None = None
        self._steps = begin_steps(model, this.local, this.task, optimizer)
        self._parameters = {*model.parameters()}
        self.optimizer: Any = self._steps if optimizer is None else optimizer
        self.round, self.config = this.task.round, this.config

    def reply(self, metrics: Mapping[str, Any]) -> Message:
        """Return the reply of this round, after the block.

        `metrics` are numbers, among them "num-examples", this client's weight with
        ``weighting="examples"``. "local-steps", the number of steps that the loop took, is added.
        """
        with signed(self._this.client):
            if self._after is None:
                raise InputError("call local.reply when the block of local_training has ended")
            taken = self._steps.steps - self._this.task.first_step
            if isinstance(metrics, Mapping):
                for name in (STEPS, ROUND):
                    if name in metrics:
                        raise InputError(f"metric '{name}' is added here; give yours another name")
                metrics = {**metrics, STEPS: taken}
            return self._this.reply(self._after, taken, metrics)

    def close(self) -> None:
        """Take the sequences out of the optimizer, and load the output into the model."""
        this, steps = self._this, self._steps.steps - self._this.task.first_step
        if not steps:
            raise InputError("the loop took no local step: it must call local.optimizer.step()")
        this.task.require_steps(steps)
        if {*self._model.parameters()} - self._parameters:
            raise InputError(
                "the model has other parameters than when the block began: a layer was replaced, "
                "and its replacement was not trained; change the model before local_training"
            )
        self._after = end_steps(self._model, this.local, this.task, self._steps)
        if all(np.array_equal(this.local[key], array) for key, array in self._after.items()):
            log.warning(
                "round %d: %d steps changed nothing; was loss.backward() called?", self.round, steps
            )
        if self.optimizer is self._steps:
            self._steps.eval()


@contextmanager
def local_training(
    message: Message,
    context: Context,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    memory_folder: str | Path | None = None,
) -> Iterator[LocalTraining]:
    """Train with your own loop, in your own train function.

    On entry the server's arrays are loaded into the model. ``local.optimizer`` takes the local
    steps of the strategy's algorithm, from the state that the server sent. After the block,
    ``return local.reply({...})`` sends the result.

    Parameters
    ----------
    message : Message
        The message of the train function.
    context : Context
        The context of the train function.
    model : Module
        The model, on its device. The server starts from ``torch_arrays`` of the same model.
    optimizer : Optimizer, optional
        Your own optimizer over the model's parameters (AdamW, for example) instead. It is for
        algorithms whose clients take plain SGD steps: "fedavg" with any server rule, such as
        "fedavgm", "fedadam" or "diloco". Clients then ignore the strategy's eta.
    memory_folder : path, optional
        As in `client_app`.

    Notes
    -----
    Batches, epochs, clipping, gradient accumulation and schedulers are yours. The loop may take any
    number of steps, and it may differ between clients; the algorithm's coefficients are for the
    strategy's ``local_steps``. The metric "local-steps" has the number taken.

    A scheduler may change the lr of ``local.optimizer``: the step (eta and gamma of FedAc) is
    multiplied by lr over the strategy's eta. Algorithms with control variates, and others that send
    more than their sequences, refuse it; use ``eta=fedac.Decay(...)`` on the server instead.

    While training, the parameters hold w_md, where the next gradient is taken. To evaluate within
    the loop, call ``local.optimizer.eval()`` before and ``local.optimizer.train()`` after it. When
    the block has ended, they hold the client's output.

    In the block, PyTorch's draws (shuffling, dropout) depend only on the run's seed, the client id
    and the round.

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
    with signed(client_id(context)):
        this = ClientRound(message, context, memory_folder)
        local = LocalTraining(this, model, optimizer)
        with seeded(model, this.task, this.client):
            yield local
        local.close()


def _require_usable(optimizer: object, model: torch.nn.Module, task: Task) -> None:
    """Refuse an optimizer of the user's that cannot replace the algorithm's local steps."""
    if isinstance(optimizer, LocalOptimizer):
        raise InputError(
            "leave out optimizer: local.optimizer has the strategy's algorithm and its state"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer must be one of PyTorch, got {type(optimizer).__name__}")
    trained = {p for group in optimizer.param_groups for p in group["params"]}
    if trained.isdisjoint(model.parameters()):
        raise InputError("the optimizer has no parameter of the model; make it after the model")
    form = linear_form(task.local_algorithm, task.hp)
    if not task.algorithm.is_plain or form.query != (1.0,):
        raise InputError(
            f"'{task.algorithm.name}' has its own local steps: leave out optimizer, and call "
            "local.optimizer.step(). Your own optimizer works with 'fedavg' and any server rule, "
            "such as 'fedavgm', 'fedadam' or 'diloco'"
        )
