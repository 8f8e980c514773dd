"""The commands of docs/flower.md, from certificates to a result, run as they stand."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedac[flower]'")

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("tool", ["bash", "openssl", "ssh-keygen"])
def test_ci_has_the_tools(tool):
    if "CI" in os.environ:
        assert shutil.which(tool), f"CI must install {tool}"


@pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "openssl", "ssh-keygen"))),
    reason="the commands need bash, openssl and ssh-keygen",
)
def test_the_secured_federation_of_the_docs(tmp_path):
    script = runpy.run_path(str(ROOT / "scripts" / "federation.py"))
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/flower.md").read_text(), re.DOTALL)
    commands = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n" + "\n".join(blocks)
    for port in ("8100", "8101", "8102"):
        assert port in commands
        commands = commands.replace(port, str(script["free_port"]()))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", commands], cwd=tmp_path, env={**os.environ, "PATH": path},
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        code = process.wait(timeout=240)
    finally:
        for pid in [*script["descendants"](process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    said = (tmp_path / "log").read_text(errors="replace")
    assert code == 0, said
    history = pd.read_csv(tmp_path / "federation/result/history.csv")
    assert history["good"].tolist() == [2, 2], said
    assert history["loss"].iloc[-1] < 0.69
