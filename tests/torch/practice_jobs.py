# SPDX-License-Identifier: Apache-2.0
"""What processes do in test_practice.py; `workers.py` runs these jobs."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedac.errors import InputError
from fedac.torch import LocalOptimizer, LocalSGD, Synchronizer, WorkerLostError, synchronize

LR, K = 0.1, 4


def gradient(w: Tensor, rank: int, t: int) -> Tensor:
    """Return the gradient of a quadratic that depends on rank and step."""
    shift = torch.sin(torch.arange(1.0, w.numel() + 1, dtype=w.dtype) * (1 + rank + 0.37 * t))
    return (1 + rank / 2) * w.detach() + rank - 1 + shift.view_as(w)


def make(method: str, rank: int, **options: Any) -> tuple[nn.Parameter, Any, Synchronizer]:
    """Make a parameter, an optimizer of ours or of PyTorch, and its synchronizer."""
    w = nn.Parameter(torch.full((3,), 1.0 + rank, dtype=torch.float64))
    if method.startswith("adamw"):
        optimizer: Any = torch.optim.AdamW([w], lr=LR)
        server = method.partition("+")[2] or None
        return w, optimizer, synchronize(optimizer, local_steps=K, server=server, **options)
    optimizer = LocalOptimizer([w], method, lr=LR, mu=0.1, local_steps=K)
    return w, optimizer, synchronize(optimizer, **options)


def caught(action: Callable[[], object]) -> list[str]:
    """Return the warnings of an action, and its error if it has one."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            action()
        except (InputError, OSError) as error:
            return [str(w.message) for w in found] + [f"{type(error).__name__}: {error}"]
    return [str(w.message) for w in found]


def state(averages: Synchronizer) -> Tensor:
    """Return all that the server holds."""
    optimizer = averages.optimizer
    return torch.cat(
        [t.detach().clone() for p in optimizer.parameters() for t in optimizer.snapshot(p)]
    )


def join(rank: int, method: str, batches: list[int], epochs: int, **options: Any) -> dict[str, Any]:
    """Train with different numbers of batches."""
    w, optimizer, averages = make(method, rank, **options)
    ends, t = [], 0
    for _ in range(epochs):
        with averages.join():
            for _ in range(batches[rank]):
                w.grad = gradient(w, rank, t)
                if options.get("weighting") == "examples":
                    averages.count(rank + 1)
                optimizer.step()
                t += 1
        ends.append(state(averages))
    recorded = [row.step for row in averages.history]
    counts = {"steps": averages.steps, "rounds": averages.rounds, "recorded": recorded}
    return {"ends": ends, **counts}


