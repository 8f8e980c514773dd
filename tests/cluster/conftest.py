# SPDX-License-Identifier: Apache-2.0
"""Two real raylets of one core each, on the loopback interface only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# `ray start --node-ip-address=127.0.0.1` would listen on all interfaces. Ends with its stdin.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

local = {"node_ip_address": "127.0.0.1", "num_cpus": 1}
head = {**local, "node_name": "first", "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
second = cluster.add_node(**local, node_name="second")
print(cluster.address, flush=True)
for line in sys.stdin:
    if line == "kill second\\n":
        cluster.remove_node(second, allow_graceful=False)
    elif line == "start second\\n":
        second = cluster.add_node(**local, node_name="second")
        cluster.wait_for_nodes(timeout=1800)  # until the one that was killed counts as dead
    print("done", flush=True)
cluster.shutdown()
"""

# Nothing must end before its time on a busy machine; nothing may hang for ever.
LIMIT = 1800


def _descendants(process: int) -> list[int]:
    """Return a process and all that it started."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(stat.parent.name), stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents.setdefault(int(rest[1]), []).append(pid)
    found = [process]
    for pid in found:
        found += parents.get(pid, [])
    return found


@dataclass
class TwoNodes:
    """A cluster of the nodes "first" and "second"; drivers are processes of their own."""

    process: subprocess.Popen[str]
    environment: dict[str, str]

    def tell(self, order: str) -> None:
        """Kill or start the second node: "kill second", "start second"."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def start(self, script: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a Python script as a driver."""
        return subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment,
        )  # fmt: skip

    def processes(self, name: str) -> list[int]:
        """Return the processes of the nodes whose names begin like this."""
        found = []
        for pid in _descendants(self.process.pid):
            try:
                if Path(f"/proc/{pid}/cmdline").read_text().startswith(name):
                    found.append(pid)
            except OSError:  # it has ended
                continue
        return found

    def run(self, script: str, *arguments: object) -> str:
        """Run a Python script as a driver to its end, and return what it prints."""
        driver = self.start(script, *arguments)
        try:
            output, errors = driver.communicate(timeout=LIMIT)
        finally:
            driver.kill()
        assert driver.returncode == 0, output + errors
        return output


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[TwoNodes]:
    """Give a cluster of two nodes, which ends with the tests."""
    pytest.importorskip("ray", reason="Ray is not installed: make install")
    # Sockets are in here, and their names must be short.
    folder = tempfile.mkdtemp(prefix="fedac-ray-")
    # Ray would else replace 127.0.0.1 by the address of the machine, and tell other tests of us.
    environment = os.environ | {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_TMPDIR": folder,
        "RAY_health_check_period_ms": "1000",  # a killed node is missed sooner
    }
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, "the cluster did not start"
            yield TwoNodes(process, environment | {"RAY_ADDRESS": address})
            process.stdin.close()
            process.wait(timeout=LIMIT)
        finally:
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def descendants() -> Callable[[int], list[int]]:
    """Give a function that returns a process and all that it started."""
    return _descendants
