"""A simulation over several nodes has the bits of the same simulation on one machine."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedac.errors import StepSizeWarning

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedac[ray]'")
pytestmark = pytest.mark.slow

FILE = Path(__file__).with_name("scenarios.py")
SCENARIOS = runpy.run_path(str(FILE))

# One driver runs everything: it has 1, 2 or 3 actors, of half a core each, on two nodes.
DRIVER = """
import itertools, runpy, sys, traceback, warnings
from pathlib import Path
import numpy as np
from fedac.cluster import connect, nodes
from fedac.simulation._fast import crew

file, out = sys.argv[1:]
scenarios = runpy.run_path(file)
warnings.simplefilter("ignore")
with connect():
    for actors in (1, 2, 3):
        on = itertools.islice(itertools.cycle(nodes()), actors)
        places = [crew.Place(node, 0.5) for node in on]
        crew.places = lambda: places
        for name, run in scenarios["SCENARIOS"].items():
            queries = []
            try:
                result = run(on="ray", on_progress=queries.append)
            except Exception:
                Path(out, f"{name}-{actors}.txt").write_text(traceback.format_exc())
                continue
            found = scenarios["numbers"](result) | {"reported": sum(queries)}
            np.savez(Path(out, f"{name}-{actors}.npz"), **found)
"""


@pytest.fixture(scope="module")
def found(two_nodes, tmp_path_factory) -> Path:
    """Run all scenarios on the cluster, and return where their results are."""
    out = tmp_path_factory.mktemp("found")
    two_nodes.run(DRIVER, FILE, out)
    return out


@pytest.mark.parametrize("name", SCENARIOS["SCENARIOS"])
def test_one_two_and_three_actors_give_the_bits_of_one_machine(name: str, found: Path) -> None:
    queries: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)
        alone = SCENARIOS["SCENARIOS"][name](on_progress=queries.append)
    expected: dict[str, Any] = SCENARIOS["numbers"](alone) | {"reported": sum(queries)}
    for actors in (1, 2, 3):
        failed = found / f"{name}-{actors}.txt"
        assert not failed.exists(), failed.read_text()
        with np.load(found / f"{name}-{actors}.npz") as got:
            assert set(got) == set(expected)
            for key, value in expected.items():
                assert np.array_equal(got[key], value, equal_nan=True), (actors, key)
