"""What only a process of its own shows: start-up time, signals, pipes and terminals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from fedac import __version__

MAIN = "import sys; from fedac.cli import main; main(sys.argv[1:])"
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and terminals")


def start(*arguments, program=MAIN, **streams):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], text=True, **streams)


def finish(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_help_answers_at_once():
    seconds = []
    for _ in range(3):
        before = time.perf_counter()
        code, out, err = finish(start("--help"))
        seconds.append(time.perf_counter() - before)
        assert (code, err) == (0, "")
        assert {"demo", "run", "data"} <= set(out.split())
    assert min(seconds) < 0.5


def test_importing_the_command_imports_nothing_heavy():
    heavy = {"numpy", "scipy", "numba", "pandas", "matplotlib", "sklearn", "requests", "pooch"}
    program = f"import sys, fedac.cli; print(sorted({heavy} & set(sys.modules)))"
    assert finish(start(program=program)) == (0, "[]\n", "")


def test_installed_command():
    script = os.path.join(os.path.dirname(sys.executable), "fedac")  # noqa: PTH118, PTH120
    if not os.path.exists(script):  # noqa: PTH110
        pytest.skip("fedac is not installed beside this Python")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"fedac {__version__}\n", "")


@posix
def test_interrupt_keeps_what_was_finished(small):
    # A real signal, sent when a third is done rather than after a guess at the time.
    program = f"""
import contextlib, os, signal
from fedac.cli import run

@contextlib.contextmanager
def bar(what, total):
    left = [total / 3]
    def advance(queries):
        left[0] -= queries
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGINT)
    yield advance

run.progress_bar = bar
{MAIN}
"""
    sizes = ("-M", "4", "-K", "2", "-T", "512", "--record-every", "8")
    process = start("run", "--dataset", str(small), *sizes, "--json", program=program)
    code, out, err = finish(process)
    assert (code, err) == (130, "fedac: interrupted\n")
    steps = [step for step, _ in json.loads(out)["runs"][0]["trace"]]
    assert steps[:3] == [0, 8, 16]
    assert steps[-1] < 512


@posix
@pytest.mark.parametrize(
    "arguments", [["data", "list"], ["plan", "--tables"], ["--version"], ["--help"]]
)
def test_a_reader_that_leaves(arguments):
    read_end, write_end = os.pipe()
    os.close(read_end)  # as `| head` does, only sooner
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
    assert (done.returncode, done.stdout) == (2, "")  # print would turn to stdout instead


@posix
def test_progress_on_a_terminal_leaves_stdout_alone(small):
    import pty

    ours, theirs = pty.openpty()
    sizes = ("-M", "64", "-K", "2", "-T", "256")
    process = start("run", "--dataset", str(small), *sizes, "--json", stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # how Linux says that the other side of a terminal has gone
        pass
    os.close(ours)
    code, out, _ = finish(process)
    assert code == 0
    assert json.loads(out)["steps"] == 256
    assert b"fedac-i" in shown


def test_an_encoding_that_lacks_the_letters(tmp_path):
    folder = tmp_path / "dätä ★"
    folder.mkdir()
    (folder / "a9a").touch()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "FEDAC_DATA": str(folder)}
    code, out, err = finish(start("data", "path", "a9a", env=environment))
    assert (code, err) == (0, "")
    assert r"d\xe4t\xe4 \u2605" in out
