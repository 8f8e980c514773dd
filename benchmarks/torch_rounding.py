# SPDX-License-Identifier: Apache-2.0
"""Peak memory and the time of a round by wire, for a large model: DiLoCo, AdamW inside.

Every wire runs in separate processes, one thread each, on loopback. Memory is the peak of a
process beyond what it has before the model, in copies of the parameters. Seconds are the processor
time that a round takes from training: rounding, reading and the server's step, but no waiting.
Two workers with 100 million parameters take 8 GB and two minutes: python
benchmarks/torch_rounding.py
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from fedac.torch import synchronize

ROUNDS = 3
OPTIONS: dict[str, dict[str, Any] | None] = {
    "AdamW alone": None,
    "float32": {},
    "bfloat16": {"wire": "bfloat16"},
    "int8": {"wire": "int8"},
    "int8, error feedback": {"wire": "int8", "error_feedback": True},
}


def work(rank: int, workers: int, numbers: int, tensors: int, name: str, meeting: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=workers)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    params = [nn.Parameter(torch.randn(numbers // tensors)) for _ in range(tensors)]
    optimizer = torch.optim.AdamW(params, lr=1e-3)
    options, averages, seconds = OPTIONS[name], None, []
    if options is not None:
        averages = synchronize(optimizer, local_steps=1, server="nesterov(0.7,0.9)", **options)
        averages.optimizer.after_step = None
    for _ in range(ROUNDS):
        for p in params:
            p.grad = torch.randn_like(p) if p.grad is None else p.grad
        optimizer.step()
        if averages is not None:
            dist.barrier()
            start = time.thread_time()
            averages.step()
            seconds.append(time.thread_time() - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    copies = (after - before) * 1024 / (4 * numbers)
    if rank == 0:
        text = f"{name:>20}: {copies:4.1f} copies of the parameters"
        if averages is not None:
            per_million = statistics.median(seconds) / numbers * 1e6
            text += (
                f", {per_million:.4f} s per million numbers, {averages.bytes / ROUNDS:,.0f} bytes"
            )
        print(text, flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=100, help="parameters, in millions")
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=OPTIONS)
    options = parser.parse_args()
    for name in [options.only] if options.only else OPTIONS:
        with tempfile.TemporaryDirectory() as folder:
            given = (options.workers, options.millions * 10**6, options.tensors, name)
            mp.spawn(work, (*given, f"{folder}/meeting"), nprocs=options.workers)


if __name__ == "__main__":
    main()
