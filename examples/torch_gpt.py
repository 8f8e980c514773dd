# SPDX-License-Identifier: Apache-2.0
"""A small GPT on the source text of Python's standard library: its loss, and what that cost.

Four processes train it under DistributedDataParallel, which sends a gradient at every step, and by
methods that send once in K steps. The table and the figure show the loss on files that nothing was
tuned on, against tokens, megabytes, and seconds if every process had a link of 100 Mbit/s:

    python examples/torch_gpt.py                           # all methods, one seed
    python examples/torch_gpt.py --seeds 3 --plot gpt.png  # as in docs/pytorch.md
    python examples/torch_gpt.py --kill                    # kill a process, resume, compare

It takes about three minutes per seed on two idle cores, and needs no network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import sysconfig
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from fedac import Link
from fedac.torch import FedAc, LocalOptimizer, synchronize, traffic

WORKERS = 4
LABELS = {
    "ddp": "DDP, AdamW",
    "post-local": "post-local SGD with momentum",
    "diloco": "DiLoCo",
    "diloco-int8": "DiLoCo, int8",
    "fedac": "FedAc-I",
    "fedac-local": "FedAc-I+local+Nesterov",
    "gpa": "GPA",
    "gpa-int8": "GPA, int8",
    "momentum": "LocalSGD with momentum",
}
# The best of benchmarks/gpt_tuning.py: equally many tries of each method, one seed, other files.
SETTINGS: dict[str, dict[str, float]] = {
    "ddp": {"lr": 0.004, "beta2": 0.99},
    "post-local": {"lr": 0.512, "momentum": 0.8},
    "diloco": {"lr": 0.008, "outer": 0.3},
    "diloco-int8": {"lr": 0.008, "outer": 0.3},  # as in DiLoCo
    "fedac": {"lr": 0.256, "mu": 0.01},
    "fedac-local": {"lr": 0.256, "mu": 0.1, "outer": 0.5},
    "gpa": {"lr": 2.05, "mu_x": 0.9, "mu_y": 0.9},
    "gpa-int8": {"lr": 2.05, "mu_x": 0.9, "mu_y": 0.9},  # those of GPA
    "momentum": {"lr": 0.512, "momentum": 0.8},
}


class Size(NamedTuple):
    """How large everything is; `batch` is of one worker, and a round has `K` steps."""

    steps: int = 384
    K: int = 16
    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 64
    batch: int = 4
    windows: int = 256  # of the text that losses are measured on


class Run(NamedTuple):
    """One training; losses are measured on the text named by `use`."""

    name: str
    method: str
    setting: dict[str, float]
    seed: int
    use: str = "test"
    kill_at: int | None = None


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norms[0](x)).unflatten(2, (3, self.heads, -1))
        seen = scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.shrink(nn.functional.gelu(self.grow(self.norms[1](x))))


class GPT(nn.Module):
    """Predict the next byte at every place of a text."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        for embedding in (self.bytes, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.bytes(text) + self.places.weight[: text.shape[1]]
        return self.norm(self.blocks(x)) @ self.bytes.weight.T