def join_with_schedules(rank: int, batches: list[int]) -> dict[str, Any]:
    """Let lr fall with every batch, with a server rule that counts in units of it."""
    w = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = LocalOptimizer([w], "slowmo", lr=LR, mu=0.1, local_steps=K)
    averages = synchronize(optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with averages.join():
        for t in range(batches[rank]):
            w.grad = gradient(w, rank, t)
            optimizer.step()
            scheduler.step()
    return {"end": state(averages), "lr": optimizer.param_groups[0]["lr"]}


def survive(rank: int, method: str, victim: int, at: int, steps: int) -> dict[str, Any]:
    """Go on without a rank that dies at a step."""
    w, optimizer, averages = make(method, rank, timeout=60)
    lost, spread = "", []
    while averages.steps < steps:
        if (rank, averages.steps) == (victim, at):
            os._exit(7)
        w.grad = gradient(w, rank, averages.steps)
        try:
            optimizer.step()
        except WorkerLostError as error:
            lost = str(error)
            survivors = [r for r in range(dist.get_world_size()) if r != victim]
            averages.rebuild(dist.new_group(survivors, use_local_synchronization=True))
            spread = state(averages).tolist()
    end = {"end": state(averages), "after": spread, "lost": lost, "ranks": averages.world_size}
    averages._rounds.workers.exchange({})  # nobody leaves before the others
    return end


def fall_behind(rank: int, method: str) -> dict[str, Any]:
    """Let two of three ranks end a round more than the third, and then go on together."""
    w, optimizer, averages = make(method, rank)

    def train(steps: int) -> None:
        for _ in range(steps):
            w.grad = gradient(w, rank, averages.steps)
            optimizer.step()

    train(K)
    if rank < 2:
        averages.rebuild(dist.new_group([0, 1], use_local_synchronization=True))
        train(K + 1)
    averages.rebuild(dist.group.WORLD)
    together = state(averages)
    steps = averages.steps
    train(K - steps % K)
    return {"together": together, "end": state(averages), "steps": [steps, averages.steps]}


def out_of_phase(rank: int) -> dict[str, Any]:
    """Rank 1 skips its first step, as a GradScaler may do, and calls `step` nevertheless."""
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = LocalSGD([w], lr=LR, local_steps=K)
    averages = Synchronizer(optimizer)
    points = []
    for batch in range(2 * K + rank):
        w.grad = torch.full((3,), rank + 1.0, dtype=torch.float64)
        if (rank, batch) != (1, 0):
            optimizer.step()
        averages.step()
        points.append(w.tolist())
    for _ in range(1 + rank):
        optimizer.step()
    before = w.tolist()
    return {"points": points, "error": caught(averages.synchronize), "same": before == w.tolist()}


def left_out(rank: int) -> dict[str, Any]:
    """Let rank 1 have NaN in the second of three rounds."""
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = LocalSGD([w], lr=LR, local_steps=2)
    averages = synchronize(optimizer, on_nonfinite="skip-worker")
    found = []
    for t in range(6):
        w.grad = torch.full((3,), float(rank), dtype=torch.float64)
        if (rank, t) == (1, 2):
            w.grad *= torch.nan
        found += caught(optimizer.step)
    rows = [row._asdict() | {"skipped": list(row.skipped)} for row in averages.history]
    return {"warnings": found, "history": rows, "w": w.tolist()}


def begin_late(rank: int, method: str) -> dict[str, Any]:
    """Synchronize at step 2, with states that differ, then add a group of parameters."""
    w = nn.Parameter(torch.full((3,), 1.0 + rank, dtype=torch.float64))
    optimizer = LocalOptimizer([w], method, lr=LR, mu=0.1, local_steps=K)
    for t in range(2):
        w.grad = gradient(w, rank, t)
        optimizer.step()
    before = [s.tolist() for s in optimizer.sequences(w)]
    synchronize(optimizer)
    after = [s.tolist() for s in optimizer.sequences(w)]
    more = nn.Parameter(torch.full((2,), 5.0 + rank, dtype=torch.float64))
    optimizer.add_param_group({"params": [more]})
    synchronize(optimizer)
    return {"before": before, "after": after, "more": more.tolist()}


def meet_other_messages(rank: int) -> dict[str, Any]:
    """Let a message of the user's own be under way while a round ends."""
    w = nn.Parameter(torch.full((3,), float(rank), dtype=torch.float64))
    optimizer = LocalSGD([w], lr=LR, local_steps=1)
    synchronize(optimizer)
    w.grad = torch.full((3,), 1.0 + rank, dtype=torch.float64)
    mine = torch.full((3,), 100.0 * (rank + 1), dtype=torch.float64)
    if rank == 0:
        work = dist.all_reduce(mine, async_op=True)
        optimizer.step()
        work.wait()
    else:
        optimizer.step()
        dist.all_reduce(mine)
    return {"w": w.tolist(), "mine": mine.tolist()}


def variance(rank: int) -> list[float]:
    """Average a variance that falls while the average is computed; return what it becomes."""
    model = nn.BatchNorm1d(1)
    optimizer = LocalSGD(model.parameters(), lr=0.1, local_steps=2)
    synchronize(optimizer, model, overlap=True)
    for value in (1.0, 0.9 if rank == 0 else 0.05, 0.1):
        model.running_var.fill_(value)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    return model.running_var.tolist()


def elsewhere(rank: int, folder: str, method: str) -> dict[str, Any]:
    """Write checkpoints without a shared disk; resume on other machines than before."""

    def mine(owner: int) -> str:
        path = Path(folder) / str(owner)
        path.mkdir(exist_ok=True)
        return str(path / "run.pt")

    def train(averages: Synchronizer, w: nn.Parameter, optimizer: Any, steps: int) -> None:
        while averages.steps < steps:
            w.grad = gradient(w, rank, averages.steps)
            optimizer.step()

    w, optimizer, averages = make(method, rank)
    train(averages, w, optimizer, K)
    averages.checkpoint(mine(rank), note="hello")
    files = sorted(path.name for path in Path(mine(rank)).parent.iterdir())
    train(averages, w, optimizer, 2 * K)
    end = state(averages)
    dist.barrier()
    # Rank 0 stays where it was; the others find the files of each other.
    world = dist.get_world_size()
    disk = rank if rank == 0 else 1 + rank % (world - 1)
    w, optimizer, averages = make(method, rank)
    extra = averages.resume(mine(disk))
    train(averages, w, optimizer, 2 * K)
    return {"end": end, "again": state(averages), "extra": extra, "files": files}


def refuse_to_write(rank: int, folder: str, method: str) -> list[list[str]]:
    """Let rank 0 fail to write checkpoints."""
    w, optimizer, averages = make(method, rank)
    for _ in range(K):
        w.grad = gradient(w, rank, averages.steps)
        optimizer.step()
    path = f"{folder}/run.pt"
    extra = {"thing": object()} if rank == 0 else {}
    return [
        caught(lambda: averages.checkpoint(folder if rank == 0 else path)),
        caught(lambda: averages.checkpoint(path, **extra)),
        caught(lambda: averages.checkpoint(path)),
    ]


def nodes(rank: int, folder: str, method: str, wire: str, inside: bool) -> dict[str, Any]:
    """Train two nodes of two processes with DDP inside, or two processes with the same data."""
    ranks = dist.get_world_size()
    options: dict[str, Any] = {"wire": wire, "weighting": "examples"}
    if inside:
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        options |= {"group": dist.new_group([0, 2]), "node": groups[rank // 2]}
    worker = rank // (ranks // 2)

    def begin() -> tuple[nn.Module, nn.Module, Any, Synchronizer]:
        torch.manual_seed(rank)
        model = nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)
        ).double()
        model[1].eval()  # so that statistics do not depend on how batches are divided
        trained: nn.Module = model
        if inside:
            trained = nn.parallel.DistributedDataParallel(model, process_group=options["node"])
        if method.startswith("adamw"):
            optimizer: Any = torch.optim.AdamW(trained.parameters(), lr=0.01)
            server = method.partition("+")[2]
            return (
                model,
                trained,
                optimizer,
                synchronize(optimizer, trained, local_steps=K, server=server, **options),
            )
        optimizer = LocalOptimizer(trained.parameters(), method, lr=LR, mu=0.1, local_steps=K)
        return model, trained, optimizer, synchronize(optimizer, trained, **options)

    def train(steps: int) -> Tensor:
        while averages.steps < steps:
            t = averages.steps
            x = torch.sin(torch.arange(24.0, dtype=torch.float64).view(8, 3) * (1 + worker + t))
            if inside:
                x = x[4 * (rank % 2) :][:4]
            optimizer.zero_grad()
            (trained(x) - x.sum(1, keepdim=True)).square().mean().backward()
            averages.count((1 + worker) * len(x))
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    model, trained, optimizer, averages = begin()
    path = f"{folder}/run.pt"
    train(2 * K)
    averages.checkpoint(path)
    end = train(4 * K)
    dist.barrier()
    model, trained, optimizer, averages = begin()
    averages.resume(path)
    again = train(4 * K)
    return {"end": end, "again": again, "size": averages.world_size, "bytes": averages.bytes}


def nodes_without_ddp(rank: int) -> list[str]:
    """Forget DistributedDataParallel inside nodes."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    between = dist.new_group([0, 2])
    w = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = LocalSGD([w], lr=LR, local_steps=2)
    synchronize(optimizer, group=between, node=groups[rank // 2])

    def train() -> None:
        for t in range(2):
            w.grad = gradient(w, rank, t)
            optimizer.step()

    return caught(train)


def ddp_without_nodes(rank: int) -> list[str]:
    """Leave the model in DistributedDataParallel."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    return caught(lambda: synchronize(LocalSGD(model.parameters(), LR, 2), model))


def fine_tune(rank: int) -> list[float]:
    """Train a part of a model whose other parameters the optimizer does not have."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).requires_grad_(False)
    trained = [p.requires_grad_(True) for p in model[1].parameters()]
    synchronize(torch.optim.SGD(trained, lr=LR), model, local_steps=2)
    return [float(p.sum()) for p in model.parameters()]


def lose_and_begin_again(rank: int) -> list[float]:
    """Let a synchronization fail because a rank is late, and then begin anew, all of them."""

    def begin() -> tuple[nn.Parameter, LocalSGD]:
        w = nn.Parameter(torch.full((3,), float(rank), dtype=torch.float64))
        optimizer = LocalSGD([w], lr=LR, local_steps=2)
        synchronize(optimizer, timeout=2)
        return w, optimizer

    w, optimizer = begin()
    w.grad = torch.ones(3, dtype=torch.float64)
    lost = False
    try:
        for _ in range(1 if rank == 2 else 2):
            optimizer.step()
    except WorkerLostError:
        lost = True
    dist.barrier()
    assert lost == (rank != 2)
    w, optimizer = begin()
    for _ in range(2):
        w.grad = torch.full((3,), float(rank), dtype=torch.float64)
        optimizer.step()
    return w.tolist()


def two_groups(rank: int, folder: str) -> list[list[float]]:
    """Let two groups train alike, each with a rank 0 that writes the same checkpoint."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    w = nn.Parameter(torch.ones(50_000, dtype=torch.float64))
    optimizer = LocalSGD([w], lr=LR, local_steps=1)
    averages = synchronize(optimizer, group=groups[rank % 2])
    found = []
    for t in range(20):
        w.grad = torch.full_like(w, 0.1 * (rank // 2) + t)
        optimizer.step()
        found += caught(lambda: averages.checkpoint(f"{folder}/run.pt"))
    assert not found, found
    end = w.detach().clone()
    dist.barrier()  # both have written the last one
    averages.resume(f"{folder}/run.pt")
    assert torch.equal(end, w)
    return [[float(w.sum())]]


def sharded(rank: int) -> dict[str, Any]:
    """Synchronize what every rank has only a part of; return what each attempt says."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.optim import ZeroRedundancyOptimizer

    device = torch.device("cpu")
    found = {}
    for whole in (True, False):  # 20 numbers, of which both ranks have 10
        inner = nn.Linear(4, 4)
        model = FullyShardedDataParallel(inner, use_orig_params=whole, device_id=device)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        local = LocalSGD(model.parameters(), lr=0.1, local_steps=2)
        for name, attempt in {
            "model": lambda m=model, o=sgd: synchronize(o, m, local_steps=2),
            "no model": lambda o=sgd: synchronize(o, local_steps=2),
            "ours": lambda o=local: synchronize(o),
        }.items():
            found[f"fsdp, {whole}, {name}"] = caught(attempt)
    # Two parameters of the same shape: each rank has one of them.
    params = [nn.Parameter(torch.full((3,), float(i))) for i in range(2)]
    zero = ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.1)
    assert len(zero.optim.param_groups[0]["params"]) == 1
    for name, optimizer in {"zero": zero, "inside zero": zero.optim}.items():
        found[name] = caught(lambda o=optimizer: synchronize(o, local_steps=2))
    z = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    adamw, ours = torch.optim.AdamW([z]), LocalSGD([z], lr=0.1, local_steps=2)
    found["complex"] = caught(lambda: synchronize(adamw, local_steps=2, wire="int8"))
    found["complex, ours"] = caught(lambda: synchronize(ours))
    return found


def reset_layer(
    rank: int,
    server: str | None,
    steps: int,
    who: list[int],
    wire: str,
    ours: bool,
    path: str,
    rounding: bool = False,
) -> dict[str, Any]:
    """Reset a layer of some ranks after `synchronize`, and train; return what is said and left.

    With `rounding`, it only changes as much as another machine would round it.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    if ours:
        name = "fedavg" if server is None else f"fedavg+{server}"
        optimizer: Any = LocalOptimizer(model.parameters(), name, lr=LR, local_steps=K)
        averages = synchronize(optimizer, model, wire=wire)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        averages = synchronize(optimizer, model, local_steps=K, server=server, wire=wire)
    if rank in who and rounding:
        with torch.no_grad():
            model[1].weight *= 1 + 2**-22
    elif rank in who:
        torch.manual_seed(1 + who.index(rank) * (len(who) < 3))  # three reset it in the same way
        model[1].reset_parameters()

    def train() -> None:
        for t in range(steps):
            x = torch.sin(torch.arange(8.0).view(2, 4) * (1 + rank + t))
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

    messages = caught(train)
    return {
        "said": messages or caught(lambda: averages.checkpoint(path)),
        "w": nn.utils.parameters_to_vector(model.parameters()).detach(),
        "rounds": averages.rounds,
    }


class Log(list[Any]):
    """A synchronizer's history that calls a function after every round."""

    def __init__(self, after: Callable[[Any], None]) -> None:
        super().__init__()
        self._after = after

    def append(self, row: Any) -> None:
        super().append(row)
        self._after(row)


def variates(
    rank: int,
    algorithm: str,
    dtype: str,
    batches: list[int],
    epochs: int,
    examples: list[int] | None,
    nan: list[int] | None = None,
    lost: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Train inside `join`; return c and c_m after every round, and by what this rank counted.

    `examples` are fixed; without them, weighting="examples" counts another number every step. With
    `lost`, the other ranks go on in a group of theirs after the first epoch.
    """
    if examples is not None:
        options["examples"] = examples[rank]
    w = [nn.Parameter(torch.full((size,), 1.0, dtype=getattr(torch, dtype))) for size in (3, 4)]
    groups = [{"params": [w[0]]}, {"params": [w[1]], "lr": LR / 2}]
    optimizer = LocalOptimizer(groups, algorithm, lr=LR, mu=0.1, local_steps=K)
    averages = synchronize(optimizer, on_nonfinite="skip-worker", **options)
    rounds: list[dict[str, Any]] = []
    counted = taken = t = 0

    def look(row: Any) -> None:
        nonlocal counted, taken
        name = optimizer.algorithm.sequences.index("c")
        c, c_m = (
            torch.cat([optimizer.kept(p, part)[i].double() for p in w])
            for part, i in (("sent", name), ("memory", -1))
        )
        used = taken > 0 and averages.rank not in row.skipped
        rounds.append({"c": c, "c_m": c_m.clone(), "counted": counted, "used": used})
        counted = taken = 0

    averages.history = Log(look)
    for epoch in range(epochs):
        if lost and epoch == 1:
            if rank == 3:
                return rounds
            averages.rebuild(dist.new_group([0, 1, 2], use_local_synchronization=True))
        with averages.join():
            for _ in range(batches[rank]):
                bad = nan is not None and nan == [rank, t]
                for p in w:
                    p.grad = gradient(p, rank, t) * (float("nan") if bad else 1.0)
                n = 1 + (3 * rank + 5 * t) % 7
                counted, taken, t = counted + n, taken + 1, t + 1
                averages.count(n)
                optimizer.step()
    return rounds


def pooled(
    rank: int,
    algorithm: str,
    curvature: list[list[float]],
    minimizer: list[list[float]],
    examples: list[int],
    batches: list[int],
    epochs: int,
    lr: float,
    weighting: str,
    fixed: bool,
) -> Tensor:
    """Minimize the pooled loss with full gradients, inside `join`; return the output."""
    a, b = (torch.tensor(rows[rank], dtype=torch.float64) for rows in (curvature, minimizer))
    w = nn.Parameter(torch.zeros_like(a))
    optimizer = LocalOptimizer([w], algorithm, lr=lr, mu=0.1, local_steps=K)
    averages = synchronize(
        optimizer, weighting=weighting, examples=examples[rank] if fixed else None
    )
    for _ in range(epochs):
        with averages.join():
            for _ in range(batches[rank]):
                averages.count(examples[rank])
                w.grad = a * (w.detach() - b)
                optimizer.step()
    optimizer.eval()
    return w.detach()


def meet_at_rank_0(rank: int) -> None:
    """Form a group whose store is in rank 0's process, and listens on 127.0.0.1 only."""
    listener, port = None, torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port[0] = listener.getsockname()[1]
    dist.broadcast(port, 0)
    world = dist.get_world_size()
    dist.destroy_process_group()
    mine = {} if listener is None else {"master_listen_fd": listener.detach()}
    limit = timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", int(port), world, rank == 0, timeout=limit, **mine)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def lose_the_store(rank: int, method: str, when: str, how: int, timeout: float, path: str) -> str:
    """Train until rank 0, which has the store, gets a signal; return what the others raise."""
    meet_at_rank_0(rank)

    def end(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), how)

    def end_in(function: Callable[..., Any]) -> Callable[..., Any]:
        def started(*arguments: Any, **options: Any) -> Any:
            work = function(*arguments, **options)
            end()
            return work

        return started

    if rank == 0 and when == "the start":
        dist.all_gather = end
    try:
        w, optimizer, averages = make(method, rank, timeout=timeout)
        for t in range(4 * K):
            if rank == 0 and t == {"the first step": 0, "a round": K + 2}.get(when):
                end()
            if rank == 0 and t == 2 * K - 1 and when == "the all-reduce":
                dist.all_reduce = end_in(dist.all_reduce)
            w.grad = gradient(w, rank, t)
            optimizer.step()
            if t == 2 * K - 1 and when == "between rounds":
                dist.barrier()
                if rank == 0:
                    end()
            if t == 2 * K - 1 and when == "a checkpoint":
                if rank == 0:
                    os.fsync = end
                averages.checkpoint(path)
    except WorkerLostError as error:
        if when == "the start":
            return str(error)
        try:  # nor can anything else be done in that group
            averages.resume(path)
        except WorkerLostError as again:
            return f"{error}\n{again}"
    return "nothing"


def replaced_machine(rank: int, method: str, path: str, missing: str) -> dict[str, Any]:
    """Resume from a checkpoint without rank 1's file, and train on."""
    options = {"weighting": "examples", "examples": 1 + 2 * rank}

    def train(w: nn.Parameter, optimizer: Any, averages: Synchronizer, steps: int) -> None:
        for t in range(averages.steps, averages.steps + steps):
            w.grad = gradient(w, rank, t)
            optimizer.step()

    def kept(w: nn.Parameter, optimizer: Any, averages: Synchronizer) -> dict[str, Any]:
        ours = averages.optimizer
        adam = {n: t.clone() for n, t in optimizer.state[w].items() if ours.inner is not None}
        parts = ("sent", "memory") if not ours.takes_mean else ()
        tensors = {part: [t.clone() for t in ours.kept(w, part)] for part in parts}
        return {
            "w": w.detach().clone(),
            "adam": adam,
            "lr": optimizer.param_groups[0]["lr"],
        } | tensors

    first = make(method, rank, **options)
    train(*first, 2 * K)
    first[1].param_groups[0]["lr"] = LR / 2  # as a scheduler does
    train(*first, K)
    first[2].checkpoint(path, note=7)
    dist.barrier()
    if rank == 1:
        Path(f"{path}.rank1.step{3 * K}").unlink()
    dist.barrier()
    second = make(method, rank, **options)
    extra: list[Any] = []
    said = caught(lambda: extra.append(second[2].resume(path, missing=missing)))
    after = kept(*second)
    if extra:
        train(*second, 2 * K)
    return {
        "said": said,
        "extra": extra,
        "before": kept(*first),
        "after": after,
        "end": state(second[2]),
    }
