# SPDX-License-Identifier: Apache-2.0
"""Connecting to Ray, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import fedac

pytest.importorskip("ray", reason="Ray is not installed: make install")
pytestmark = pytest.mark.slow

# 127.0.0.1 as Linux prints it, in IPv4 and in IPv6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}

NODES = """
from fedac.cluster import connect, nodes, require_same_version
import ray

with connect():
    found = nodes()
    require_same_version(found)
    print(sorted((node.name, node.cpus) for node in found))
    with connect():
        pass
    print(ray.is_initialized())
print(ray.is_initialized())
"""

REFUSED = """
import fedac
from fedac.cluster import connect, nodes, require_same_version
from fedac.errors import InputError

fedac.__version__ = "7.0"
with connect():
    try:
        require_same_version(nodes()[:1])
    except InputError as error:
        print(error)
"""


def _listening(processes: list[int]) -> set[tuple[int, str]]:
    """Return the addresses on which processes listen, with who does."""
    inodes = {}
    for pid in processes:
        # A process may end, or close a file, between listing it and looking at it.
        with suppress(FileNotFoundError):
            for descriptor in list(Path(f"/proc/{pid}/fd").iterdir()):
                with suppress(FileNotFoundError):
                    target = str(descriptor.readlink())
                    if target.startswith("socket:["):
                        inodes[target[8:-1]] = pid
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = fields = line.split()
            listens = state == "0A" or (table.startswith("udp") and state == "07")
            if listens and fields[9] in inodes:
                found.add((inodes[fields[9]], local.split(":")[0]))
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
def test_the_cluster_of_these_tests_listens_on_loopback_only(two_nodes, descendants):
    two_nodes.run(NODES)  # starts workers
    listening = _listening(descendants(two_nodes.process.pid))
    assert listening
    assert {address for _, address in listening} <= LOOPBACK


ALONE = """
import sys
from fedac.cluster import connect
import ray

with connect():
    ray.get(ray.remote(lambda: None).remote())  # starts workers
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
def test_a_ray_of_our_own_listens_on_loopback_only(descendants):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen(
        [sys.executable, "-c", ALONE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        listening = _listening(descendants(process.pid))
        process.communicate(timeout=1800)
    assert listening
    assert {address for _, address in listening} <= LOOPBACK


def test_connect_uses_the_cluster_of_the_environment_and_leaves_what_others_connected(two_nodes):
    assert two_nodes.run(NODES) == "[('first', 1), ('second', 1)]\nTrue\nFalse\n"


def test_a_node_with_another_version_is_named_with_both_versions(two_nodes):
    said = two_nodes.run(REFUSED)
    mine = fedac.__version__
    assert said == f"fedac is {mine} on node first, but 7.0 here; install fedac 7.0 there\n"


def test_importing_fedac_does_not_import_ray():
    check = "import sys, fedac.cluster, fedac.simulation; print('ray' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=1800
    )
    assert done.stdout == "False\n"
