"""Real processes for tests of synchronization, forked from one that has imported PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

WORKERS = Path(__file__).with_name("workers.py")


@dataclass(frozen=True)
class Ended:
    """How one process has ended, and what it has returned."""

    code: int
    seconds: float
    out: str
    err: str
    result: Any


Run = Callable[..., list[Ended]]


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Give a function that runs a job of workers.py in some processes."""
    if sys.platform != "linux":
        pytest.skip("needs fork and /proc")
    server = subprocess.Popen(
        [sys.executable, str(WORKERS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def run(name: str, *, world: int = 4, timeout: float = 60, **arguments: Any) -> list[Ended]:
        folder, ranks = tmp_path_factory.mktemp(name), range(world)
        job = {"name": name, "world": world, "timeout": timeout, "folder": str(folder)}
        print(json.dumps(job | {"arguments": arguments}), file=server.stdin, flush=True)
        ends = json.loads(server.stdout.readline())
        said = [[(folder / f"{r}.{name}").read_text() for name in ("out", "err")] for r in ranks]
        return [
            Ended(int(code), seconds, *said[rank], result(folder, rank))
            for rank, (code, seconds) in enumerate(ends)
        ]

    def result(folder: Path, rank: int) -> Any:
        path = folder / f"{rank}.pt"
        return torch.load(path, weights_only=True) if path.exists() else None

    try:
        yield run
        server.communicate(timeout=30)
    finally:
        server.kill()


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be a process group of one."""
    if sys.platform == "linux":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
