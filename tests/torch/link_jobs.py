# SPDX-License-Identifier: Apache-2.0
"""Rounds on a slow network: every process in a network namespace of its own.

A process shapes what it sends (tc's tbf, on a tun device). A switch between the devices, a process
of its own, delays every packet: not every kernel has netem. The namespaces are made inside the one
that the tests have made, and end with their processes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import selectors
import socket
import struct
import subprocess
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fedac.federation.compression import bytes_up
from fedac.federation.link import Link
from fedac.torch import LocalOptimizer, Synchronizer, round_seconds, traffic

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# TCP's own slowness does not belong to a link: slow starts, also after a pause, and packets that
# are sent again because a busy machine has delayed the answer (tail loss probes, timeouts).
COMMANDS = """
ip link set lo up
ip addr add 10.0.0.{address}/24 dev tun0
ip link set tun0 mtu 9000 up
ip route replace 10.0.0.0/24 dev tun0 initcwnd 400 initrwnd 400 rto_min 5s
tc qdisc add dev tun0 root tbf rate {rate} burst 10kb latency 5s
sysctl -qw net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_slow_start_after_idle=0
sysctl -qw net.ipv4.tcp_early_retrans=0
"""


def join_network(rank: int, world: int, path: str, *, rate: str, latency: float) -> socket.socket:
    """Move this process to a namespace of its own, and connect that to those of the others.

    The socket that it returns must stay open: the switch ends when all of them are closed.
    """
    if rank == 0:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        if os.fork() == 0:
            switch(listener, world, latency / 2)
            os._exit(0)
        listener.close()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
    for command in COMMANDS.format(address=rank + 1, rate=rate).strip().splitlines():
        subprocess.run(command.split(), check=True)
    dist.barrier()  # there is somebody to listen
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    socket.send_fds(connection, [bytes([rank])], [tun])
    os.close(tun)
    connection.recv(1)
    return connection


def switch(listener: socket.socket, world: int, delay: float) -> None:
    """Hand on packets between tun devices, each after so many seconds, until all processes end."""
    tuns, ready = {}, selectors.DefaultSelector()
    connections = [listener.accept()[0] for _ in range(world)]
    for connection in connections:
        rank, (tun,), _, _ = socket.recv_fds(connection, 1, 1)
        tuns[rank[0]] = tun
        ready.register(tun, selectors.EVENT_READ)
        ready.register(connection, selectors.EVENT_READ)
    for connection in connections:
        connection.send(b".")
    waiting: deque[tuple[float, bytes]] = deque()
    while connections:
        due = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in ready.select(due):
            if key.fileobj in connections:
                ready.unregister(key.fileobj)
                connections.remove(key.fileobj)
                continue
            packet = os.read(key.fd, 2**16)
            if packet[0] >> 4 == 4:  # IPv4
                waiting.append((time.monotonic() + delay, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            packet = waiting.popleft()[1]
            if packet[19] - 1 in tuns:  # the last byte of the address it goes to
                os.write(tuns[packet[19] - 1], packet)


def rounds_on_a_link(
    rank: int, folder: str, rate: str, latency: float, runs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Predict how long rounds take and what they send, and measure both."""
    world = dist.get_world_size()
    connection = join_network(rank, world, f"{folder}/switch", rate=rate, latency=latency)
    dist.destroy_process_group()
    os.environ["GLOO_SOCKET_IFNAME"] = "tun0"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/again", rank=rank, world_size=world
    )
    results = [time_rounds(rank, world, Link(latency=latency, up=rate), **run) for run in runs]
    dist.barrier()
    dist.destroy_process_group()
    connection.close()
    return results


def time_rounds(
    rank: int, world: int, link: Link, *, algorithm: str, wire: str, rounds: int, K: int, delay: int
) -> dict[str, Any]:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(500, 400), nn.ReLU(), nn.Linear(400, 1))
    numbers = sum(p.numel() for p in model.parameters())
    x = torch.randn(32, 500)
    optimizer = LocalOptimizer(model.parameters(), algorithm, lr=1e-4, mu=0.1, local_steps=K)
    overlap: dict[str, Any] = {"overlap": True, "delay_steps": delay} if delay else {}
    averages = Synchronizer(optimizer, wire=wire, **overlap)
    steps, rounding, ends, sent = [], [], [], []
    dist.barrier()
    for t in range((rounds + 1) * K):
        before = time.perf_counter()
        # A slow client whose time does not depend on what else this machine has to do. Without it
        # steps would be too short, beside what is sent, to be seen in the seconds.
        time.sleep(0.03)
        optimizer.zero_grad()
        ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()
        steps.append(time.perf_counter() - before)
        before = time.thread_time()
        averages.step()
        rounding.append(time.thread_time() - before)
        if t % K == K - 1:
            ends.append(time.perf_counter())
            sent.append(bytes_sent())
    averages.flush()
    dist.barrier()
    local = torch.tensor(steps, dtype=torch.float64).view(-1, K)[1:].sum(1)
    dist.all_reduce(local, dist.ReduceOp.MAX)  # a round waits for the slowest
    busy = torch.tensor(rounding, dtype=torch.float64).view(-1, K)[1:].sum(1)
    up = bytes_up(optimizer.algorithm, numbers, wire)
    return {
        "seconds": torch.tensor(ends, dtype=torch.float64).diff().tolist(),
        "bytes": torch.tensor(sent, dtype=torch.float64).diff().median().item(),
        "headers": averages.bytes / (rounds + 1) - up,
        "predicted": {
            "bytes": traffic(up, world_size=world, wire=wire, algorithm=algorithm) / world,
            "seconds": [
                round_seconds(
                    Link(latency=link.latency, up=link.up, gradient=seconds / K),
                    numbers,
                    world_size=world,
                    local_steps=K,
                    algorithm=algorithm,
                    wire=wire,
                    delay_steps=delay,
                    rounding=busy.median().item(),
                )
                for seconds in local.tolist()
            ],
        },
    }


def bytes_sent() -> int:
    """Return what has left this namespace."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "tun0":
            return int(numbers.split()[8])
    raise LookupError("there is no tun0")
