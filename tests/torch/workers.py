# SPDX-License-Identifier: Apache-2.0
"""What the processes of the tests do, and the server that forks them.

Importing PyTorch takes seconds, so a server does it once and forks: run as a program, this file
reads jobs, one JSON object per line, and answers with how the processes of each job ended. They
meet in a file and communicate over 127.0.0.1 only. With an argument, it is a worker of torchrun.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import runpy
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from fedac.algorithms import Algorithm, fedac, get
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError
from fedac.federation.schedule import Decay
from fedac.torch import FedAc, LocalOptimizer, NonFiniteStateError, Synchronizer, synchronize
from fedac.torch._communication import Workers
from fedac.torch._state import PARTS

# A job has failed when its processes have used no CPU time for so many seconds, or too much in all:
# limits that a busy machine does not move.
PATIENCE = 120.0
CPU_SECONDS = 600.0


def momentum(name: str, factor: float) -> Algorithm:
    """Return heavy-ball momentum, as an algorithm of the user's own."""
    return Algorithm(
        name=name,
        label="momentum",
        sequences=("w", "m"),
        couple=lambda *, eta, mu, K: Hyperparameters(eta=eta),
        start=lambda w_0: (w_0, 0 * w_0),
        query=lambda state, hp: state[0],
        update=lambda state, w_md, g, hp: (
            w_md + factor * state[1] - hp.eta * g,
            factor * state[1] - hp.eta * g,
        ),
        output=lambda state, hp, t: state[0],
    )


# One of them goes by the name of another. Two are other methods in FedAc's clothes.
OWN = {
    "own momentum": momentum("momentum", 0.5),
    "impostor": momentum("momentum", 0.6),
    "fedac as fedavg": fedac(gamma=0.3, alpha=1.0, beta=1.0),
    "fedac as gpa": fedac(gamma=0.3, alpha=1e300, beta=4.0),
}


# Optimizers of PyTorch: the class, its settings, and how it is synchronized.
FOREIGN: dict[Any, tuple[str, dict[str, Any], dict[str, str]]] = {
    "sgd": ("SGD", {"momentum": 0.5}, {}),
    "sgd, averaged": ("SGD", {"momentum": 0.5}, {"state": "average"}),
    "sgd, reset": ("SGD", {"momentum": 0.5}, {"state": "reset"}),
    "adamw": ("AdamW", {"weight_decay": 0.1}, {"server": "nesterov(0.7,0.9)"}),
    "adamw, averaged": (
        "AdamW",
        {"weight_decay": 0.1},
        {"server": "nesterov(0.7,0.9)", "state": "average"},
    ),
    "adamw, reset": (
        "AdamW",
        {"weight_decay": 0.1},
        {"server": "nesterov(0.7,0.9)", "state": "reset"},
    ),
}


def find(name: str | Algorithm) -> str | Algorithm:
    return OWN.get(name, name)


def begin(
    params: Any,
    algorithm: str | Algorithm,
    model: nn.Module | None = None,
    *,
    lr: Any,
    mu: float,
    local_steps: int,
    weight_decay: float = 0.0,
    **options: Any,
) -> tuple[torch.optim.Optimizer, Synchronizer]:
    """Make an optimizer, of ours or one of `FOREIGN`, and its synchronizer."""
    if algorithm in FOREIGN:
        kind, settings, _ = FOREIGN[algorithm]
        optimizer = getattr(torch.optim, kind)(params, lr=lr, **settings)
    else:
        numbers = {"mu": mu, "local_steps": local_steps, "weight_decay": weight_decay}
        optimizer = make_optimizer(params, algorithm, lr=lr, **numbers)
    return optimizer, attach(optimizer, algorithm, model, local_steps=local_steps, **options)


def attach(
    optimizer: torch.optim.Optimizer,
    algorithm: str | Algorithm,
    model: nn.Module | None = None,
    *,
    by: Any = synchronize,
    local_steps: int,
    **options: Any,
) -> Synchronizer:
    """Synchronize an optimizer that `begin` has made."""
    if algorithm in FOREIGN:
        options = {"local_steps": local_steps} | FOREIGN[algorithm][2] | options
    return by(optimizer, model, **options)


