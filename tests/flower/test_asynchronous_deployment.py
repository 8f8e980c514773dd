# SPDX-License-Identifier: Apache-2.0
"""Asynchronous rounds over a SuperLink: a slow node, and one that is killed and started again."""

from __future__ import annotations

import re
import runpy
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NODES, SLOW, SECONDS = 5, 4, 4.0  # one node sleeps ten times longer


def make_app(folder: Path, options: str) -> Path:
    """Return a copy of the example whose clients sleep, with other options of the strategy."""
    app = folder / "app"
    shutil.copytree(ROOT / "examples/flower_app", app)
    sleep = f"    time.sleep({SECONDS} * (10 if part == {SLOW} else 1))\n    return"
    for name, old, new in (
        ("server_app.py", 'quorum=int(config["quorum"]) or None,', ""),
        ("server_app.py", 'mode=str(config["mode"]),', options),
        ("client_app.py", "    return", sleep),
        ("client_app.py", "from flwr", "import time\n\nfrom flwr"),
    ):
        file = app / "fedac_app" / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))
    return app


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    script = runpy.run_path(str(ROOT / "scripts" / "federation.py"))
    with script["Deployment"](tmp_path_factory.mktemp("asynchronous")) as deployment:
        for part in range(NODES):
            deployment.registered_supernode(f"node-{part}", part=part, parts=NODES)
        yield deployment


def run_config(out: Path, rounds: int) -> dict:
    return {
        "dataset": "synthetic", "l2": 1e-3, "eta": 0.1, "local-steps": 4, "rounds": rounds,
        "nodes": NODES, "evaluate-every": 0, "algorithm": "scaffold", "out": out,
    }  # fmt: skip


def start_again(deployment, name: str, part: int):
    """Start a killed SuperNode, as a supervisor would: its key is in use for about a minute."""
    options = ("--root-certificates", deployment.keys / "ca.crt",
               "--auth-supernode-private-key", deployment.keys / name)  # fmt: skip
    while True:
        process = deployment.supernode(name, *options, part=part, parts=NODES)
        deployment.wait_for(
            lambda process=process: (
                process.poll() is not None or "SuperNode ID" in deployment.log(name)
            )
        )
        if process.poll() is None:
            return
        deployment.processes.pop(name)
        time.sleep(3)


def test_asynchronous_rounds_keep_the_pace_of_the_fast_nodes(deployment, tmp_path):
    per_minute = {}
    for mode, rounds in (("rounds", 2), ("buffer(2)", 36)):
        folder = tmp_path / mode
        app = make_app(folder, f'mode="{mode}",')
        out = folder / "out"
        options = deployment.run_options(app, run_config(out, rounds))
        run = deployment.start(f"run-{rounds}", "flwr", *options)
        if mode != "rounds":
            deployment.wait_for(lambda: "round 6/" in deployment.log("run-36"))
            deployment.stop("node-1", signal.SIGKILL)
            lost = re.compile(r"dropped node \d+ \(partition 1\)")
            deployment.wait_for(lambda lost=lost: lost.search(deployment.log("run-36")) is not None)
            start_again(deployment, "node-1", 1)
        deployment.wait_for(lambda run=run: run.poll() is not None)
        assert (out / "history.csv").exists(), deployment.log(f"run-{rounds}")
        history = pd.read_csv(out / "history.csv")
        assert len(history) == rounds
        print(history.to_string())
        per_minute[mode] = 60 * history["good"].sum() / history["seconds"].sum()
        assert np.isfinite(np.load(out / "w_ag.npy")).all()
    print("updates per minute:", per_minute)
    assert history["bad"].sum() + history["lost"].sum() >= 1
    # The node that was started again worked.
    assert "ROUND" in deployment.log("node-1")
    # Four nodes at full speed, and then three.
    assert per_minute["buffer(2)"] > 1.5 * per_minute["rounds"]
