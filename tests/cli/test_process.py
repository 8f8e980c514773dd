# SPDX-License-Identifier: Apache-2.0
"""Start-up, signals, pipes and terminals, which need a process of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from fedac import __version__

MAIN = "import sys; from fedac.cli import main; main(sys.argv[1:])"
HEAVY = {
    *("numpy", "scipy", "numba", "pandas", "matplotlib", "sklearn", "mpmath", "plotly"),
    *("requests", "pooch", "pydantic", "rich", "torch", "flwr"),
}
pytestmark = pytest.mark.slow
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and terminals")


def start(*arguments, program=MAIN, **streams):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], text=True, **streams)


def finish(process):
    out, err = process.communicate(timeout=1800)
    # Whether the simulator is compiled already depends on which tests ran before.
    return process.returncode, out, re.sub("fedac: compiling the simulator.*\n", "", err or "")


def read_all(terminal):
    """Read what a process writes to a terminal until it ends."""
    shown = b""
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:  # how Linux reports that the other end is closed
        pass
    os.close(terminal)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())  # without colors


def test_help_imports_nothing_heavy():
    """Start-up time depends on the machine's load; the imported modules do not."""
    program = f"""
import atexit, sys
atexit.register(lambda: print(*sorted({HEAVY} & set(sys.modules)), file=sys.stderr))
{MAIN}
"""
    for arguments in (["--help"], ["run", "--help"], ["--version"]):
        code, out, err = finish(start(*arguments, program=program))
        assert (code, err) == (0, "\n")
        assert out
    for line in ("fedac compare --methods fed", "fedac run --dataset ", "fedac "):
        asked = {"_FEDAC_COMPLETE": "bash_complete", "COMP_WORDS": line,
                 "COMP_CWORD": str(line.count(" "))}  # fmt: skip
        code, out, err = finish(start(program=program, env=os.environ | asked))
        assert (code, err) == (0, "\n")
        assert out


def test_installed_command():
    script = os.path.join(os.path.dirname(sys.executable), "fedac")  # noqa: PTH118, PTH120
    if not os.path.exists(script):  # noqa: PTH110
        pytest.skip("fedac is not installed beside this Python")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"fedac {__version__}\n", "")


@posix
def test_an_interrupt_keeps_the_recorded_steps(small):
    # A real signal, sent after a third of the work instead of after some time.
    program = f"""
import contextlib, os, signal
from fedac.cli import console

@contextlib.contextmanager
def bar(what, total):
    left = [total / 3]
    def advance(queries):
        left[0] -= queries
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGINT)
    yield advance

console.progress_bar = bar
{MAIN}
"""
    sizes = ("-M", "4", "-K", "2", "-T", "512", "--record-every", "8")
    process = start("run", "--dataset", str(small), *sizes, "--json", program=program)
    code, out, err = finish(process)
    assert (code, err) == (130, "fedac: interrupted\n")
    result = json.loads(out)
    steps = [step for step, _ in result["runs"][0]["trace"]]
    assert steps[:3] == [0, 8, 16]
    assert steps[-1] < 512
    assert (result["interrupted"], result["steps_made"]) == (True, steps[-1])


@posix
def test_an_interrupt_while_compiling(small, tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    process = start("run", "--dataset", str(small), "--json", env=environment)
    assert process.stderr.readline().startswith("fedac: compiling the simulator for ")
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert (code, err) == (130, "fedac: interrupted\n")
    result = json.loads(out)
    assert (result["interrupted"], result["steps_made"]) == (True, 0)
    assert (result["runs"], result["best"]) == ([], None)


@posix
@pytest.mark.parametrize(
    "arguments", [["data", "list"], ["plan", "--tables"], ["--version"], ["--help"]]
)
def test_a_closed_pipe(arguments):
    read_end, write_end = os.pipe()
    os.close(read_end)  # as `| head` does
    process = start(*arguments, stdout=write_end)
    os.close(write_end)
    code, _, err = finish(process)
    assert code == 141
    assert err == ""


@posix
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_disk():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        code, _, err = finish(start("--version", stdout=full))
    assert (code, err) == (1, "fedac: No space left on device\n")


@posix
def test_closed_stderr():
    shell = ["sh", "-c", 'exec "$0" "$@" 2>&-', sys.executable, "-c", MAIN]
    done = subprocess.run([*shell, "frob"], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")  # print would use stdout instead


@posix
def test_progress_on_a_terminal_leaves_stdout_alone(small):
    import pty

    ours, theirs = pty.openpty()
    sizes = ("-M", "64", "-K", "2", "-T", "256")
    process = start("run", "--dataset", str(small), *sizes, "--json", stderr=theirs)
    os.close(theirs)
    shown = read_all(ours)
    code, out, _ = finish(process)
    assert code == 0
    assert json.loads(out)["steps"] == 256
    assert "fedac-i" in shown


@posix
def test_a_bar_in_80_columns(small):
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    method = "fedac-i+cv+nesterov(1,0.3)"
    sizes = ("-M", "64", "-K", "2", "-T", "2048", "--algorithm", method, "--json")
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = start(
        "run", "--dataset", str(small), *sizes, stderr=theirs, env=environment | {"TERM": "xterm"}
    )
    os.close(theirs)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read_all(ours))
    assert finish(process)[0] == 0
    lines = [line for line in re.split("[\r\n]+", shown) if "%" in line]
    assert lines
    for line in lines:
        assert len(line) <= 80
        assert re.search(r"━.* \d+%(, [\d.]+ M gradients/s)? +[-\d]:[-\d]{2}:[-\d]{2}$", line), line


def test_a_backend_set_by_jupyter_is_ignored(tmp_path):
    environment = {**os.environ, "MPLBACKEND": "not-installed"}
    sizes = ("--kappa", "25", "--blocks", "2", "--out", str(tmp_path))
    code, _, err = finish(start("instability", *sizes, env=environment))
    assert code == 0, err
    assert list(tmp_path.glob("*.png"))


@posix
def test_a_narrow_terminal_cuts_no_number(small):
    import pty

    ours, theirs = pty.openpty()
    sizes = ("-M", "4", "-K", "2", "-T", "8", "--eta", "0.015625,0.03125")
    environment = {**os.environ, "COLUMNS": "40", "TERM": "xterm"}
    process = start("run", "--dataset", str(small), *sizes, stdout=theirs, env=environment)
    os.close(theirs)
    shown = read_all(ours)
    code, _, _ = finish(process)
    assert code == 0
    assert "0.015625" in shown
    assert len(re.findall(r" \d\.\d{4}e[-+]\d\d ", shown)) == 4


def test_characters_that_the_encoding_lacks(tmp_path):
    folder = tmp_path / "dätä ★"
    folder.mkdir()
    (folder / "a9a").touch()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "FEDAC_DATA": str(folder)}
    code, out, err = finish(start("data", "path", "a9a", env=environment))
    assert (code, err) == (0, "")
    assert r"d\xe4t\xe4 \u2605" in out
