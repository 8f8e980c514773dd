"""A task as bytes, for processes and machines that do not have the user's modules."""

from __future__ import annotations

from dataclasses import replace

import cloudpickle

from fedac.experiments.task import Task


def to_bytes(task: Task) -> bytes:
    """Return what `pickle.loads` makes the task of, without its list of groups.

    Functions without a name, or of the main program, are sent as code.
    """
    return bytes(cloudpickle.dumps(replace(task, groups=[])))
