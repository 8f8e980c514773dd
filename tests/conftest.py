# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests: an environment of our own, and a9a."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from fedac.data import Dataset, load
from fedac.simulation.engines.linear.kernels.interface import compiled_dir

# A busy machine must not fail a test; `make bench` measures speed.
settings.register_profile("fedac", deadline=None)
settings.load_profile("fedac")
# A shell starts background jobs with SIGINT ignored, nohup ignores SIGHUP, and every process of the
# tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that have slow tests: one that starts last would keep all waiting."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Collect garbage seldom: Numba makes so much of it that a tenth of compiling went into this.

    Modules that are imported by now are never garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the user's data and cache, but share compiled code, which takes minutes to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(compiled_dir().parent))
        patch.delenv("FEDAC_DATA", raising=False)
        # Ray's processes would wait for all others, for ever on a busy machine.
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("FEDAC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def a9a(_own_environment: None) -> Dataset:
    """Give a9a, which is part of the package."""
    return load("a9a")