def read_texts(context: int) -> dict[str, Tensor]:
    """Return all windows of the standard library's text: one set per worker, two to measure on.

    These two are whole files: every tenth to choose settings by, every tenth for the results.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    others = {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data"}
    files = [path.relative_to(root) for path in root.rglob("*.py")]
    files = sorted(path for path in files if not others & set(path.parts))
    texts: dict[str, bytearray] = {}
    for i, path in enumerate(files):
        use = {8: "validation", 9: "test"}.get(i % 10, str(i % WORKERS))
        # Only the beginning, so that a few long files do not dominate.
        texts.setdefault(use, bytearray()).extend((root / path).read_bytes()[:16_384])
    return {
        use: torch.frombuffer(text, dtype=torch.uint8).unfold(0, context + 1, 1)
        for use, text in texts.items()
    }


def make_optimizer(method: str, model: GPT, s: dict[str, float], K: int) -> tuple[Any, Any]:
    """Return an optimizer, and what averages the processes every K steps; DDP has no such thing."""
    params = model.parameters()
    if method in ("ddp", "diloco", "diloco-int8"):
        optimizer: Any = torch.optim.AdamW(params, s["lr"], betas=(0.9, s.get("beta2", 0.99)))
        if method == "ddp":
            return optimizer, None
        server, wire = f"nesterov(0.7,{s['outer']})", wire_of(method)
        return optimizer, synchronize(optimizer, model, local_steps=K, server=server, wire=wire)
    if method == "post-local":  # every process keeps its momentum
        optimizer = torch.optim.SGD(params, s["lr"], momentum=s["momentum"])
        return optimizer, synchronize(optimizer, model, local_steps=K)
    if method == "fedac":
        optimizer = FedAc(params, s["lr"], s["mu"], K)
    else:
        name = {
            "fedac-local": "fedac-i+local+nesterov(1,{outer})",
            "gpa": "gpa({mu_x},{mu_y})",
            "momentum": "momentum({momentum})",  # it is averaged too
        }[method.removesuffix("-int8")].format(**s)
        optimizer = LocalOptimizer(params, name, lr=s["lr"], mu=s.get("mu", 1.0), local_steps=K)
    return optimizer, synchronize(optimizer, model, wire=wire_of(method))


def wire_of(method: str) -> str:
    return "int8" if method.endswith("int8") else "float32"


def loss_of(predict: nn.Module, windows: Tensor) -> Tensor:
    text = windows.long()
    return cross_entropy(predict(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


@torch.no_grad()
def measure(model: GPT, optimizer: Any, windows: Tensor, count: int) -> float:
    """Return the mean loss on some windows; every process takes its share of them."""
    if isinstance(optimizer, LocalOptimizer):
        optimizer.eval()
    chosen = torch.linspace(0, len(windows) - 1, count).long()[dist.get_rank() :: WORKERS]
    loss = loss_of(model, windows[chosen]).double()
    dist.all_reduce(loss)
    if isinstance(optimizer, LocalOptimizer):
        optimizer.train()
    return loss.item() / WORKERS


def share_of_lr(done: float) -> float:
    """Return how much of lr to use: it warms up, and then falls to a tenth as a cosine."""
    return min(1.0, 32 * done + 0.05) * (0.55 + 0.45 * math.cos(math.pi * done))


def train(run: Run, size: Size, texts: dict[str, Tensor], checkpoint: Path) -> dict[str, Any]:
    """Train as one of four processes, from the checkpoint if there is one; return what came out."""
    rank = dist.get_rank()
    torch.manual_seed(run.seed)
    model = GPT(size)
    optimizer, averages = make_optimizer(run.method, model, run.setting, size.K)
    gradient = sum(p.nbytes for p in model.parameters())
    forward = model if averages else nn.parallel.DistributedDataParallel(model)
    saved = (averages and averages.resume(checkpoint, missing_ok=True)) or {"losses": []}
    losses, windows, seconds = saved["losses"], texts[str(rank)], []
    for step in range(averages.steps if averages else 0, size.steps):
        if step == run.kill_at and rank == WORKERS - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # Draws depend on seed, rank and step only, so a resumed run draws the same numbers.
        draw = torch.Generator().manual_seed((run.seed * size.steps + step) * WORKERS + rank)
        batch = windows[torch.randint(len(windows), (size.batch,), generator=draw)]
        for group in optimizer.param_groups:
            group["lr"] = run.setting["lr"] * share_of_lr(step / size.steps)
        # The time of this thread alone: neither waiting nor other programs count.
        before = time.thread_time()
        optimizer.zero_grad()
        loss_of(forward, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.thread_time() - before)
        sent = averages.bytes if averages else (step + 1) * gradient
        if (step + 1) % (2 * size.K) == 0:  # right after a round, when all processes are equal
            losses.append([step + 1, measure(model, optimizer, texts[run.use], size.windows)])
        if averages and (step + 1) % (4 * size.K) == 0:
            averages.checkpoint(checkpoint, losses=losses)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    return {
        "method": run.method,
        "losses": losses,
        "sent": sent,
        "seconds": median(seconds),
        "weights": hashlib.sha256(weights.tobytes()).hexdigest(),
    }


def train_once(run: Run, size: Size, texts: dict[str, Tensor], folder: Path) -> dict[str, Any]:
    """Train, unless the folder has the result already."""
    path = folder / f"{run.name}.json"
    if not path.exists():
        result = train(run, size, texts, checkpoint=path.with_suffix(".pt"))
        if dist.get_rank() == 0:
            path.write_text(json.dumps(result))
        dist.barrier()
    return read(folder, run.name)


def work_together(folder: str, runs: list[Any], size: list[int]) -> None:
    """Do some runs, as one of four processes; rank 0 saves what comes out."""
    torch.set_num_threads(1)
    texts = read_texts(Size(*size).context)
    for run in runs:
        train_once(Run(*run), Size(*size), texts, Path(folder))


def work(rank: int, meeting: str, job: Any, *arguments: Any) -> None:
    """Join the process group and run a job."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORKERS,
        timeout=timedelta(minutes=10),
    )  # fmt: skip
    job(*arguments)
    dist.destroy_process_group()


