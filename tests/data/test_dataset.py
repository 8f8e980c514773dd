# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import numpy as np
import pytest

from fedac.data.clients import Clients
from fedac.data.dataset import Dataset
from fedac.errors import DataError


def test_dataset_checks_its_parts():
    with pytest.raises(DataError, match=re.escape("mine: 2 rows but targets of shape (3,)")):
        Dataset("mine", np.eye(2), np.ones(3))
    with pytest.raises(DataError, match=re.escape("mine: every row has the target 0.0")):
        Dataset("mine", np.eye(2), np.zeros(2))
    with pytest.raises(DataError, match="mine: 2 rows, but the clients hold 3"):
        Dataset("mine", np.eye(2), [0, 1], clients=Clients(["a", "b", "a"]))


def test_some_rows_keep_their_clients_and_labels():
    labels = np.array(["a", "b", "a", "c"])
    data = Dataset("mine", np.eye(4), labels, clients=Clients(["x", "y", "y", "z"], labels))
    some = data.rows(np.array([1, 3]), "some")
    assert (some.labels.tolist(), some.classes) == (["b", "c"], ("a", "b", "c"))
    assert some.clients is not None
    assert some.clients.names == ("y", "z")
