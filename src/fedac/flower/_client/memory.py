"""A client's memory: what its algorithm keeps from one of its rounds to the next.

It is kept in Flower's context, which lasts as long as the run and the node and, if there is a
folder, also in files. The client keeps two versions (`fedac.flower._task.MemoryVersion`): the one
that the server knows of, and the new one, whose reply the server may never use.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import ArrayRecord, RecordDict

from fedac.errors import InputError
from fedac.federation.checkpoint import Envelope
from fedac.flower._arrays import (
    BadArraysError,
    NamedArrays,
    NDArray,
    read_archive,
    read_like,
    to_record,
    write_archive,
)

log = logging.getLogger("flwr.fedac")

ENVELOPE = Envelope(package="fedac.flower memory", version=1)
STATE = "fedac-memory"


class ClientMemory:
    """The memory of one client, in ``context.state`` and optionally in the files of a folder.

    Examples
    --------
    >>> import numpy as np
    >>> memory, run = ClientMemory(RecordDict(), client=0), "0" * 16
    >>> memory.keep(run, 1, {"c_m/0": np.ones(2)}, before=None)
    >>> memory.keep(run, 2, {"c_m/0": np.zeros(2)}, before=1)
    >>> memory.find(run, 1, like={"c_m/0": np.zeros(2)})  # the reply of round 2 was lost
    {'c_m/0': array([1., 1.])}
    """

    def __init__(self, state: RecordDict, client: int, folder: str | Path | None = None) -> None:
        self.state, self.client = state, client
        self.folder = None if folder is None else Path(folder)

    def find(self, run: str, made_in: int, like: NamedArrays) -> dict[str, NDArray] | None:
        """Return the memory that a round made, or None if it is lost.

        It must have the keys, shapes and types of `like`, and be finite.
        """
        problems = []
        for read in (self._from_state, self._from_file):
            try:
                return read_like(read(run, made_in), like)
            except (BadArraysError, InputError) as problem:
                problems.append(str(problem))
        log.warning(
            "client %d: its memory of round %d is lost, so it starts again: %s",
            self.client, made_in, "; ".join(problems),
        )  # fmt: skip
        return None

    def keep(self, run: str, made_in: int, arrays: NamedArrays, *, before: int | None) -> None:
        """Keep the memory that a round made and the one before it; delete older ones.

        Files of other runs stay: two runs may share a folder.
        """
        stay = {self._key(run, number) for number in (made_in, before) if number is not None}
        for key in [key for key in self.state if key.startswith(f"{STATE}/") and key not in stay]:
            del self.state[key]
        self.state[self._key(run, made_in)] = to_record(arrays)
        if self.folder is None:
            return
        try:
            header = {"client": self.client, "run": run, "round": made_in}
            write_archive(ENVELOPE, self._path(self.folder, run, made_in), header, arrays)
            # A slow process may write the file of an earlier round later: it stays unused.
            for path in self.folder.glob(f"client-{self.client}-{run}-*.npz"):
                number = path.stem.rpartition("-")[2]
                if number.isdigit() and int(number) < (before or made_in):
                    path.unlink(missing_ok=True)
        except OSError as error:  # the context has it, as long as the run lasts
            log.warning("client %d: cannot save its memory: %s", self.client, error)

    def _from_state(self, run: str, made_in: int) -> ArrayRecord:
        record = self.state.array_records.get(self._key(run, made_in))
        if record is None:
            raise BadArraysError("it is not in the context of this run")
        return record

    def _from_file(self, run: str, made_in: int) -> ArrayRecord:
        if self.folder is None:
            raise BadArraysError("there is no memory_folder")
        path = self._path(self.folder, run, made_in)
        header, arrays = read_archive(ENVELOPE, path)
        if (header.get("run"), header.get("round")) != (run, made_in):
            raise BadArraysError(f"'{path}' is of another round")
        return to_record(arrays)

    def _key(self, run: str, number: int) -> str:
        return f"{STATE}/{run}/{number}"

    def _path(self, folder: Path, run: str, number: int) -> Path:
        return folder / f"client-{self.client}-{run}-{number}.npz"
