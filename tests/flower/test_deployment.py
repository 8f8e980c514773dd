# SPDX-License-Identifier: Apache-2.0
"""A real federation on loopback: TLS, node keys, refusals, a node killed in the middle of a round.

All tests of this module share one SuperLink and two SuperNodes, started as `make federation` starts
them. They wait as long as there is progress, because a busy machine may take minutes.
"""

from __future__ import annotations

import re
import runpy
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from fedac import LogisticRegression, load, simulate
from fedac.algorithms import get

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
K, ROUNDS, SEED, L2, ETA = 4, 2, 3, 0.05, 0.2


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "federation.py"))


@pytest.fixture(scope="module")
def deployment(script, tmp_path_factory):
    with script["Deployment"](tmp_path_factory.mktemp("federation")) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def nodes(deployment):
    return [deployment.registered_supernode(f"node-{i}", part=i, parts=2) for i in range(2)]


@pytest.fixture(scope="module")
def data(deployment) -> Path:
    """Return a small data set as a file that all processes can read."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 6))
    y = np.where(X @ rng.standard_normal(6) > 0, 1, -1)
    lines = [
        f"{sign:+d} " + " ".join(f"{j + 1}:{x!r}" for j, x in enumerate(row.tolist()))
        for sign, row in zip(y.tolist(), X, strict=True)
    ]
    path = deployment.folder / "small.svm"
    path.write_text("\n".join(lines) + "\n")
    return path


def config(data: Path, out: Path, **changes) -> dict:
    return {
        "dataset": data, "split": False, "l2": L2, "eta": ETA, "local-steps": K, "seed": SEED,
        "rounds": ROUNDS, "nodes": 2, "evaluate-every": 0, "out": out,
    } | changes  # fmt: skip


def changed_app(tmp_path: Path, name: str, old: str, new: str, head: str = "") -> Path:
    """Return a copy of the example in which one file is changed."""
    app = tmp_path / "app"
    shutil.copytree(ROOT / "examples/flower_app", app)
    file = app / "fedac_app" / name
    text = file.read_text()
    assert old in text
    file.write_text(head + text.replace(old, new))
    return app


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_strangers_are_refused(deployment, script):
    ca, good = deployment.keys / "ca.crt", deployment.register("good")
    script["make_certificates"](deployment.folder / "other")
    script["make_node_key"](deployment.keys / "stranger")
    key, once = "--auth-supernode-private-key", ("--max-retries", 1)
    roots = "--root-certificates"
    wrong_ca = deployment.folder / "other" / "ca.crt"
    cases = {
        "wrong-ca": ((roots, wrong_ca, key, good), "CERTIFICATE_VERIFY_FAILED"),
        "unknown-key": (
            (roots, ca, key, deployment.keys / "stranger"),
            "Failed to activate SuperNode",
        ),
        "no-key": ((roots, ca), "SuperNode authentication is enabled"),
        "plaintext": (("--insecure",), "Failed to initialize the connection to the SuperLink"),
        "plaintext-key": (
            ("--insecure", key, good),
            "authentication requires a secure TLS connection",
        ),
    }
    started = {
        name: deployment.supernode(name, *options, *once) for name, (options, _) in cases.items()
    }
    for name, process in started.items():
        deployment.wait_for(lambda process=process: process.poll() is not None)
        assert process.returncode != 0, name
        log = plain(deployment.log(name))
        assert cases[name][1] in log, log
        deployment.processes.pop(name)
    # None of them became a node of the federation.
    listed = plain(deployment.flwr("supernode", "list", "local-tls").stdout)
    assert "online" not in listed.lower(), listed


def assert_matches_the_simulator(deployment, data, algorithm, app):
    algorithm = get(algorithm)
    out = deployment.folder / algorithm.label
    run_config = config(data, out, algorithm=algorithm.name)
    done = deployment.flwr(*deployment.run_options(app, run_config))
    assert (out / "w_ag.npy").exists(), done.stdout + deployment.log("superlink")
    small = load(data)
    F = LogisticRegression(small.X, small.y, l2=L2)
    run = simulate(
        F, algorithm, M=2, K=K, T=K * ROUNDS, eta=ETA, seed=SEED, start=np.zeros(F.dim),
        engine="reference",
    ).runs[0]  # fmt: skip
    np.testing.assert_allclose(np.load(out / "w_ag.npy"), run.w, rtol=1e-9)
    history = pd.read_csv(out / "history.csv")
    assert history["good"].tolist() == [2] * ROUNDS
    assert history["memory_lost"].tolist() == [0] * ROUNDS


@pytest.mark.parametrize("algorithm", ["fedac-i", "scaffold"])
def test_a_deployment_matches_the_simulator(deployment, nodes, data, algorithm):
    app = ROOT / "examples/flower_app"
    assert_matches_the_simulator(deployment, data, algorithm, app)


OWN = """
from fedac.algorithms import Algorithm
from fedac.algorithms.hyperparameters import Hyperparameters