def make_optimizer(params: Any, algorithm: str | Algorithm, **settings: Any) -> LocalOptimizer:
    """Make an optimizer; `lr` may be the start and the form of a decay."""
    if isinstance(settings["lr"], list):
        settings["lr"] = Decay(*settings["lr"])
    return LocalOptimizer(params, find(algorithm), **settings)


def joined(per_parameter: list[Any]) -> list[list[float]]:
    """Return vectors with all parameters one after the other."""
    return [
        torch.cat([part.detach().double().reshape(-1) for part in vector]).tolist()
        for vector in zip(*per_parameter, strict=True)
    ]


def sequences(optimizer: LocalOptimizer) -> list[list[float]]:
    """Return all that local steps work on."""
    return joined([optimizer.sequences(p) for p in optimizer.parameters()])


def served(optimizer: LocalOptimizer) -> list[list[float]]:
    """Return all that the server holds."""
    return joined([optimizer.snapshot(p) for p in optimizer.parameters()])


def kept(optimizer: LocalOptimizer) -> dict[str, list[list[float]]]:
    """Return what is kept from round to round."""
    if optimizer.takes_mean:
        return {}
    params = optimizer.parameters()
    return {part: joined([optimizer.kept(p, part) for p in params]) for part in PARTS}


def everything(optimizer: LocalOptimizer) -> dict[str, Any]:
    """Return all that a rank has."""
    counts = {"rounds": optimizer.rounds, "taken": [g["taken"] for g in optimizer.param_groups]}
    inside = optimizer.inner and plain(optimizer.inner.optimizer.state_dict())
    return {"local": sequences(optimizer), "inside": inside, **kept(optimizer), **counts}


def plain(value: Any) -> Any:
    """Return what can be compared: lists in place of tensors."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


class Counted:
    """Counts all-reduces and the numbers in them."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.original = dist.all_reduce

    def __enter__(self) -> Counted:
        def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.sizes.append(tensor.numel())
            return self.original(tensor, *args, **kwargs)

        dist.all_reduce = counting
        return self

    def __exit__(self, *_: object) -> None:
        dist.all_reduce = self.original


# -- jobs: what one rank does, and returns ------------------------------------------------------


