"""A task as bytes, for other processes and for machines that do not have the user's modules.

Arrays that Ray shares between processes are read-only, for which Numba would compile all kernels a
second time; those that are read from bytes are not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import cloudpickle

from fedac.experiments.task import Task


def to_bytes(task: Task) -> bytes:
    """Return what `pickle.loads` makes the task of, without its list of groups.

    Functions without a name, and those of the user's own modules, are sent as code.
    """
    with _sent_as_code(task):
        return bytes(cloudpickle.dumps(replace(task, groups=[])))


@contextmanager
def _sent_as_code(task: Task) -> Iterator[None]:
    """Have the modules of the user's own algorithms and losses sent as code."""
    own = [type(task.objective), *(record.update for record in task.algorithms.values())]
    names = {one.__module__ for one in own if one.__module__.split(".")[0] != "fedac"}
    modules = [sys.modules[name] for name in names if name in sys.modules]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
