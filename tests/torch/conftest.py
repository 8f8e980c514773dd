# SPDX-License-Identifier: Apache-2.0
"""Real processes for tests of synchronization, forked from a server that has imported PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

WORKERS = Path(__file__).with_name("workers.py")

torch.set_num_threads(1)  # the tensors are small, and threads wait for each other on a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start processes."""
    for item in items:
        if item.path.parent == WORKERS.parent and "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@dataclass(frozen=True)
class Ended:
    """How one process ended, and what it returned."""

    code: int
    out: str
    err: str
    result: Any


Run = Callable[..., list[Ended]]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[Run]]:
    """Return a function that starts workers.py, as the last words of a command."""
    if sys.platform != "linux":
        pytest.skip("needs fork and /proc")

    @contextmanager
    def start(*command: str) -> Iterator[Run]:
        server = subprocess.Popen(
            [*command, sys.executable, str(WORKERS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdin is not None
        assert server.stdout is not None

        def run(name: str, *, world: int = 4, **arguments: Any) -> list[Ended]:
            folder = tmp_path_factory.mktemp(name.rpartition(":")[2])
            job = {"name": name, "world": world, "folder": str(folder), "arguments": arguments}
            print(json.dumps(job), file=server.stdin, flush=True)
            codes = json.loads(server.stdout.readline())
            return [
                Ended(
                    code,
                    out=(folder / f"{rank}.out").read_text(),
                    err=(folder / f"{rank}.err").read_text(),
                    result=result(folder, rank),
                )
                for rank, code in enumerate(codes)
            ]

        def result(folder: Path, rank: int) -> Any:
            path = folder / f"{rank}.pt"
            return torch.load(path, weights_only=True) if path.exists() else None

        try:
            yield run
            server.communicate(timeout=300)
        finally:
            server.kill()

    return start


@pytest.fixture(scope="session")
def processes(server: Callable[..., AbstractContextManager[Run]]) -> Iterator[Run]:
    """Return a function that runs a job of workers.py in some processes."""
    with server() as run:
        yield run


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this process a process group of its own."""
    if sys.platform == "linux":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