def logistic(rank: int, problem: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Train on the problem of the simulator, with its draws, and return all averaged states."""
    with np.load(problem) as file:
        data = {name: torch.from_numpy(file[name]) for name in file.files}
    return [train_logistic(rank, data, **run) for run in runs]


def train_logistic(
    rank: int,
    data: dict[str, torch.Tensor],
    *,
    algorithm: str,
    K: int,
    T: int,
    eta: float | list[Any],
    mu: float,
    l2: float,
    seed: int,
    batch: int | str = 1,
    at: list[int] | None = None,
    taken: list[list[int]] | None = None,
    epochs: bool = False,
    resume: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Make one run of `logistic`.

    Every rank has all rows, or those that "owners" gives it. `eta` may be the start and the form of
    a decay. Instead of T steps, `taken` may have the steps of all ranks in every round, by rank. A
    round may be an epoch. With `resume`, another optimizer continues from a checkpoint after so
    many steps, or rounds if `taken` is given.
    """
    from fedac.federation.sampling import epoch_order, sample_batch

    start, mine = data["start"], slice(None)
    if "owners" in data:
        mine = data["owners"] == rank
        if options.get("weighting") == "examples":
            options["examples"] = int(mine.sum())
    X, y = data["X"][mine], data["y"][mine]
    synchronizations = set(at or range(K, T + 1, K))

    def backward(w: list[nn.Parameter], rows: torch.Tensor) -> None:
        margins = y[rows] * (X[rows] @ torch.cat(w))
        penalty = sum((part**2).sum() for part in w)
        (l2 / 2 * penalty - nn.functional.logsigmoid(margins).mean()).backward()

    def begin() -> tuple[list[nn.Parameter], LocalOptimizer, Synchronizer]:
        half = len(start) // 2
        # Only rank 0 has the right start; the others get it from there.
        w = [nn.Parameter(part if rank == 0 else torch.randn_like(part))
             for part in (start[:half].clone(), start[half:].clone())]  # fmt: skip
        settings = {"lr": eta, "mu": mu, "local_steps": K}
        if "gradient" in get(find(algorithm)).asks:
            settings["full_gradient"] = lambda: backward(w, torch.arange(len(y)))
        optimizer = make_optimizer(w, algorithm, **settings)
        return w, optimizer, synchronize(optimizer, at=at, **options)

    def step(rows: Any) -> None:
        optimizer.zero_grad()
        backward(w, torch.as_tensor(rows))
        optimizer.step()

    def draw(t: int) -> Any:
        if batch == "full":
            return torch.arange(len(y))
        return sample_batch(seed, rank, t, len(y), int(batch))

    def end_round() -> None:
        states.append(served(optimizer))
        optimizer.eval()
        outputs.append(torch.cat(w).detach())
        optimizer.train()

    def resumed() -> tuple[list[nn.Parameter], LocalOptimizer, Synchronizer]:
        averages.checkpoint(resume["path"])
        dist.barrier()
        begun = begin()
        begun[2].resume(resume["path"])
        return begun

    with Counted() as counted:
        w, optimizer, averages = begin()
        states, outputs = [], []
        for t in range(0 if taken else T):
            step(draw(t))
            if t + 1 in synchronizations:
                end_round()
            if resume is not None and t + 1 == resume["after"]:
                w, optimizer, averages = resumed()
        for r, of_ranks in enumerate(taken or ()):
            order = epoch_order(seed, rank, r, len(y))
            with averages.join():
                for k in range(of_ranks[rank]):
                    t = r * of_ranks[rank] + k
                    step(order[k * batch : (k + 1) * batch] if epochs else draw(t))
            end_round()
            if resume is not None and r + 1 == resume["after"]:
                w, optimizer, averages = resumed()
    return {
        "states": torch.tensor(states, dtype=torch.float64),
        "outputs": torch.stack(outputs),
        "all_reduces": counted.sizes,
        "bytes": averages.bytes,
        "seconds": averages.seconds,
        "rounds": averages.rounds,
    }


def steps(
    rank: int,
    gradients: list[list[list[float]]],
    optimizer: dict[str, Any],
    options: dict[str, Any],
    examples: list[int],
    flush: bool = False,
) -> dict[str, Any]:
    """Take steps with given gradients (by rank and step); return the state after every step.

    `examples` are those of a step, by rank.
    """
    w = nn.Parameter(torch.zeros(len(gradients[0][0]), dtype=torch.float64))
    result: dict[str, Any] = {"states": [], "kept": [], "applied": [], "error": None}
    with Counted() as counted:
        user, averages = begin([w], by=Synchronizer, **optimizer, **options)
        local = averages.optimizer
        try:
            for g in gradients[rank]:
                w.grad = torch.tensor(g, dtype=torch.float64)
                user.step()
                averages.count(examples[rank])
                before = everything(local)
                result["applied"].append(averages.step())
                result["states"].append(sequences(local))
                result["kept"].append(kept(local))
            if flush:
                averages.flush()
                result["states"].append(sequences(local))
                result["kept"].append(kept(local))
        except (InputError, NonFiniteStateError) as error:
            result |= {"error": type(error).__name__, "message": str(error)}
            result["untouched"] = repr(everything(local)) == repr(before)
    result |= {"rounds": averages.rounds, "bytes": averages.bytes, "w": w.tolist()}
    return result | {"all_reduces": counted.sizes}


def several(rank: int, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Do the job of `steps` with several sets of arguments."""
    return [steps(rank, **run) for run in runs]


def evaluated(rank: int, algorithm: str) -> list[list[float]]:
    """Evaluate in the middle of a round, after ending it early, and return both outputs."""
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer, averages = begin([w], algorithm, lr=0.1, mu=0.5, local_steps=4)
    outputs = []
    for t in range(5):
        w.grad = torch.full_like(w, (1.0 + rank) * (1.0 + t))  # control variates know the rank
        optimizer.step()
    for end_round in (lambda: None, averages.synchronize):
        end_round()
        optimizer.eval()
        outputs.append(w.tolist())
        optimizer.train()
    return outputs


def quadratics(
    rank: int,
    curvature: list[list[float]],
    minimizer: list[list[float]],
    algorithm: str,
    K: int,
    steps: int,
) -> torch.Tensor:
    """Minimize the mean of one quadratic per rank with full gradients; return the output."""
    a, b = (torch.tensor(rows[rank], dtype=torch.float64) for rows in (curvature, minimizer))
    w = nn.Parameter(torch.zeros_like(a))
    optimizer = make_optimizer([w], algorithm, lr=0.5, mu=0.5, local_steps=K)
    synchronize(optimizer)
    for _ in range(steps):
        w.grad = a * (w.detach() - b)
        optimizer.step()
    optimizer.eval()
    return w.detach()


def foreign(
    rank: int,
    runs: list[dict[str, Any]],
    death: list[int] | None = None,
) -> list[dict[str, Any]]:
    """Let optimizers of PyTorch take the local steps; `death` is a rank and a step."""
    return [train_foreign(rank, death=death, **run) for run in runs]


def make_foreign(name: str, **settings: Any) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    """Make two parameters in two groups, and an optimizer of them."""
    w = [nn.Parameter(torch.ones(2, 2, dtype=torch.float64)),
         nn.Parameter(torch.full((3,), -1.0, dtype=torch.float64))]  # fmt: skip
    groups = [{"params": [w[0]]}, {"params": [w[1]], "lr": settings["lr"] / 2}]
    return w, getattr(torch.optim, name)(groups, **settings)


def gradient_of(w: torch.Tensor, rank: int, t: int) -> torch.Tensor:
    """Return a gradient that depends on all of its arguments."""
    shift = torch.sin(torch.arange(1.0, w.numel() + 1, dtype=w.dtype) * (1 + rank + 0.37 * t))
    return (1 + rank / 2) * w.detach() + rank - 1 + shift.view_as(w)


def train_foreign(
    rank: int,
    *,
    optimizer: str,
    settings: dict[str, Any],
    options: dict[str, Any],
    steps: int,
    nan: list[int] | None = None,
    path: str | None = None,
    death: list[int] | None = None,
) -> dict[str, Any]:
    """Make one run of `foreign`; with a path, write a checkpoint every round and resume."""
    w, local = make_foreign(optimizer, **settings)
    averages = synchronize(local, **options)
    if path is not None:
        averages.resume(path, missing_ok=True)
    began, points = averages.steps, []
    while averages.steps < steps:
        t, before = averages.steps, averages.rounds
        if [rank, t] == death:
            die()
        for p in w:
            p.grad = gradient_of(p, rank, t) * (math.nan if [rank, t] == nan else 1.0)
        averages.count(rank + 1)
        local.step()
        points.append(torch.cat([p.detach().reshape(-1) for p in w]))
        if path is not None and averages.rounds > before:
            averages.checkpoint(path)
    return {
        "points": torch.stack(points),
        "began": began,
        "rounds": averages.rounds,
        "bytes": averages.bytes,
        "state": [{**local.state[p]} for p in w],
    }


def twins(rank: int, K: int, steps: int) -> dict[str, Any]:
    """Train as PyTorch does, and with ours; return the parameters of both."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    def trained(wrap: Any, **settings: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        step, forward = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, **settings))
        for t in range(steps):
            x = torch.sin(torch.arange(24.0, dtype=torch.float64).view(8, 3) * (1 + rank + t))
            model.zero_grad()
            (forward(x) - x.sum(1, keepdim=True)).square().mean().backward()
            step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def post_local(model: nn.Module, sgd: torch.optim.SGD) -> Any:
        averager = PeriodicModelAverager(period=K, warmup_steps=K - 1)
        return PostLocalSGDOptimizer(sgd, averager).step, model

    def ours(k: int) -> Any:
        def wrap(model: nn.Module, sgd: torch.optim.SGD) -> Any:
            synchronize(sgd, local_steps=k)
            return sgd.step, model

        return wrap

    return {
        "ddp": trained(lambda m, sgd: (sgd.step, nn.parallel.DistributedDataParallel(m))),
        "every step": trained(ours(1)),
        "post-local": trained(post_local, momentum=0.9, weight_decay=0.01),
        "every K steps": trained(ours(K), momentum=0.9, weight_decay=0.01),
    }


def refuse(rank: int, cases: list[dict[str, Any]]) -> list[str]:
    """Make optimizers and synchronizers that differ by rank; return the errors."""
    messages = []
    for case in cases:
        try:
            w = nn.Parameter(torch.zeros(case["size"][rank]))
            begin([w], by=Synchronizer, **case["optimizer"][rank], **case["options"][rank])
            messages.append("accepted")
        except InputError as error:
            messages.append(str(error))
    return messages


def skipping(rank: int, kind: str, K: int, steps: int, scaled: bool) -> dict[str, Any]:
    """Train until so many steps were taken; two batches of rank 1 have infinite gradients.

    A scaler skips them, or, if not `scaled`, they are left out by hand.
    """
    w = nn.Parameter(torch.ones(5, dtype=torch.float64))
    if kind == "FedAc":
        local: torch.optim.Optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=K)
        averages = synchronize(local, timeout=60)
    else:
        local = torch.optim.AdamW([w], lr=0.1, fused=kind == "fused AdamW")
        averages = synchronize(local, local_steps=K, timeout=60)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    batches = 0
    while averages.steps < steps:
        bad = rank == 1 and batches in (3, 9)
        batches += 1
        if bad and not scaled:
            continue
        local.zero_grad()
        target = torch.sin(torch.arange(5.0) * (batches + rank))
        loss = ((w - target) ** 2).sum() * (math.inf if bad else 1.0)
        scaler.scale(loss).backward()
        scaler.step(local)
        scaler.update()
    return {"w": w.detach(), "batches": batches, "rounds": averages.rounds}


def batch_norm(rank: int, average: bool, anew: bool) -> dict[str, Any]:
    """Average a model whose running statistics differ by rank, and may be new tensors each step."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = FedAc(model.parameters(), lr=0.1, mu=0.1, local_steps=2)
    averages = synchronize(optimizer, model if average else None)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 2) + rank).square().sum().backward()
        before = model[1].running_mean.clone()
        if anew:
            model[1].running_mean = before.clone()
        optimizer.step()
    return {
        "before": before,
        "mean": model[1].running_mean,
        "batches": int(model[1].num_batches_tracked),
        "bytes": averages.bytes,
    }


def another_lr(rank: int, lr: float, other: float, setting: str = "lr") -> dict[str, Any]:
    """Change the lr, or another setting, in one rank only."""
    w = nn.Parameter(torch.zeros(5))
    optimizer = FedAc([w], lr=lr, mu=0.1, local_steps=4)
    averages = synchronize(optimizer)
    result: dict[str, Any] = {}
    try:
        for t in range(8):
            if rank == 2 and t == 5:
                optimizer.param_groups[0][setting] = other
            w.grad = torch.ones(5)
            before = sequences(optimizer)
            optimizer.step()
    except InputError as error:
        result["message"] = str(error)
    (group,) = optimizer.param_groups
    v = nn.Parameter(torch.zeros(5))
    decay = group["weight_decay"]
    moved = FedAc([v], lr=group["lr"], mu=0.1, local_steps=4, weight_decay=decay)
    for mine, value in zip(moved.sequences(v), before, strict=True):
        mine.copy_(torch.tensor(value))
    moved.refresh()
    v.grad = torch.ones(5)
    moved.step()
    return result | {
        "rounds": averages.rounds,
        "untouched": np.allclose(sequences(optimizer), sequences(moved), atol=1e-6),
    }


def doomed(
    rank: int, algorithm: str, victim: int, how: str, limit: float, wire: str = "float32"
) -> None:
    """Train without end; one rank dies, or stops, at its tenth step."""
    w = nn.Parameter(torch.zeros(5))
    optimizer, _ = begin([w], algorithm, lr=0.1, mu=0.1, local_steps=4, timeout=limit, wire=wire)
    for t in range(10_000):
        if rank == victim and t == 9:
            os.kill(os.getpid(), signal.SIGSTOP) if how == "stops" else os._exit(7)
        w.grad = torch.ones(5)
        optimizer.step()


def half_a_checkpoint(rank: int, folder: str, algorithm: str) -> list[str]:
    """Resume from what rank 0 has, if that can be read; return the errors."""
    messages = []
    w = nn.Parameter(torch.zeros(5))
    optimizer, averages = begin([w], algorithm, lr=0.1, mu=0.1, local_steps=2)
    for t in range(4):
        w.grad = torch.full((5,), float(rank))
        optimizer.step()
        if t % 2:
            averages.checkpoint(f"{folder}/{t + 1}.pt")
    dist.barrier()
    if rank == 0:
        Path(f"{folder}/2.pt").write_bytes(b"damaged")
    dist.barrier()
    missing = f"{folder}/none.pt" if rank == 0 else f"{folder}/4.pt"
    for path, missing_ok in (
        (missing, False),
        (missing, True),
        (f"{folder}/{2 if rank == 0 else 4}.pt", False),
        (f"{folder}/{4 if rank == 0 else 'elsewhere/4'}.pt", False),
    ):
        before = everything(averages.optimizer)
        try:
            messages.append(str(averages.resume(path, missing_ok=missing_ok)))
        except InputError as error:
            messages.append(str(error))
            assert everything(averages.optimizer) == before
    return messages


def late(rank: int, **options: Any) -> list[str]:
    """Synchronize after a step on parameters that differ; return the errors by algorithm."""
    messages = []
    for algorithm in ("diloco", "fedavg"):
        w = nn.Parameter(torch.full((3,), float(rank)))
        optimizer = make_optimizer([w], algorithm, lr=0.1, mu=0.1, local_steps=2)
        w.grad = torch.ones(3)
        optimizer.step()
        try:
            Synchronizer(optimizer, **options)
            messages.append("accepted")
        except InputError as error:
            messages.append(str(error))
    return messages


def lost_memory(rank: int, folder: str, algorithm: str) -> list[str]:
    """Write checkpoints with memory, spoil rank 1's files, and return what all ranks say."""
    path, messages = Path(folder) / "run.pt", []
    mine = Path(f"{path}.rank1.step4")

    def start() -> tuple[nn.Parameter, torch.optim.Optimizer, Synchronizer]:
        w = nn.Parameter(torch.zeros(3))
        return w, *begin([w], algorithm, lr=0.1, mu=0.1, local_steps=2)

    def run(training: tuple[nn.Parameter, torch.optim.Optimizer, Synchronizer], steps: int) -> None:
        w, optimizer, _ = training
        for _ in range(steps):
            w.grad = w.detach() + rank
            optimizer.step()

    first = start()
    for _ in range(2):
        run(first, 2)
        first[2].checkpoint(path)
    good = everything(first[2].optimizer)
    dist.barrier()
    before, content = path.read_bytes(), mine.read_bytes()
    older = Path(f"{path}.rank1.step2").read_bytes()
    dist.barrier()  # all have read them

    def attempt(spoil: Any) -> None:
        if rank == 1:
            spoil()
        dist.barrier()
        training = start()
        run(training, 2)
        ours = training[2].optimizer
        unchanged = everything(ours)
        try:
            training[2].resume(path, missing_ok=True)
            messages.append("resumed" if everything(ours) == good else "resumed wrongly")
        except InputError as error:
            messages.append(str(error))
            assert everything(ours) == unchanged
        dist.barrier()

    attempt(mine.unlink)
    attempt(lambda: mine.write_bytes(content[:-50]))
    attempt(lambda: mine.write_bytes(older))
    attempt(lambda: mine.write_bytes(content))
    # Rank 1 cannot write: nothing is replaced.
    run(first, 2)
    original = torch.save
    if rank == 1:
        torch.save = fail_to_save
    try:
        first[2].checkpoint(path)
    except OSError as error:
        messages.append(str(error))
    torch.save = original
    dist.barrier()
    assert path.read_bytes() == before
    first[2].checkpoint(path)
    return messages


def fail_to_save(*_: object) -> None:
    raise OSError(28, "No space left on device")


def example(rank: int, path: str, arguments: list[Any]) -> None:
    """Run one process of an example."""
    runpy.run_path(path)["work_together"](*arguments)


def program(rank: int, path: str) -> torch.Tensor:
    """Run one process of a program for torchrun, and return its w; there is a group already."""
    dist.init_process_group = lambda backend: None
    dist.destroy_process_group = lambda group=None: None
    os.chdir(Path(path).parent)
    return runpy.run_path(path)["w"].detach()


def programs(rank: int, paths: list[str]) -> list[torch.Tensor]:
    """Run one process of some programs, one after the other, with the variables of torchrun."""
    world = str(dist.get_world_size())
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) | {"GROUP_RANK": "0"}
    worlds = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), world)
    os.environ |= ranks | worlds | {"TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    return [program(rank, path) for path in paths]


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_later(how: str) -> None:
    """Prepare to die while the next checkpoint is written."""
    exchange, fsync = Workers.exchange, os.fsync
    if how == "writing":  # with half a file beside the last one
        os.fsync = die
    elif how == "written":  # what this rank remembers is in its file, and nobody knows
        Workers.exchange = die
    elif how == "exchanged":  # all have written, rank 0 not yet the checkpoint itself
        Workers.exchange = lambda *message: die(exchange(*message))
    elif how == "replacing":  # with half of the checkpoint itself
        os.fsync = lambda handle: (fsync(handle), setattr(os, "fsync", die))


def train(
    rank: int, folder: str, steps: int, kills: list[list[Any]], algorithm: str = "fedac-i"
) -> dict[str, Any]:
    """Train with a checkpoint every round, dying where `kills` (rank, step, how) say, once each."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer, averages = begin(
        model.parameters(), algorithm, model, lr=0.05, mu=0.1, local_steps=5, timeout=300
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    path = Path(folder) / "last.pt"
    extra = averages.resume(path, missing_ok=True)
    if extra is not None:
        scheduler.load_state_dict(extra["scheduler"])
    while averages.steps < steps:
        t = averages.steps
        how = next((how for who, when, how in kills if (who, when) == (rank, t)), None)
        if how is not None and not (marker := Path(folder) / f"{rank}-{t}").exists():
            marker.touch()
            if how == "killed":
                die()
            elif how == "exits":
                os._exit(3)
            die_later(how)
        # A batch that is a function of rank and step: the sampler's position is the step.
        x = torch.sin(torch.arange(32.0).reshape(8, 4) * (1 + rank + 0.37 * t))
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        if averages.steps % 5 == 0:
            averages.checkpoint(path, scheduler=scheduler.state_dict())
    torch.save(everything(averages.optimizer), Path(folder) / f"final-{rank}.pt")
    return everything(averages.optimizer)


def train_under_torchrun(folder: str, steps: int, kills: list[list[Any]], algorithm: str) -> None:
    """Run one worker of torchrun, which sets the rank and the number of this attempt."""
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting-{attempt}", rank=rank, world_size=world
    )
    train(rank, folder, steps, kills, algorithm)


def torchrun(rank: int, folder: str, restarts: int, **arguments: Any) -> None:
    """Do what the program torchrun does, but fork the workers: they need not import PyTorch."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    dist.destroy_process_group()
    os.environ |= ELSEWHERE
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=4,
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{folder}/rendezvous",
        rdzv_configs={"store_type": "file"},
        max_restarts=restarts,
        monitor_interval=0.02,
        start_method="fork",
        local_addr="127.0.0.1",
    )
    elastic_launch(config, train_under_torchrun)(folder, *arguments.values())


