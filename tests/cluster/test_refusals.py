# SPDX-License-Identifier: Apache-2.0
"""What `on` refuses, without any cluster; and memories larger than the machine."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedac import LeastSquares, NoisyQuadratic, simulate
from fedac.cli import main
from fedac.errors import InputError
from fedac.simulation.engines.linear.client_rounds import MemoryHost, require_space, reserved

F = LeastSquares([[1.0], [1.0]], [0.0, 3.0])
OPTIONS = {"M": 4, "K": 2, "T": 4, "eta": 0.1}


def test_an_unknown_cluster_is_refused():
    with pytest.raises(InputError, match="unknown cluster 'rai'; did you mean 'ray'"):
        simulate(F, "fedavg", on="rai", **OPTIONS)


def test_the_reference_engine_is_refused():
    with pytest.raises(InputError, match="on='ray' needs the fast engine"):
        simulate(F, "fedavg", on="ray", engine="reference", **OPTIONS)


def test_what_only_the_reference_engine_can_run_is_refused():
    pytest.importorskip("ray", reason="Ray is not installed: make install")
    with pytest.raises(InputError, match=r"needs a linear model .* on one machine, use engine="):
        simulate(NoisyQuadratic([1.0], sigma=0.1), "fedavg", on="ray", **OPTIONS)


def test_a_missing_ray_is_named_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="Ray is not installed: pip install ray"):
        simulate(F, "fedavg", on="ray", **OPTIONS)


def test_a_share_of_the_memories_that_does_not_fit_its_node_is_refused():
    sizes = {"clients": 1000, "numbers": 250, "runs": 4}
    large, small = (
        MemoryHost(0.5, size, f" on node {name}")
        for name, size in (("a", 2_000_000), ("b", 1_000_000))
    )
    require_space(sizes, 4, [large, large])
    with pytest.raises(InputError, match=r"4 MB .* 2 MB of it on node b, but only 1 MB are free"):
        require_space(sizes, 4, [large, small])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such pages")
def test_an_actor_has_a_place_for_more_memories_than_the_machine_has():
    memory = reserved((10**9, 1000), np.float32)
    memory[10**9 - 1] = 1.0
    assert memory[10**9 - 1].sum() == 1000
    assert memory[0].sum() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--on", "rai"], "unknown cluster 'rai'; did you mean 'ray'? known: ray"),
        (["--ray-address", "127.0.0.1:1"], "--ray-address needs --on ray"),
        (
            ["--on", "ray", "--ray-address", "127.0.0.1:1"],
            "cannot use Ray at 127.0.0.1:1: Connection refused",
        ),
    ],
)
def test_the_command_refuses_in_one_line(options, said, capfd):
    with pytest.raises(SystemExit, match="2"):
        main(["run", *options])
    assert capfd.readouterr().err == f"fedac: {said}\n"
