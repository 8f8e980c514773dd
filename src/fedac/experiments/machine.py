"""The machine and the versions that a measurement or a run was made with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Describe the machine and the versions that matter.

    Examples
    --------
    >>> list(describe_machine())
    ['processor', 'cores', 'system', 'python', 'numpy', 'numba']
    """
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
