"""Test sets: loaded from a file, or held out of the training data."""

from __future__ import annotations

import numpy as np

from fedac.data.dataset import Dataset
from fedac.data.registry import OnProgress, load
from fedac.data.splits import is_split
from fedac.errors import InputError

# Held-out rows never change, so that all runs are tested on the same ones.
SEED = 0


def check_test(test: float | str | None, split: str) -> None:
    """Raise `InputError` if rows are held out of data whose clients are named in a file."""
    if isinstance(test, float) and not is_split(split):
        raise InputError(
            f"'{split}' names the clients of all rows, so none can be held out: give the test set "
            "as a file"
        )


def load_with_test(
    dataset: str, test: float | str | None, on_progress: OnProgress = lambda done, total: None
) -> tuple[Dataset, Dataset | None]:
    """Load a data set and its test set, or hold out a share of its rows."""
    data = load(dataset, on_progress)
    if test is None:
        return data, None
    if isinstance(test, float):
        return hold_out(data, test)
    other = load(test)
    # 1 is the positive label of {0, 1} and {-1, 1}, but the negative one of {1, 2}.
    if other.classes != data.classes and (1.0, 2.0) in (other.classes, data.classes):
        ours, theirs = ("{:g} and {:g}".format(*each.classes) for each in (data, other))
        raise InputError(
            f"the labels of {data.name} are {ours}, but in the test set {other.name} {theirs}: "
            "use the same labels in both"
        )
    return data, other


def hold_out(data: Dataset, share: float) -> tuple[Dataset, Dataset]:
    """Return training rows and held-out rows, drawn with a fixed seed."""
    n, count = data.n_samples, round(share * data.n_samples)
    if not 0 < count < n:
        raise InputError(f"a share of {share:g} of {n} rows leaves none to train or to test on")
    order = np.random.default_rng(SEED).permutation(n)
    test, train = np.sort(order[:count]), np.sort(order[count:])
    name = f"{data.name}, {100 * (1 - share):.4g}% of its rows"
    return (
        Dataset(name, data.X[train], data.y[train]),
        Dataset(f"{100 * share:.4g}% of {data.name}", data.X[test], data.y[test]),
    )
