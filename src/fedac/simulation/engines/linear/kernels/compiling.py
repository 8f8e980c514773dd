"""Compilation of kernels, and the cache of compiled code on disk."""

# mypy: disallow-untyped-calls=False, warn-return-any=False
from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from numba import config as numba_config
from numba import extending, njit
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile

from fedac.errors import CompileCacheWarning
from fedac.paths import cache_dir, is_network

if sys.platform != "win32":
    import fcntl

# All files whose text ends up in compiled code.
SOURCES = (
    "federation/sampling.py",
    "federation/compression.py",
    "objectives/losses.py",
    *(
        f"simulation/engines/linear/kernels/{name}.py"
        for name in ("client_rounds", "losses", "simd", "steps", "types")
    ),
)


@cache
def compiled_dir() -> Path:
    """Return the folder of compiled code: in ``$NUMBA_CACHE_DIR`` if set, else in our cache.

    It is named after a hash of all sources. Numba itself checks the kernel's file only, and would
    keep using code that was compiled with older versions of its imports.
    """
    package = Path(__file__).parents[4]
    text = b"".join((package / name).read_bytes() for name in SOURCES)
    parent = os.environ.get("NUMBA_CACHE_DIR") or _own_disk(cache_dir() / "compiled")
    return Path(parent) / hashlib.sha256(text).hexdigest()[:16]


def _own_disk(folder: Path) -> Path:
    """Return the folder, or a temporary one if it is not writable or shared over a network.

    Numba's files do not survive several machines writing them at once.
    """
    if not is_network(folder):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    if sys.platform == "win32":
        return folder
    private = Path(tempfile.gettempdir()) / f"fedac-{os.getuid()}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        found = private.lstat()
    except OSError:
        return folder
    # Its files will be executed: no other user may write there.
    safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return private if safe else folder


class _CheckedFiles(IndexDataCacheFile):
    """Numba's cache files, with a checksum: damaged machine code would crash the process."""

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(content + hashlib.sha256(content).digest())

    def _load_data(self, name: str) -> Any:
        stored = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(stored[:-32]).digest() != stored[-32:]:
            raise ValueError("damaged")
        return super()._load_data(name)  # which ignores the checksum at the end


class _Cache(FunctionCache):
    """Numba's cache of one function, robust against damaged files and full disks."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._base = self._impl.filename_base
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _CheckedFiles(self._cache_path, self._base, stamp)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return compiled code, or None if there is none or it is damaged."""
        try:
            return super().load_overload(signature, target)
        except Exception:  # a damaged file may raise anything
            for file in Path(self._cache_path).glob(f"{self._base}.*"):
                with suppress(OSError):
                    file.unlink()
            return None

    def save_overload(self, signature: Any, compiled_code: Any) -> None:
        """Store compiled code, or warn if the disk is full."""
        try:
            super().save_overload(signature, compiled_code)
        except OSError as error:
            _warn_not_kept(self._cache_path, error.strerror)


@cache  # once, not for every kernel
def _warn_not_kept(folder: str, reason: str) -> None:
    warnings.warn(
        f"cannot keep compiled code in {folder}: {reason}; the next process will compile it again",
        CompileCacheWarning,
        stacklevel=2,
    )


# Otherwise Numba makes every function callable from C too, for a tenth of the compile time.
NOT_FROM_C: Any = {"no_cfunc_wrapper": True}
helper = extending.register_jitable(**NOT_FROM_C)
overload = partial(extending.overload, jit_options=NOT_FROM_C)
# LLVM inlines these. Numba's own inlining compiles a function twice: by itself, and in place.
inlined_overload = partial(extending.overload, jit_options=NOT_FROM_C | {"forceinline": True})


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel on first use; later processes read it from disk if it can be written."""
    kernel: Any = njit(nogil=True, error_model="numpy", **NOT_FROM_C)(function)
    config: Any = numba_config  # its settings are made at run time
    before = config.CACHE_DIR
    config.CACHE_DIR = str(compiled_dir())
    try:
        kernel._cache = _Cache(function)
    except (RuntimeError, OSError):
        pass
    finally:
        config.CACHE_DIR = before
    return kernel


class _Announcer(event.Listener):
    """Calls a function when Numba starts to compile."""

    def __init__(self, announce: Callable[[], object]) -> None:
        self.announce = announce

    def on_start(self, event: object) -> None:
        self.announce()

    def on_end(self, event: object) -> None:
        pass


@contextmanager
def compilation(on_compile: Callable[[], object]) -> Iterator[None]:
    """Return a context that calls `on_compile` when compilation starts in it, if any.

    One process at a time fills an empty cache; the next ones read the compiled code from there.
    """
    folder = compiled_dir()
    with ExitStack() as stack:
        stack.enter_context(event.install_listener("numba:compile", _Announcer(cache(on_compile))))
        if sys.platform != "win32" and not any(folder.rglob("*.nbi")):
            with suppress(OSError):  # nothing can be written, or locked
                folder.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((folder / "lock").open("ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
