# SPDX-License-Identifier: Apache-2.0
"""Ray clusters: connect to one, list its nodes, and check that all run the same version."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from fedac.errors import InputError, MissingPackageError

# How long to wait for the cluster at an address to answer.
TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster."""

    id: str
    name: str
    cpus: int


@contextmanager
def connect(address: str | None = None) -> Iterator[None]:
    """Connect to a Ray cluster for the duration of a ``with`` block, unless already connected.

    Without `address`, and without ``RAY_ADDRESS`` in the environment, start Ray on this machine
    and stop it afterwards. It then listens on the loopback interface only.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    require_address(address)
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
        _require_answer(address)
    # Ray would print what happens on the nodes to stdout, where results go.
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about GPUs, which we do not use
            if address:
                ray.init(address, **quiet)
            else:
                # Without "local", Ray would join any cluster that runs on this machine.
                alone = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
                with _on_loopback_only():
                    ray.init("local", **quiet, **alone)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        where = f"at {address}" if address else "on this machine"
        raise InputError(f"cannot use Ray {where}: {reason}") from error
    try:
        yield
    finally:
        ray.shutdown()


def require_address(address: str | None) -> None:
    """Raise `InputError` for an empty address, as from an unset shell variable."""
    if address == "":
        raise InputError("the address of the Ray cluster is empty: give HOST:PORT, or leave it out")


def _require_answer(address: str) -> None:
    """Raise `InputError` if no cluster listens at an address: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():  # unlike "auto"
        try:
            socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS).close()
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"cannot use Ray at {address}: {reason}") from error


@contextmanager
def _on_loopback_only() -> Iterator[None]:
    """Keep Ray from replacing 127.0.0.1 by an address that other machines can reach.

    Ray does so on platforms where it supports clusters. This turns that support off, as it is on
    Windows and macOS by default. Processes started by Ray read the switch from the environment.
    """
    from ray._private import ray_constants

    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before, given = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(name)
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ[name] = "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[name]
        if given is not None:
            os.environ[name] = given


def nodes() -> list[Node]:
    """Return the nodes that are alive, sorted by name."""
    alive = [
        Node(node["NodeID"], _name(node), int(node["Resources"].get("CPU", 0)))
        for node in import_ray().nodes()
        if node["Alive"]
    ]
    return sorted(alive, key=lambda node: (node.name, node.id))


def _name(node: dict[str, Any]) -> str:
    """Return the name that a node was given, else its host name."""
    address, name = str(node["NodeManagerAddress"]), str(node.get("NodeName") or "")
    return name if name not in ("", address) else str(node["NodeManagerHostname"])


def require_same_version(nodes: Sequence[Node]) -> None:
    """Raise `InputError` if fedac or Numba is missing on a node, or differs from ours.

    Results are bit-identical only if both versions match. Ray itself checks the version of Python.
    """
    ray = import_ray()

    # Nested, so that Ray sends its code: a node without fedac could not import it.
    def versions() -> dict[str, str]:
        from importlib import import_module, metadata

        found = {"fedac": "missing", "numba": "missing"}
        with suppress(ImportError):
            found["fedac"] = import_module("fedac").__version__
        with suppress(ImportError):
            found["numba"] = metadata.version("numba")  # importing it takes a second
        return found

    task = ray.remote(num_cpus=0)(versions)
    pinned = [task.options(scheduling_strategy=pin(node)).remote() for node in nodes]
    ours = versions()
    for node, answer in zip(nodes, pinned, strict=True):
        try:
            theirs = ray.get(answer)
        except ray.exceptions.RayError as error:
            raise InputError(f"node {node.name} of the cluster does not answer") from error
        for package, version in ours.items():
            if theirs[package] != version:
                raise InputError(
                    f"{package} is {theirs[package]} on node {node.name}, but {version} here; "
                    f"install {package} {version} there"
                )


def pin(node: Node) -> Any:
    """Return the scheduling strategy that keeps a task or an actor on a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def import_ray() -> Any:
    """Return the module `ray`, or say how to install it."""
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingPackageError("Ray is not installed: pip install ray") from None
    return ray
