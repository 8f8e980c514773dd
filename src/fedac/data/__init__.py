"""Data sets: LIBSVM files, registered names and generated data."""

from fedac.data.dataset import Dataset
from fedac.data.libsvm import load_libsvm
from fedac.data.registry import load
from fedac.data.synthetic import dense, synthetic

__all__ = ["Dataset", "dense", "load", "load_libsvm", "synthetic"]
