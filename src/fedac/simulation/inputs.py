"""Checks of what users give `simulate`, shared with the commands that call it."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from fedac.arrays import Array, as_numbers
from fedac.cluster import import_ray
from fedac.errors import InputError, unknown_name
from fedac.objectives import Objective
from fedac.require import require_count
from fedac.simulation.problem import DIVERGED

# Somewhat more threads than cores do no harm; thousands are a typo.
THREADS_PER_CORE = 16
CLUSTERS = ("ray",)


def start_point(objective: Objective, start: npt.ArrayLike | None) -> Array:
    """Return w_0, by default that of the published runs."""
    if start is None:
        return np.random.RandomState(1).randn(objective.dim)
    w_0 = as_numbers("start", start).copy()
    if w_0.shape != (objective.dim,) or np.abs(w_0).max(initial=0) > DIVERGED:
        raise InputError(
            f"start must be {objective.dim} numbers of size at most {DIVERGED:g}, got shape "
            f"{np.shape(start)} with sizes up to {np.abs(w_0).max(initial=0):g}"
        )
    return w_0


def require_seed(seed: int) -> int:
    """Return a valid seed, or say what is wrong with it."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed < 2**64:
        raise InputError(f"seed must be a whole number from 0 to 2^64 - 1, got {seed!r}")
    return int(seed)


def require_threads(threads: int | None) -> None:
    """Refuse an implausible number of threads, given here or by ``NUMBA_NUM_THREADS``.

    Examples
    --------
    >>> require_threads(10**6)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: threads must be at most ...: this machine has ..., got 1000000
    """
    name, asked = "threads", threads
    if asked is None:
        # Numba ignores text that is not a number, and fails with a traceback below 1.
        name, text = "NUMBA_NUM_THREADS", os.environ.get("NUMBA_NUM_THREADS", "")
        try:
            asked = int(text)
        except ValueError:
            return
    require_count(name, asked)
    cores = os.cpu_count() or 1
    if asked > THREADS_PER_CORE * cores:
        raise InputError(
            f"{name} must be at most {THREADS_PER_CORE * cores}: this machine has {cores} "
            f"core{'s' if cores > 1 else ''}, got {asked}"
        )


def require_cluster(on: str | None, engine: str | None) -> None:
    """Refuse an unknown kind of cluster, one that is not installed, or an engine it cannot run.

    Examples
    --------
    >>> require_cluster("ray", "reference")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: on='ray' needs the fast engine, not engine='reference'
    """
    if on is None:
        return
    if on not in CLUSTERS:
        raise unknown_name("cluster", str(on), CLUSTERS)
    if engine == "reference":
        raise InputError(f"on='{on}' needs the fast engine, not engine='reference'")
    import_ray()
