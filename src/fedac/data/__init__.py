# SPDX-License-Identifier: Apache-2.0
"""Data sets: your tables, arrays and files, registered names and generated data."""

from fedac.data.clients import Clients
from fedac.data.dataset import Dataset
from fedac.data.generated import dense, synthetic
from fedac.data.readers import load_libsvm
from fedac.data.registry import load
from fedac.data.splits import split

__all__ = ["Clients", "Dataset", "dense", "load", "load_libsvm", "split", "synthetic"]