def start(job: Any, *arguments: Any) -> None:
    """Do a job in four processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (f"{folder}/meeting", job, *arguments), nprocs=WORKERS)


def read(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((folder / f"{name}.json").read_text()))


def costs(result: dict[str, Any], size: Size) -> np.ndarray:
    """Return rows of million tokens, megabytes that a worker sends, seconds, and loss."""
    steps, losses = np.array(result["losses"]).T
    gap = 1 if result["method"] == "ddp" else size.K
    rounds = size.steps // gap
    sent = traffic(result["sent"], world_size=WORKERS, wire=wire_of(result["method"])) / WORKERS
    # Every worker has a separate full-duplex link.
    link = Link(up="100Mbit", gradient=result["seconds"])
    seconds = link.elapsed(up=sent / rounds, down=0, gaps=[gap] * rounds)
    tokens = steps * WORKERS * size.batch * size.context
    return np.stack(
        [tokens / 1e6, steps / size.steps * sent / 1e6, seconds[(steps / gap).astype(int)], losses],
        1,
    )


def show(curves: dict[str, np.ndarray]) -> None:
    """Print a row per method: where it ends, and what it took to the loss that all reach."""
    target = max(curve[:, -1, 3].mean() for curve in curves.values())
    print(f"{'':44} all steps    until the loss is {target:.3f}")
    titles = ("test loss", "range", "MB", "s", "Mtokens", "MB", "s")
    print(f"{'':30}" + "{:>9} {:^15} {:>7} {:>6} {:>10} {:>7} {:>6}".format(*titles))
    for method, curve in curves.items():
        last, rows = curve[:, -1, 3], curve.mean(axis=0)
        first = rows[np.flatnonzero(rows[:, 3] <= target)[0]]
        numbers = (last.mean(), last.min(), last.max(), *rows[-1, 1:3], *first[:3])
        text = "{:9.3f} {:7.3f}-{:.3f} {:9.2f} {:6.1f} {:10.2f} {:7.2f} {:6.1f}"
        print(f"{LABELS[method]:30}" + text.format(*numbers))


def draw(curves: dict[str, np.ndarray], path: Path) -> None:
    from matplotlib.figure import Figure

    from fedac.plotting import styles

    names = {"ddp": "mb-sgd", "fedac": "fedac-i", "momentum": "fedavg", "post-local": "mb-ac-sgd"}
    looks = styles([names.get(method, method) for method in curves])
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    titles = ("tokens, millions", "megabytes sent per worker", "seconds, links of 100 Mbit/s")
    for i, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        for (method, curve), look in zip(curves.items(), looks, strict=True):
            rows = curve.mean(axis=0)
            ax.plot(rows[:, i], rows[:, 3], color=look.colour, lw=1.5, label=LABELS[method],
                    marker=look.marker, ms=5, markevery=(1, 2))  # fmt: skip
        if i:
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel(title)
        ax.grid(True, color="0.9")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test loss, nats per byte")
    figure.suptitle(f"A small GPT, {WORKERS} workers, the same number of gradients")
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=4, frameon=False,
                  loc="outside lower center")  # fmt: skip
    figure.savefig(path, dpi=150)


def compare(methods: list[str], seeds: int, folder: Path, size: Size) -> dict[str, np.ndarray]:
    """Return the curves of all methods, with axes for seeds, records, and costs and loss."""
    runs = {
        method: [
            Run(f"{method}-{seed}", method, SETTINGS[method], seed) for seed in range(1, seeds + 1)
        ]
        for method in methods
    }
    start(work_together, str(folder), [run for some in runs.values() for run in some], size)
    return {
        method: np.array([costs(read(folder, run.name), size) for run in some])
        for method, some in runs.items()
    }


def kill(folder: Path, size: Size) -> None:
    """Run DiLoCo, and again with a process that is killed in the middle; compare the ends."""
    run = Run("undisturbed", "diloco", SETTINGS["diloco"], seed=1)
    start(work_together, str(folder), [run], size)
    killed = run._replace(name="killed", kill_at=size.steps // 2 + size.K + 3)
    try:
        start(work_together, str(folder), [killed], size)
    except (mp.ProcessExitedException, mp.ProcessRaisedException):
        print(f"a process was killed after {killed.kill_at} steps; resuming")
    start(work_together, str(folder), [killed._replace(kill_at=None)], size)
    first, second = read(folder, run.name), read(folder, killed.name)
    for name, result in (("undisturbed", first), ("killed and resumed", second)):
        print(f"{name:18} loss {result['losses'][-1][1]!r}, weights {result['weights'][:16]}")
    if any(first[key] != second[key] for key in ("losses", "sent", "weights")):
        raise SystemExit("they differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=1, help="number of runs to average")
    parser.add_argument("--steps", type=int, default=Size().steps, help="a multiple of 32")
    parser.add_argument("--plot", type=Path, help="file for the figure")
    parser.add_argument("--kill", action="store_true", help="kill a process, resume, compare")
    parser.add_argument(
        "--folder", type=Path, help="keep results here; what is there is not redone"
    )
    options = parser.parse_args()
    size = Size(steps=options.steps)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.kill:
            kill(folder, size)
            return
        curves = compare(options.methods, options.seeds, folder, size)
    show(curves)
    if options.plot:
        draw(curves, options.plot)


if __name__ == "__main__":
    main()
