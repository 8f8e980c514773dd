"""A secured Flower federation on this machine: python scripts/federation.py.

Makes a certificate authority, a server certificate and a key per node; starts a SuperLink with TLS
and node authentication and SuperNodes on 127.0.0.1; runs examples/flower_app; shows the result;
stops every process it started. Everything is written to a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

APP = Path(__file__).resolve().parents[1] / "examples" / "flower_app"
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Logs of child processes appear as they are written.
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
            # Clients compare the address they dialled with these.
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
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and they in turn (Linux)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in brackets, may hold spaces; the parent is the second field after it.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        new = children.get(left.pop(), [])
        found += new
        left += new
    return found


class Deployment:
    """A SuperLink and SuperNodes, stopped by their process ids when the block ends."""

    def __init__(self, folder: Path, *, limit: float = 300.0) -> None:
        self.folder = folder
        self.until = time.monotonic() + limit
        self.keys, self.logs, self.home = folder / "keys", folder / "logs", folder / "home"
        for path in (self.keys, self.logs, self.home):
            path.mkdir(parents=True, exist_ok=True)
        self.address = f"{HOST}:{free_port()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
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
            self.wait_for_port()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        with undisturbed():
            for name in reversed(list(self.processes)):
                self.stop(name)

    def start(self, name: str, command: str, *options: object) -> subprocess.Popen[bytes]:
        """Start a process, with its log in a file."""
        # An interrupt between the start and the entry would leave a process nobody stops.
        with undisturbed(), (self.logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command), *map(str, options)],
                stdout=log, stderr=subprocess.STDOUT, env=self.env, cwd=self.folder,
            )  # fmt: skip
            self.processes[name] = process
        return process

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """Stop one process, by its id, and what it has started."""
        process = self.processes.pop(name)
        # Flower detaches what it starts: remember it now, for it may outlive its parent.
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
        """Return what a process has written so far."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def require_alive(self) -> None:
        """Complain of a process that has ended by itself, with what it said last."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise RuntimeError(
                    f"{name} ended with code {process.returncode}:\n{self.log(name)}"
                )

    def wait_for_port(self) -> None:
        """Wait until the SuperLink listens."""
        host, _, port = self.address.partition(":")
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            self.require_alive()
            if time.monotonic() > self.until:
                raise RuntimeError(f"the SuperLink did not start:\n{self.log('superlink')}")
            time.sleep(0.1)

    def wait_for_log(self, name: str, text: str, seconds: float = 60) -> str:
        """Wait until a process has logged `text`; return its log."""
        until = min(self.until, time.monotonic() + seconds)
        while text not in self.log(name):
            if time.monotonic() > until:
                raise TimeoutError(f"{name} never logged {text!r}:\n{self.log(name)}")
            time.sleep(0.1)
        return self.log(name)

    def flwr(self, *options: object) -> subprocess.CompletedProcess[str]:
        """Run `flwr` to its end."""
        return subprocess.run(
            [str(BIN / "flwr"), *map(str, options)],
            env=self.env, cwd=self.folder, capture_output=True, text=True, check=False,
            timeout=max(1.0, self.until - time.monotonic()),
        )  # fmt: skip

    def follow(self, *options: object) -> int:
        """Run `flwr` to its end and let it speak; give up when one of ours has died."""
        process = subprocess.Popen(
            [str(BIN / "flwr"), *map(str, options)], env=self.env, cwd=self.folder
        )
        try:
            while process.poll() is None:
                self.require_alive()
                if time.monotonic() > self.until:
                    raise RuntimeError("the run takes too long; --keep keeps its logs")
                time.sleep(0.2)
        finally:
            process.terminate()
            process.wait()
        return process.returncode

    def register(self, name: str) -> Path:
        """Make a node's key and tell the SuperLink of it; return the private key."""
        key = self.keys / name
        make_node_key(key)
        done = self.flwr("supernode", "register", key.with_suffix(".pub"), "local-tls")
        if done.returncode:
            self.require_alive()
            raise RuntimeError(f"could not register {name}:\n{done.stdout}{done.stderr}")
        return key

    def supernode(
        self, name: str, *options: object, part: int = 0, parts: int = 2
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode; `options` say how it proves who it is."""
        return self.start(
            name, "flower-supernode",
            "--superlink", self.address,
            "--host", HOST, "--port", free_port(),
            "--node-config", f"partition-id={part} num-partitions={parts}",
            *options,
        )  # fmt: skip

    def secured(self, name: str, *, part: int, parts: int) -> subprocess.Popen[bytes]:
        """Start a SuperNode with a registered key and the right authority."""
        key = self.register(name)
        return self.supernode(
            name, "--root-certificates", self.keys / "ca.crt",
            "--auth-supernode-private-key", key, part=part, parts=parts,
        )  # fmt: skip

    def run(self, app: Path, config: dict[str, Any]) -> list[str]:
        """Return the command that runs an app and follows it to its end."""
        text = " ".join(f"{key}={_toml(value)}" for key, value in config.items())
        return ["run", str(app), "local-tls", "--stream", "--run-config", text]


def _toml(value: Any) -> str:
    # Texts, numbers and truth are written as in JSON.
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let what must be finished be finished, and only then be interrupted."""
    came: list[int] = []
    before = [signal.signal(number, lambda *given: came.append(given[0])) for number in STOPS]
    try:
        yield
    finally:
        for number, handler in zip(STOPS, before, strict=True):
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def heed_the_first_stop() -> None:
    """Let one signal to stop, as a scheduler or a closed terminal sends it, end us in order.

    What was ignored from the start, as by nohup, still is. Further signals are ignored until the
    process is gone: the interpreter gives handlers written in Python back to the system before it
    ends, and would then die of a second one.
    """

    def stop(*_: object) -> None:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def positive(text: str) -> int:
    """Read a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


@contextlib.contextmanager
def scratch(keep: Path | None) -> Iterator[Path]:
    """Give the folder to work in: a temporary one, unless it is to be kept."""
    if keep is not None:
        if keep.exists() and not keep.is_dir():
            raise RuntimeError(f"--keep must be a folder, '{keep}' is none")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fedac-federation-") as name:
        yield Path(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the federation, run the example, show its table, stop."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--nodes", type=positive, default=2, help="SuperNodes, 2 by default")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--keep", type=Path, help="keep keys, logs and results in this folder")
    given = parser.parse_args(arguments)
    heed_the_first_stop()
    try:
        limit = 300.0 + 60 * given.rounds
        with scratch(given.keep) as folder, Deployment(folder, limit=limit) as deployment:
            show(deployment, nodes=given.nodes, rounds=given.rounds)
    except KeyboardInterrupt:
        print("interrupted; stopped everything", file=sys.stderr)
        return 130
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    print("stopped everything")
    return 0


def show(deployment: Deployment, *, nodes: int, rounds: int) -> None:
    """Start the nodes and run the example, which prints its table."""
    print(f"SuperLink with TLS on {deployment.address}", flush=True)
    for i in range(nodes):
        deployment.secured(f"node-{i}", part=i, parts=nodes)
        print(f"SuperNode {i + 1} of {nodes}, with its own key", flush=True)
    out = deployment.folder / "result"
    history = out / "history.csv"
    history.unlink(missing_ok=True)  # that of an earlier run, where results are kept
    config = {"nodes": nodes, "quorum": nodes // 2 + 1, "rounds": rounds, "out": out}
    code = deployment.follow(*deployment.run(APP, config))
    if code or not history.exists():
        raise RuntimeError(f"the run failed:\n{deployment.log('superlink')}")


if __name__ == "__main__":
    raise SystemExit(main())