# With the name of a built-in algorithm, which clients must not run instead.
OWN = Algorithm(
    name="fedavg", label="momentum", sequences=("w", "v"),
    couple=lambda *, eta, mu, K: Hyperparameters(eta=eta),
    start=lambda w_0: (w_0, 0 * w_0),
    query=lambda state, hp: state[0],
    update=lambda state, w_md, g, hp: (
        state[0] + 0.5 * state[1] - hp.eta * g, 0.5 * state[1] - hp.eta * g
    ),
    output=lambda state, hp, t: state[0],
)
"""


def test_an_own_record_runs_over_flwr_run(deployment, nodes, data, tmp_path):
    app = changed_app(tmp_path, "server_app.py", 'str(config["algorithm"])', "OWN", head=OWN)
    scope: dict = {}
    exec(OWN, scope)
    assert_matches_the_simulator(deployment, data, scope["OWN"], app)


def test_what_clients_remember_survives_a_resumed_run_in_files_only(
    deployment, nodes, data, tmp_path
):
    out, memory = deployment.folder / "resumed", tmp_path / "memory"
    kept = f"Logistic, memory_folder={str(memory)!r})"
    app = changed_app(tmp_path, "client_app.py", "Logistic)", kept)
    lost = []
    for rounds in (1, 2, 3):
        if rounds == 3:
            shutil.rmtree(memory)
        run_config = config(
            data, out, algorithm="scaffold", rounds=rounds, checkpoint=tmp_path / "run.npz"
        )
        done = deployment.flwr(*deployment.run_options(app, run_config))
        assert (out / "history.csv").exists(), done.stdout + deployment.log("superlink")
        lost.append(pd.read_csv(out / "history.csv")["memory_lost"].tolist())
    # To Flower every run is a new one: without the files both clients begin anew.
    assert lost == [[0], [0, 0], [0, 0, 2]]


def test_a_supernode_killed_in_the_middle_of_a_round(deployment, nodes, data, tmp_path):
    """Run this test last: the federation loses a node.

    The deadline follows the first round: Flower itself takes a minute to miss the node.
    """
    out = deployment.folder / "killed"
    app = changed_app(tmp_path, "server_app.py", 'float(config["deadline"])', '"adaptive"')
    before = deployment.log("node-1").count("ROUND 2]")
    options = deployment.run_options(app, config(data, out, quorum=1, rounds=3))
    run = deployment.start("run", "flwr", *options)
    deployment.wait_for(lambda: deployment.log("node-1").count("ROUND 2]") > before)
    deployment.stop("node-1", signal.SIGKILL)
    deployment.wait_for(lambda: run.poll() is not None)
    log = plain(deployment.log("run"))
    assert (out / "history.csv").exists(), log
    history = pd.read_csv(out / "history.csv")
    assert history["good"].tolist() == [2, 1, 1]
    assert history["bad"][1] + history["lost"][1] == 1
    assert re.search(r"round 2: training: dropped node \d+ \(partition \d\): ", log), log
    assert np.isfinite(np.load(out / "w_ag.npy")).all()
