"""Fixtures for all tests: a cache of our own, and the real a9a."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from fedac.data import Dataset, load
from fedac.simulation._fast.compiling import compiled_dir

# A busy machine is no reason to fail; speed is measured by `fedac bench`.
settings.register_profile("fedac", deadline=None)
settings.load_profile("fedac")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests out of the user's cache, but for compiled code, which takes minutes to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(compiled_dir().parent))
        patch.setenv("FEDAC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def a9a(_own_cache: None) -> Dataset:
    """Give the real a9a; in CI it must be there."""
    if "FEDAC_DATA" not in os.environ:
        if "CI" in os.environ:
            pytest.fail("CI must set FEDAC_DATA to a folder that holds a9a")
        pytest.skip("needs the file a9a: set FEDAC_DATA to its folder")
    return load("a9a")
