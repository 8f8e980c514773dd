"""A real federation on loopback: TLS, node keys, refusals, a node killed in mid-round.

One SuperLink and two SuperNodes serve all tests of this module; they are started as
`make federation` starts them and stopped by their process ids.
"""

from __future__ import annotations

import re
import runpy
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedac[flower]'")

from fedac import LogisticRegression, load, simulate

ROOT = Path(__file__).parents[2]
K, ROUNDS, SEED, L2, ETA = 4, 3, 3, 0.05, 0.2


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "federation.py"))


@pytest.fixture(scope="module")
def deployment(script, tmp_path_factory):
    with script["Deployment"](tmp_path_factory.mktemp("federation"), limit=400) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def nodes(deployment):
    return [deployment.secured(f"node-{i}", part=i, parts=2) for i in range(2)]


@pytest.fixture(scope="module")
def data(deployment) -> Path:
    """Give a small data set as a file that all processes can read."""
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
        "rounds": ROUNDS, "nodes": 2, "evaluate-every": 0, "out": out, "deadline": 120.0,
    } | changes  # fmt: skip


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
    until = time.monotonic() + 120
    for name, process in started.items():
        process.wait(timeout=max(1.0, until - time.monotonic()))
        assert process.returncode != 0, name
        log = plain(deployment.log(name))
        assert cases[name][1] in log, log
        deployment.processes.pop(name)
    # None of them became a node that could be asked.
    listed = plain(deployment.flwr("supernode", "list", "local-tls").stdout)
    assert "online" not in listed.lower(), listed


@pytest.mark.parametrize(
    ("variant", "algorithm"), [("I", "fedac-i"), ("II", "fedac-ii"), ("fedavg", "fedavg")]
)
def test_tls_deployment_is_the_simulator(deployment, nodes, data, variant, algorithm):
    out = deployment.folder / f"exact-{variant}"
    how = config(data, out, variant=variant)
    done = deployment.flwr(*deployment.run(ROOT / "examples/flower_app", how))
    assert (out / "w_ag.npy").exists(), done.stdout + done.stderr + deployment.log("superlink")
    small = load(data)
    F = LogisticRegression(small.X, small.y, l2=L2)
    run = simulate(
        F, algorithm, M=2, K=K, T=K * ROUNDS, eta=ETA, seed=SEED, start=np.zeros(F.dim),
        engine="reference",
    ).best  # fmt: skip
    np.testing.assert_allclose(np.load(out / "w_ag.npy"), run.w, rtol=1e-9)
    history = pd.read_csv(out / "history.csv")
    assert history["good"].tolist() == [2] * ROUNDS


def test_a_supernode_killed_in_mid_round(deployment, nodes, data):
    """Run after the others: it costs the federation a node."""
    out = deployment.folder / "killed"
    before = deployment.log("node-1").count("ROUND 2]")
    run = deployment.start(
        "run",
        "flwr",
        *deployment.run(ROOT / "examples/flower_app", config(data, out, deadline=15.0, quorum=1)),
    )
    until = time.monotonic() + 120
    while deployment.log("node-1").count("ROUND 2]") == before:
        assert time.monotonic() < until, deployment.log("run")
        time.sleep(0.02)
    deployment.stop("node-1", signal.SIGKILL)
    run.wait(timeout=200)
    log = plain(deployment.log("run"))
    assert (out / "history.csv").exists(), log
    history = pd.read_csv(out / "history.csv")
    assert history["good"].tolist() == [2, 1, 1]
    assert history["lost"][1] >= 1
    assert "no reply in time" in log
    assert np.isfinite(np.load(out / "w_ag.npy")).all()
