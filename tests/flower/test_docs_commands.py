# SPDX-License-Identifier: Apache-2.0
"""The commands of the Flower pages of docs/, run as written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

ROOT = Path(__file__).parents[2]
# An environment variable of every process that a test starts.
TAG = "FEDAC_TEST_FOLDER"


@pytest.mark.parametrize("tool", ["bash", "openssl", "ssh-keygen"])
def test_ci_has_the_tools(tool):
    if "CI" in os.environ:
        assert shutil.which(tool), f"CI must install {tool}"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "federation.py"))


@pytest.fixture(scope="module")
def bash(script, tmp_path_factory):
    """Return a function that runs commands in a new folder, and returns it with their output."""
    if not all(map(shutil.which, ("bash", "openssl", "ssh-keygen"))):
        pytest.skip("the commands need bash, openssl and ssh-keygen")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(commands: str, **env: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("bash")
        (folder / "examples").symlink_to(ROOT / "examples")
        env = {"FLWR_HOME": str(folder / "home"), TAG: str(folder), "PATH": path} | env
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"set -e\n{commands}"], cwd=folder, env={**os.environ, **env},
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            script["wait_for"](lambda: process.poll() is not None, lambda: [folder / "log"])
        finally:
            for pid in tagged(str(folder)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        output = (folder / "log").read_text(errors="replace")
        assert process.returncode == 0, output
        return folder, output

    return run


def tagged(value: str) -> list[int]:
    """Return the processes that inherited the tag, also those that left their parents."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{TAG}={value}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def commands_of(page: str) -> str:
    """Return the commands of a page of docs/."""
    text = (ROOT / "docs" / page).read_text()
    return "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))


# What `flwr run` does if there is none, but that gives it 15 seconds, too few on a busy machine.
START_SUPERLINK = """
flower-superlink --insecure --simulation --isolation subprocess --host 127.0.0.1 \\
  --port $FLWR_LOCAL_SUPERLINK_HTTP_API_PORT \\
  --control-api-address 127.0.0.1:$FLWR_LOCAL_CONTROL_API_PORT &
HEALTH=http://127.0.0.1:$FLWR_LOCAL_SUPERLINK_HTTP_API_PORT/health
until python -c "import urllib.request as u; u.urlopen('$HEALTH')" 2> /dev/null; do sleep 1; done
"""


@pytest.fixture(scope="module")
def simulated(script, bash):
    """Run the simulations of both pages beside one SuperLink; return their folder and output."""
    commands = [commands_of("flower.md"), commands_of("flower-quickstart.md")]
    return bash(
        START_SUPERLINK + "\n".join(commands),
        FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=str(script["free_port"]()),
        FLWR_LOCAL_CONTROL_API_PORT=str(script["free_port"]()),
    )


@pytest.mark.slow
def test_flwr_run_simulates_the_example(simulated):
    folder, output = simulated
    history = pd.read_csv(folder / "simulated/history.csv")
    assert history["good"].tolist() == [2, 2], output
    assert history["loss"].iloc[-1] < 0.69


@pytest.mark.slow
def test_flwr_run_simulates_both_quickstarts(simulated):
    folder, output = simulated
    first, moved = (
        json.loads((folder / f"simulated/{name}/accuracy.json").read_text())
        for name in ("fedavg", "fedac")
    )
    assert list(first) == list(moved) == ["0", "1", "2", "3"], output
    assert first["0"] == moved["0"] < 0.2
    assert min(first["3"], moved["3"]) > 0.5, output
    assert "10 good, 0 bad, 0 lost" in output


@pytest.mark.slow
def test_the_secured_federation_of_the_docs(script, bash):
    commands = "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n" + commands_of("flower-deployment.md")
    for port in ("8100", "8101", "8102"):
        assert port in commands
        commands = commands.replace(port, str(script["free_port"]()))
    folder, output = bash(commands)
    history = pd.read_csv(folder / "federation/asynchronous/history.csv")
    assert history["good"].tolist() == [1, 1, 1, 1], output
    history = pd.read_csv(folder / "federation/result/history.csv")
    assert history["good"].tolist() == [2, 2], output
    assert history["loss"].iloc[-1] < 0.69


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_federation_leaves_nothing_behind(tmp_path, number):
    """`make federation` gets the same signal again and again, as from an impatient scheduler."""
    command = [sys.executable, "-u", str(ROOT / "scripts" / "federation.py")]
    env = {**os.environ, TAG: str(tmp_path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = next(line for line in process.stdout if "SuperNode 1 of 2" in line)
            assert line.endswith("with its own key\n")
            until = time.monotonic() + 600  # the machine may be busy
            while process.poll() is None and time.monotonic() < until:
                process.send_signal(number)
                time.sleep(0.01)
            assert process.returncode == 130
        finally:
            process.kill()
    until = time.monotonic() + 120
    while tagged(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.1)
    assert tagged(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", "0"], "argument --nodes: must be a whole number, at least 1, got '0'"),
        (["--rounds", "x"], "argument --rounds: must be a whole number, at least 1, got 'x'"),
        (["--keep", __file__], f"--keep: '{__file__}' is not a folder"),
    ],
)
def test_impossible_options_of_the_federation_are_refused(options, message):
    command = [sys.executable, str(ROOT / "scripts" / "federation.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