def torchrun_program(rank: int, folder: str, restarts: int, **arguments: Any) -> None:
    """Turn this process into torchrun, with this file as its worker."""
    os.environ |= ELSEWHERE
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=4",
        f"--max-restarts={restarts}", "--rdzv-backend=c10d", "--rdzv-id=test",
        f"--rdzv-endpoint={folder}/rendezvous", "--rdzv-conf=store_type=file",
        "--local-addr=127.0.0.1", "--monitor-interval=0.1", __file__,
        json.dumps({"folder": folder, **arguments}),
    ]  # fmt: skip
    os.execv(sys.executable, command)


JOBS = {
    job.__name__: job
    for job in (
        logistic,
        steps,
        several,
        evaluated,
        quadratics,
        foreign,
        twins,
        refuse,
        skipping,
        batch_norm,
        another_lr,
        doomed,
        half_a_checkpoint,
        late,
        lost_memory,
        example,
        program,
        programs,
        train,
        torchrun,
        torchrun_program,
    )
}
# Torchrun meets in a file as well: its own server would listen to the whole network. The first
# variable is the one of docs/pytorch.md: restarted processes must not find addresses of dead ones.
ELSEWHERE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}


# -- the server --------------------------------------------------------------------------------


def find_job(name: str) -> Any:
    """Return a job of this file, or of another one, such as "loops:join"."""
    file, _, function = name.rpartition(":")
    return getattr(importlib.import_module(file), function) if file else JOBS[name]


