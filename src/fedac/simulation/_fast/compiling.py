"""How kernels are compiled: without the interpreter's lock, and kept on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import config as numba_config
from numba import njit

from fedac import sampling
from fedac.cache import cache_dir

# All files whose text ends up in compiled code.
SOURCES = ("kernels.py", "losses.py", "simd.py")


@cache
def compiled_dir() -> Path:
    """Return where compiled code is kept: in ``$NUMBA_CACHE_DIR`` if set, else in our cache.

    The folder is named after the sources. Numba itself looks at the kernel's own file only, and
    would go on with code that was compiled with an older version of the others.
    """
    files = [Path(__file__).with_name(name) for name in SOURCES]
    text = b"".join(file.read_bytes() for file in [*files, Path(sampling.__file__)])
    parent = os.environ.get("NUMBA_CACHE_DIR") or cache_dir() / "compiled"
    return Path(parent) / hashlib.sha256(text).hexdigest()[:16]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel on first use; later processes read it from disk.

    Where nothing can be written we compile anew in every process rather than fail.
    """
    config: Any = numba_config  # its settings are made at run time
    before = config.CACHE_DIR
    config.CACHE_DIR = str(compiled_dir())
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except (RuntimeError, OSError):
        return njit(nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_DIR = before
