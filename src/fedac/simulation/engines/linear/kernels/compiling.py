"""How kernels are compiled: without the interpreter's lock, interruptibly, and kept on disk."""

# mypy: disallow-untyped-calls=False, warn-return-any=False
from __future__ import annotations

import atexit
import hashlib
import os
import stat
import sys
import tempfile
import threading
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
    "objectives/loss_functions.py",
    *(
        f"simulation/engines/linear/kernels/{name}.py"
        for name in ("client_rounds", "losses", "simd", "steps", "types")
    ),
)


@cache
def compiled_dir() -> Path:
    """Return where compiled code is kept: in ``$NUMBA_CACHE_DIR`` if set, else in our cache.

    The folder is named after the sources. Numba itself looks at the kernel's own file only, and
    would keep using code that was compiled with an older version of the others.
    """
    package = Path(__file__).parents[4]
    text = b"".join((package / name).read_bytes() for name in SOURCES)
    parent = os.environ.get("NUMBA_CACHE_DIR") or _own_disk(cache_dir() / "compiled")
    return Path(parent) / hashlib.sha256(text).hexdigest()[:16]


def _own_disk(folder: Path) -> Path:
    """Return the folder, or a temporary one if it cannot be written or is not this machine's own.

    Numba's files do not survive that several machines write them at once.
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
    # What is in there will be executed: nobody else may write it.
    safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return private if safe else folder


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one process fill an empty folder; those that wait then read what it compiled."""
    folder = compiled_dir()
    if sys.platform == "win32" or any(folder.rglob("*.nbi")):
        yield
        return
    with ExitStack() as stack:
        with suppress(OSError):  # nothing can be written, or locked
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / "lock").open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
    """Numba's cache of one function, which survives damaged files and full disks."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._base = self._impl.filename_base
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _CheckedFiles(self._cache_path, self._base, stamp)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return compiled code, or None if there is none that can be used."""
        try:
            return super().load_overload(signature, target)
        except Exception:  # a damaged file may raise anything
            for file in Path(self._cache_path).glob(f"{self._base}.*"):
                with suppress(OSError):
                    file.unlink()
            return None

    def save_overload(self, signature: Any, compiled_code: Any) -> None:
        """Keep compiled code if the disk allows it."""
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


# Else Numba makes every function callable from C too, for a tenth of the time to compile.
NOT_FROM_C: Any = {"no_cfunc_wrapper": True}
helper = extending.register_jitable(**NOT_FROM_C)
overload = partial(extending.overload, jit_options=NOT_FROM_C)
# LLVM inlines these. Numba's own inlining compiles a function twice: by itself, and in place.
inlined_overload = partial(extending.overload, jit_options=NOT_FROM_C | {"forceinline": True})


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel on first use; later processes read it from disk.

    Where nothing can be written, every process compiles for itself.
    """
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


def run_interruptibly(work: Callable[[], object], on_compile: Callable[[], object]) -> None:
    """Run work that may compile, in another thread, and wait for it.

    Compiling spends seconds inside LLVM, where no Python signal handler runs. The calling thread
    only waits, so Ctrl-C ends this call at once; the other thread finishes what it compiles. It
    calls `on_compile` when the first compilation starts.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            announcer = _Announcer(cache(on_compile))
            with _one_at_a_time(), event.install_listener("numba:compile", announcer):
                work()
        except BaseException as error:
            errors.append(error)

    compiler = threading.Thread(target=run, daemon=True, name="fedac-compiler")
    compiler.start()
    try:
        compiler.join()
    except KeyboardInterrupt:
        atexit.register(_leave_at_once, compiler)
        raise
    if errors:
        raise errors[0]


def _leave_at_once(compiler: threading.Thread) -> None:
    """End the process if the interrupted compiler is still inside LLVM.

    An ordinary exit would destroy LLVM's data while they are in use, and crash.
    """
    if compiler.is_alive():
        atexit.unregister(_leave_at_once)
        atexit._run_exitfuncs()  # those of others
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # it may be closed
                stream.flush()
        os._exit(130)
