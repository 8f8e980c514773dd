# SPDX-License-Identifier: Apache-2.0
"""A secured Flower federation on this machine: python scripts/federation.py.

Creates a certificate authority, a server certificate and a key for every node; starts a SuperLink
with TLS and node authentication and SuperNodes on 127.0.0.1; runs examples/flower_app; prints the
result; stops every process it started. All files are in a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import ipaddress
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

APP = Path(__file__).resolve().parents[1] / "examples" / "flower_app"
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Child processes write their logs at once.
    "PYTHONUNBUFFERED": "1",
}


def make_certificates(folder: Path) -> None:
    """Write ca.crt, and server.crt with server.key for 127.0.0.1, signed by it."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey, *, ca: bool):
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("fedac demo CA"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=7))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            # Clients compare the address they connect to with these.
            addresses = [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
            builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        return builder.sign(authority, hashes.SHA384())

    pem = serialization.Encoding.PEM
    ca = certificate("fedac demo CA", authority, ca=True)
    (folder / "ca.crt").write_bytes(ca.public_bytes(pem))
    own = certificate(HOST, server, ca=False)
    (folder / "server.crt").write_bytes(own.public_bytes(pem))
    _write_secret(
        folder / "server.key",
        server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def make_node_key(path: Path) -> None:
    """Write an ECDSA key pair, as `ssh-keygen -t ecdsa -b 384` would."""
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    secret = key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption())
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_secret(path, secret)
    path.with_suffix(".pub").write_bytes(public + b"\n")


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on (Linux)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in brackets, may contain spaces; the parent is the second field after it.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        new = children.get(left.pop(), [])
        found += new
        left += new
    return found


def wait_for(
    done: Callable[[], bool], logs: Callable[[], Iterable[Path]], patience: float = 300.0
) -> None:
    """Wait until `done`, as long as the logs grow; give up after `patience` seconds of silence."""
    size, last_growth = -1, time.monotonic()
    while not done():
        total = sum(log.stat().st_size for log in logs())
        if total != size:
            size, last_growth = total, time.monotonic()
        elif time.monotonic() - last_growth > patience:
            raise TimeoutError(f"no log has grown for {patience:g} s")
        time.sleep(0.1)


class Deployment:
    """A SuperLink and SuperNodes, stopped by their process ids when the block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys, self.logs, self.home = folder / "keys", folder / "logs", folder / "home"
        for path in (self.keys, self.logs, self.home):
            path.mkdir(parents=True, exist_ok=True)
        self.address = f"{HOST}:{free_port()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = itertools.count()
        # Flower's commands start each other by name.
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        self.env = {**os.environ, **QUIET, "FLWR_HOME": str(self.home), "PATH": path}

    def __enter__(self) -> Deployment:
        make_certificates(self.keys)
        (self.home / "config.toml").write_text(
            '[superlink]\ndefault = "local-tls"\n\n'
            f"[superlink.local-tls]\naddress = {_toml(self.address)}\n"
            f"root-certificates = {_toml(self.keys / 'ca.crt')}\n"
        )
        try:
            self.start(
                "superlink", "flower-superlink",
                "--ssl-ca-certfile", self.keys / "ca.crt",
                "--ssl-certfile", self.keys / "server.crt",
                "--ssl-keyfile", self.keys / "server.key",
                "--enable-supernode-auth",
                "--host", HOST, "--port", self.address.rpartition(":")[2],
                "--disable-runtime-dependency-installation",
            )  # fmt: skip
            self.wait_for(self.is_listening)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        with signals_deferred():
            for name in reversed(list(self.processes)):
                self.stop(name)

    def start(self, name: str, command: str, *options: object) -> subprocess.Popen[bytes]:
        """Start a process, with its log in a file."""
        # An interrupt between the two statements would leave a process running.
        with signals_deferred(), (self.logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command), *map(str, options)],
                stdout=log, stderr=subprocess.STDOUT, env=self.env, cwd=self.folder,
            )  # fmt: skip
            self.processes[name] = process
        return process

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """Stop a process and its descendants, by process id."""
        process = self.processes.pop(name)
        # Flower detaches its child processes: find them now, because they may outlive it.
        family = descendants(process.pid)
        for attempt in (how, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, attempt)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
                break
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self, name: str) -> str:
        """Return the log of a process."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Wait until `done`, as long as the SuperLink runs and any of the logs grows."""

        def done_or_failed() -> bool:
            link = self.processes["superlink"]
            if link.poll() is not None:
                raise RuntimeError(
                    f"the SuperLink ended with code {link.returncode}:\n{self.log('superlink')}"
                )
            return done()

        wait_for(done_or_failed, self.logs.iterdir)

    def is_listening(self) -> bool:
        """Check whether the SuperLink accepts connections."""
        host, _, port = self.address.partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return True
        return False

    def flwr(self, *options: object) -> subprocess.CompletedProcess[str]:
        """Run a `flwr` command to its end; its stdout and stderr are one text."""
        name = f"flwr-{next(self._numbers)}"
        process = self.start(name, "flwr", *options)
        self.wait_for(lambda: process.poll() is not None)
        del self.processes[name]
        return subprocess.CompletedProcess(process.args, process.returncode, self.log(name))

    def follow(self, *options: object) -> int:
        """Run a `flwr` command to its end in this terminal; return its exit code."""
        process = subprocess.Popen(
            [str(BIN / "flwr"), *map(str, options)], env=self.env, cwd=self.folder
        )
        try:
            self.wait_for(lambda: process.poll() is not None)
        finally:
            process.terminate()
            process.wait()
        return process.returncode

    def register(self, name: str) -> Path:
        """Make a node's key and register it at the SuperLink; return the private key."""
        key = self.keys / name
        make_node_key(key)
        done = self.flwr("supernode", "register", key.with_suffix(".pub"), "local-tls")
        if done.returncode:
            raise RuntimeError(f"cannot register {name}:\n{done.stdout}")
        return key

    def supernode(
        self, name: str, *options: object, part: int = 0, parts: int = 2
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode; `options` configure its authentication."""
        return self.start(
            name, "flower-supernode",
            "--superlink", self.address,
            "--host", HOST, "--port", free_port(),
            "--node-config", f"partition-id={part} num-partitions={parts}",
            *options,
        )  # fmt: skip

    def registered_supernode(self, name: str, *, part: int, parts: int) -> subprocess.Popen[bytes]:
        """Start a SuperNode with a registered key and the right certificate authority."""
        key = self.register(name)
        return self.supernode(
            name, "--root-certificates", self.keys / "ca.crt",
            "--auth-supernode-private-key", key, part=part, parts=parts,
        )  # fmt: skip

    def run_options(self, app: Path, config: dict[str, Any]) -> list[str]:
        """Return the options of `flwr` that run an app and print its log until it ends."""
        text = " ".join(f"{key}={_toml(value)}" for key, value in config.items())
        return ["run", str(app), "local-tls", "--stream", "--run-config", text]


def _toml(value: Any) -> str:
    # TOML writes strings, numbers and booleans as JSON does.
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Let a block finish before a signal interrupts the program."""
    received: list[int] = []

    def remember(number: int, _: object) -> None:
        received.append(number)

    before = [signal.signal(number, remember) for number in STOP_SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def stop_on_first_signal() -> None:
    """Turn the first signal to stop (from a scheduler or a closed terminal) into an interrupt.

    Signals that are ignored from the start, as with nohup, stay ignored. Later signals are ignored
    too: Python restores the default handlers before it exits, and a second signal would then kill
    it before everything is stopped.
    """

    def stop(*_: object) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def positive(text: str) -> int:
    """Parse a whole number, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


@contextlib.contextmanager
def working_folder(keep: Path | None) -> Iterator[Path]:
    """Return the folder to keep, or a temporary one."""
    if keep is not None:
        if keep.exists() and not keep.is_dir():
            raise RuntimeError(f"--keep: '{keep}' is not a folder")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fedac-federation-") as name:
        yield Path(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the federation, run the example, print its table, stop."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--nodes", type=positive, default=2, help="how many SuperNodes (default: 2)"
    )
    parser.add_argument("--rounds", type=positive, default=5, help="rounds (default: 5)")
    parser.add_argument("--keep", type=Path, help="keep keys, logs and results in this folder")
    given = parser.parse_args(arguments)
    stop_on_first_signal()
    try:
        with working_folder(given.keep) as folder, Deployment(folder) as deployment:
            run_example(deployment, nodes=given.nodes, rounds=given.rounds)
    except KeyboardInterrupt:
        print("interrupted; stopped everything", file=sys.stderr)
        return 130
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("stopped everything")
    return 0


def run_example(deployment: Deployment, *, nodes: int, rounds: int) -> None:
    """Start the nodes and run the example, which prints its table."""
    print(f"SuperLink with TLS on {deployment.address}", flush=True)
    for i in range(nodes):
        deployment.registered_supernode(f"node-{i}", part=i, parts=nodes)
        print(f"SuperNode {i + 1} of {nodes}, with its own key", flush=True)
    out = deployment.folder / "result"
    history = out / "history.csv"
    history.unlink(missing_ok=True)  # of an earlier run with the same --keep
    config = {"nodes": nodes, "quorum": nodes // 2 + 1, "rounds": rounds, "out": out}
    code = deployment.follow(*deployment.run_options(APP, config))
    if code or not history.exists():
        raise RuntimeError(f"the run failed:\n{deployment.log('superlink')}")


if __name__ == "__main__":
    raise SystemExit(main())
