# SPDX-License-Identifier: Apache-2.0
"""The command without the modules and functions that Windows lacks.

A workflow runs the tests on Windows. This test finds earlier, on any system, what would fail there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fedac.cli import main

pytestmark = pytest.mark.slow

# Python imports it at the start of every process, also of a sweep's workers. Other packages choose
# their code when they are imported, which must be before.
SITECUSTOMIZE = """
import ctypes, importlib, mmap, os, signal, sys
packages = '''
    click cloudpickle matplotlib.pyplot numba pandas platformdirs plotly rich.console rich.live
    scipy.optimize scipy.sparse scipy.special sqlite3 subprocess tempfile threadpoolctl
'''
for package in packages.split():
    importlib.import_module(package)
for module in "fcntl grp posix pty pwd resource termios tty".split():
    sys.modules[module] = None
missing = {
    os: "fork geteuid getuid killpg mkfifo sched_getaffinity sysconf sysconf_names uname",
    signal: "SIGALRM SIGHUP SIGPIPE SIGUSR1 setitimer",
    mmap: "MAP_ANONYMOUS MAP_NORESERVE MAP_PRIVATE",
}
for module, names in missing.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"
"""

RUN = (
    "run --dataset synthetic --algorithm fedac-i+cv --clients 8 --participation 0.5 -K 4 -T 16 "
    "--eta 0.1,0.2 --json"
)
SWEEP = (
    "sweep --dataset synthetic --l2 1e-3 --algorithms fedac-i,fedavg --workers 4 --local-steps 4 "
    "--steps 16 --eta 0.1,0.2 --seeds 1,2 --jobs 2 --out runs"
)


def without_posix(hidden: Path, command: str) -> str:
    """Return what a command prints in a process of its own."""
    places = os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")])
    line = [sys.executable, "-m", "fedac", *command.split()]
    environment = os.environ | {"PYTHONPATH": places, "MPLBACKEND": "Agg"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_gives_the_same_results_without_posix(tmp_path, monkeypatch, capfd):
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)

    def results(folder: str, fedac: Callable[[str], str]) -> tuple[object, list[str]]:
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        fedac(SWEEP)
        traces = fedac("export runs --traces -").splitlines()
        return json.loads(fedac(RUN))["runs"], sorted(traces)

    def here(command: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        assert ended.value.code == 0
        return capfd.readouterr().out

    hidden = results("hidden", partial(without_posix, tmp_path))
    assert len(hidden[1]) > 8
    assert hidden == results("posix", here)
