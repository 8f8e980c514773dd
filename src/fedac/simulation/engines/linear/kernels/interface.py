# SPDX-License-Identifier: Apache-2.0
"""Between the engine and its kernels: how kernels are compiled and kept, and their arguments."""

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
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import config as numba_config
from numba import extending, njit
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile

from fedac.errors import CompileCacheWarning
from fedac.paths import cache_dir, is_network
from fedac.validate import Array

if sys.platform != "win32":
    import fcntl

# All files whose text ends up in compiled code.
SOURCES = (
    "federation/sampling.py",
    "federation/compression.py",
    "objectives/losses.py",
    *(
        f"simulation/engines/linear/kernels/{name}.py"
        for name in ("classes", "client_rounds", "interface", "losses", "rows", "simd", "steps")
    ),
)


@cache
def compiled_dir() -> Path:
    """Return the folder of compiled code, named after a hash of all sources.

    Numba itself checks the kernel's file only, and would keep using code that was compiled with
    older versions of its imports.
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
        try:
            return super().load_overload(signature, target)
        except Exception:  # a damaged file may raise anything
            for file in Path(self._cache_path).glob(f"{self._base}.*"):
                with suppress(OSError):
                    file.unlink()
            return None

    def save_overload(self, signature: Any, compiled_code: Any) -> None:
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


def by_type(choose: Callable[..., Any], *, inline: bool = False) -> Callable[..., Any]:
    """Make a function for kernels from one that returns its code for arguments of some types.

    With `inline`, LLVM inlines it. Numba's own inlining compiles a function twice: by itself, and
    in place.
    """

    @wraps(choose)
    def function(*_: object) -> Any:
        raise NotImplementedError("compiled only")

    extending.overload(function, jit_options=NOT_FROM_C | {"forceinline": inline})(choose)
    return function


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
    def __init__(self, announce: Callable[[], object]) -> None:
        self.announce = announce

    def on_start(self, event: object) -> None:
        self.announce()

    def on_end(self, event: object) -> None:
        pass


@contextmanager
def _compilation(on_compile: Callable[[], object]) -> Iterator[None]:
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


def compile_interruptibly(work: Callable[[], object], on_compile: Callable[[], object]) -> None:
    """Run work that may compile, in another thread, and wait for it.

    Compiling spends seconds inside LLVM, where no Python signal handler runs. The calling thread
    only waits, so Ctrl-C ends this call at once; the other thread finishes what it compiles.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with _compilation(on_compile):
                work()
        except BaseException as error:
            errors.append(error)

    compiler = threading.Thread(target=run, daemon=True, name="fedac-compiler")
    compiler.start()
    try:
        while compiler.is_alive():  # on Windows, Ctrl-C waits for the end of a join
            compiler.join(0.2)
    except KeyboardInterrupt:
        atexit.register(_exit_at_once, compiler)
        raise
    if errors:
        raise errors[0]


def _exit_at_once(compiler: threading.Thread) -> None:
    """End the process if the interrupted compiler is still inside LLVM.

    An ordinary exit would destroy LLVM's data while it is in use, and crash.
    """
    if compiler.is_alive():
        atexit.unregister(_exit_at_once)
        atexit._run_exitfuncs()  # of other modules
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # it may be closed
                stream.flush()
        os._exit(130)


# --- The arguments of kernels: named tuples, which Numba understands ----------------------------
# Kernels unpack them first: reading an array from a tuple inside a loop would count a reference in
# every pass.