def run_rank(rank: int, job: dict[str, Any]) -> None:
    """Run one process of a job."""
    folder = Path(job["folder"])
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT), stream)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=job["world"],
    )
    result = find_job(job["name"])(rank, **job["arguments"])
    torch.save(result, folder / f"{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()
    os._exit(0)  # saves a second; a process that fails ends normally


def wait_for(pids: list[int]) -> list[int]:
    """Return the exit code of every process; processes that make no progress are killed (-9)."""
    codes: dict[int, int] = {}
    used, looked_at, changed_at = 0.0, 0.0, time.monotonic()
    while len(codes) < len(pids):
        running = [pid for pid in pids if pid not in codes]
        now = time.monotonic()
        if now > looked_at + 1:
            looked_at = now
            if used != (used := cpu_seconds(running)):
                changed_at = now
        stuck = now > changed_at + PATIENCE or used > CPU_SECONDS
        # A process that has stopped itself waits here for the others to end.
        if stuck or all(is_stopped(pid) for pid in running):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
        for pid in running:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time of some processes and all their descendants."""
    stats = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            stats[int(folder.name)] = read_stat(int(folder.name))
    total, family = 0, set(pids)
    while family:
        total += sum(sum(map(int, stats[pid][11:15])) for pid in family if pid in stats)
        family = {pid for pid, stat in stats.items() if int(stat[1]) in family}
    return total / os.sysconf("SC_CLK_TCK")


def is_stopped(pid: int) -> bool:
    return read_stat(pid)[0] == "T"


def read_stat(pid: int) -> list[str]:
    """Return the fields of a process after its name: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def warm_up() -> None:
    """Import what PyTorch and the jobs import late, so that no fork has to."""
    import fedac.federation.sampling  # noqa: F401

    w = nn.Parameter(torch.ones(2))
    for optimizer in (FedAc([w], lr=0.1, mu=0.1, local_steps=1), torch.optim.AdamW([w])):
        (w**2).sum().backward()
        optimizer.step()


def main() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    warm_up()
    gc.freeze()  # or every fork would copy what its garbage collector looks at
    for line in sys.stdin:
        job = json.loads(line)
        pids = []
        for rank in range(job["world"]):
            pid = os.fork()
            if pid == 0:
                run_rank(rank, job)
                return
            pids.append(pid)
        print(json.dumps(wait_for(pids)), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        train_under_torchrun(**json.loads(sys.argv[1]))
    else:
        main()
