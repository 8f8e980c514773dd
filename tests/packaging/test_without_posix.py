"""The command without the modules and functions that Windows lacks.

A workflow runs the tests on Windows. This test finds earlier, on any system, what would fail there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def results(folder: Path, hidden: Path | None) -> tuple[object, list[str]]:
    """Return the runs of both commands, made in a folder of their own."""
    folder.mkdir()
    places = [*([str(hidden)] if hidden else []), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "MPLBACKEND": "Agg"}

    def fedac(command: str) -> str:
        line = [sys.executable, "-m", "fedac", *command.split()]
        done = subprocess.run(
            line, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Usage" in fedac("--help")
    fedac(SWEEP)
    return json.loads(fedac(RUN))["runs"], sorted(fedac("export runs --traces -").splitlines())


def test_the_command_gives_the_same_results_without_posix(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(SITECUSTOMIZE)
    assert results(tmp_path / "windows", hidden) == results(tmp_path / "posix", None)
