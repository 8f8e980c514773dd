# SPDX-License-Identifier: Apache-2.0
"""A store on a network file system: whoever writes to it is warned."""

from __future__ import annotations

import warnings

import pytest

from fedac.errors import NetworkFileSystemWarning
from fedac.experiments import store
from fedac.experiments.store import Store


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr(store, "is_network", lambda path: True)


def test_writing_warns_and_reading_does_not(everywhere, tmp_path):
    with pytest.warns(
        NetworkFileSystemWarning, match=r"--shard, and join .* 'fedac merge'"
    ) as found:
        Store(tmp_path, create=True).__exit__()
    assert [each.filename for each in found] == [__file__]
    with Store(tmp_path) as store:
        assert store.frame().empty


def test_the_same_place_is_mentioned_once(everywhere, tmp_path):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(2):
            with Store(tmp_path, create=True):
                pass
    assert len(found) == 1