class Rows(NamedTuple):
    """A linear model's data, the same in every round."""

    data: tuple[npt.NDArray[Any], ...]
    """``(indptr, indices)`` for rows of ones, ``(indptr, indices, values)``, or ``(X,)``."""
    y: npt.NDArray[np.floating[Any]]
    offsets: npt.NDArray[np.floating[Any]]
    """``center . x_i`` by row and class, flat; empty if the l2 term is centered at zero."""
    loss: tuple[int, ...]
    """One of `fedac.objectives.losses`, a user's (`losses.Custom`), or `losses.Softmax`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The precision of the workers' states."""
        return self.y.dtype

    @property
    def dense(self) -> bool:
        """Whether rows are dense."""
        return len(self.data) == 1

    @property
    def outputs(self) -> int:
        """How many margins a row has: the number of classes in softmax regression, else one."""
        return getattr(self.loss, "classes", 1)

    @property
    def touched_per_row(self) -> float:
        """How many coordinates of the state a row touches on average."""
        return self.data[-1].size * self.outputs / len(self.y)


NOTHING, NO_NUMBERS, NO_FLAGS = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_)


class Draws(NamedTuple):
    """The participants of a round and their draws; rows are sorted by client."""

    seed: np.uint64
    n: int  # rows of the data
    r: int  # the number of the round
    t: int  # its first step, from which rows are drawn
    gap: int  # how many steps it has; if clients differ, the most of any client
    batch: int  # rows per step; 0: all rows of the client
    taking_part: int  # number of participants
    members: npt.NDArray[np.int64]
    """Their ids, ascending; empty if all clients participate. A client may be there twice."""
    bounds: npt.NDArray[np.int64]
    """The rows of client m are bounds[m] to bounds[m + 1]; empty if every client has all rows."""
    weighted: bool  # whether clients count by their rows
    queries: int  # rows that all participants draw together
    epochs: int = 0  # passes of a client through its rows, in random order; 0: with replacement
    kinds: npt.NDArray[np.int64] = NOTHING
    """By place among the participants, if they take different numbers of steps: which of `lengths`
    each takes."""
    lengths: npt.NDArray[np.int64] = NOTHING
    numbers: npt.NDArray[np.int64] = NOTHING
    """By place: the round whose random numbers each has; empty if that is `r` for all."""
    firsts: npt.NDArray[np.int64] = NOTHING
    """By place: its first step, from which each draws rows; empty if that is `t` for all."""

    def client_ids(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the ids of some clients, given by their places among the participants."""
        return self.members[first:last] if self.members.size else np.arange(first, last)

    def rows_held(self) -> npt.NDArray[np.int64]:
        """Return how many rows each participant holds."""
        if not self.bounds.size:
            return np.full(self.taking_part, self.n)
        m = self.client_ids(0, self.taking_part)
        return self.bounds[m + 1] - self.bounds[m]

    def weights(self) -> Array:
        """Return how much each participant counts."""
        return self.rows_held().astype(np.float64) if self.weighted else np.ones(self.taking_part)

    def total_weight(self) -> float:
        """Return the sum of all weights."""
        return float(self.rows_held().sum() if self.weighted else self.taking_part)


class Tables(NamedTuple):
    """An algorithm's coefficients for a round of some length (see `coefficients.py`).

    Arrays end in (sequence, lane) like a state; for the kernels they are padded and flat.
    """

    q: npt.NDArray[Any]  # c' A^t by step, t counted from the last fold, shape (gap, S, V)
    r: npt.NDArray[Any]  # A^-(t+1) b by step, of the same shape
    e: npt.NDArray[Any]
    """If the l2 term is centered at a point u: the multiple of u in the query point by step, shape
    (gap, V)."""
    fold_after: npt.NDArray[np.bool_]  # whether Y is folded at this step, before its row is added
    folds: npt.NDArray[Any]
    """``A^L`` by fold, column by column (S numbers per lane), shape (folds, S, S, V)."""


class Closing(NamedTuple):
    """How the averaged Y of a round becomes the state after it; arrays end in (sequence, lane)."""

    to_base: Array  # matrices from the broadcast state to where an idle worker's Y ends
    to_state: Array  # matrices from there to the state at the end of the round
    constant: Array  # the multiples of the center of the l2 term in the state


class Received(NamedTuple):
    """What workers have received that did not all start from the last version."""

    sent: npt.NDArray[Any]  # sequences of several versions, one after the other
    versions: npt.NDArray[np.int64] = NOTHING
    """By place among the participants: which of them each worker has; empty if there is one."""
    scales: Array = NO_NUMBERS  # by place: how much of its move counts; empty if all of it


class LocalRound(NamedTuple):
    """One round of local steps."""

    draws: Draws
    tables: Tables
    start: npt.NDArray[Any]  # where all workers start, or one start for each version
    base: npt.NDArray[Any]  # where a worker that never moves ends, likewise
    margins: npt.NDArray[Any]
    """Every row times the start, shape (n, C W); no rows unless moves are collected by row."""
    row_steps: npt.NDArray[np.float64]
    """The multiples of every row that each strand has added, shape (strands, n, C W)."""
    collect: int  # how the workers' moves are collected (see `steps.py`)
    versions: npt.NDArray[np.int64] = NOTHING  # as in `Received`
    scales: Array = NO_NUMBERS


class Combinations(NamedTuple):
    """Linear combinations of vectors, with coefficients by lane."""

    used: npt.NDArray[
        np.bool_
    ]  # whether any coefficient is not zero, shape (combinations, vectors)
    coefficients: npt.NDArray[Any]  # shape (combinations, vectors, V)


class ClientCoefficients(NamedTuple):
    """How clients enter and leave a round: T vectors travel, P are kept.

    Arrays end in a number per lane; they are padded and flat. If clients take different numbers of
    steps, `enter`, `leave` and `constant` have coefficients for each number, one after the other.
    """

    begin: Combinations  # a client's first memory, from the broadcast
    enter: Combinations  # what it works on, from the broadcast and its memory
    leave: Combinations
    """Its message and next memory, from its last Y, the broadcast, and its memory."""
    constant: npt.NDArray[Any]
    """The multiples of the center of the l2 term in both, shape (T + P, V)."""
    broadcast: npt.NDArray[Any]  # the sequences, shape (versions, d, T, V)
    reference: npt.NDArray[Any]
    """Subtracted from messages, of the same shape: the message of a client without memory that
    takes no step or, if messages are rounded, the point that rounding starts from."""
    center: npt.NDArray[Any]  # the center of the l2 term, shape (d,)
    wire: int  # the format of messages, an index of `fedac.federation.compression.WIRES`
    echoes: npt.NDArray[np.int64]
    """For each memory vector, the message vector whose rounding also applies to it; -1: none."""
    places: npt.NDArray[np.uint64]  # of the vectors in a message; those that are not sent are zeros
    points: npt.NDArray[np.bool_]
    """The message vectors whose squared lengths are summed; empty unless a method asks for it."""
    versions: npt.NDArray[np.int64] = NOTHING
    """By place among the participants: which of several broadcasts, and references, each client
    has received; empty if there is only one."""
    scales: Array = NO_NUMBERS
    """By place: how much of its move counts; empty if all count fully."""
    moving: npt.NDArray[np.bool_] = NO_FLAGS  # the message vectors that scales apply to


class Memories(NamedTuple):
    """What clients keep between their rounds."""

    memory: npt.NDArray[Any]  # by client, shape (N, d P V)
    started: npt.NDArray[np.bool_]  # which clients have a memory already


class Scratch(NamedTuple):
    """The working memory of one task."""

    Y: npt.NDArray[Any]  # a worker's state
    sums: npt.NDArray[Any]  # sums of some workers' moves
    drawn: npt.NDArray[np.uint64]  # the rows that a worker draws in a round
    slopes: npt.NDArray[Any] | tuple[()]
    """The derivatives of the losses of a batch; an empty tuple where a step has only one."""


class DenseBlock(NamedTuple):
    """Some steps of some dense workers: arrays of shape (workers, steps, ...)."""

    P: npt.NDArray[Any]  # each row times the state before the block
    gram: npt.NDArray[Any]  # the rows of a worker times each other
    y: npt.NDArray[Any]
    offsets: npt.NDArray[Any]  # one line per worker
