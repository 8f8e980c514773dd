# SPDX-License-Identifier: Apache-2.0
"""`fedac run --on ray`."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("ray", reason="Ray is not installed: make install")
pytestmark = pytest.mark.slow

COMMAND = "from fedac.cli import main; import sys; main(sys.argv[1:])"
OPTIONS = [
    "run", "--dataset", "synthetic", "-M", "64", "-K", "4", "-T", "16",
    "--eta", "0.1,0.5", "--json",
]  # fmt: skip


def test_the_command_prints_the_same_and_says_how_long_it_takes(two_nodes):
    alone = json.loads(two_nodes.run(COMMAND, *OPTIONS))
    address = two_nodes.environment["RAY_ADDRESS"]
    with two_nodes.start(COMMAND, *OPTIONS, "--on", "ray", "--ray-address", address) as driver:
        try:
            output, errors = driver.communicate(timeout=1800)
        finally:
            driver.kill()
    spread = json.loads(output)
    assert re.search(r"fedac: this takes about [\d.e-]+ s on 2 nodes with 2 cores\n", errors), (
        errors
    )
    for result in (alone, spread):
        result.pop("seconds")
    assert spread == alone
