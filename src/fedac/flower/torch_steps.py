"""A round's local steps in PyTorch: an optimizer with its state loaded, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedac.flower.messages import BUFFER, NamedArrays, NDArray, buffers_of, with_prefix
from fedac.flower.state_dicts import load_sent, sent_parameters, sent_tensors, to_numpy
from fedac.flower.task import Task
from fedac.torch import LocalOptimizer
from fedac.torch.foreign import ForeignOptimizer


@contextmanager
def seeded(module: torch.nn.Module, task: Task, worker: int) -> Iterator[None]:
    """Seed PyTorch's draws (dropout, for example); restore the generators afterwards.

    The seed depends on the run's seed, the client's number and the round only. A client may then be
    replaced between two rounds, and a resumed run is the same.
    """
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    key = (task.seed, worker, task.first_step)
    (seed,) = np.random.SeedSequence(key).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(seed))
        yield


def begin_steps(
    module: torch.nn.Module,
    arrays: NamedArrays,
    task: Task,
    own: torch.optim.Optimizer | None = None,
) -> LocalOptimizer:
    """Load what a client works on into a model and its optimizer.

    With an optimizer of the user's `own`, return what follows its steps.
    """
    names = task.algorithm.sequences
    load_sent(module, with_prefix(names[0], arrays) | buffers_of(arrays))
    params = sent_parameters(module)
    optimizer: LocalOptimizer
    if own is None:
        optimizer = LocalOptimizer(
            params.values(), task.algorithm, lr=task.hp.eta, mu=1.0, local_steps=task.local_steps
        )
    else:
        optimizer = ForeignOptimizer(own, local_steps=task.local_steps)
        optimizer.attach()
    optimizer.steps = task.first_step
    mine = set(optimizer.parameters())
    for key, p in params.items():
        if p in mine:
            optimizer.set_sequences(p, [torch.tensor(arrays[f"{s}/{key}"]) for s in names])
    optimizer.refresh()
    return optimizer


def end_steps(
    module: torch.nn.Module, arrays: NamedArrays, task: Task, optimizer: LocalOptimizer
) -> dict[str, NDArray]:
    """Return what the client has worked on, like the arrays it began with.

    A parameter that an optimizer of the user's does not have is as it was.
    """
    mine, after = set(optimizer.parameters()), dict(arrays)
    for key, p in sent_parameters(module).items():
        if p in mine:
            pairs = zip(task.algorithm.sequences, optimizer.sequences(p), strict=True)
            after |= {f"{s}/{key}": to_numpy(tensor) for s, tensor in pairs}
    for key, tensor in sent_tensors(module).items():
        if key.startswith(BUFFER) and key in arrays:
            after[key] = to_numpy(tensor)
    # Copies: on a CPU, arrays share the memory of tensors.
    return {key: np.array(array, arrays[key].dtype) for key, array in after.items()}
