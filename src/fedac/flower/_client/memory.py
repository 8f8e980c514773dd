"""A client's memory: what it keeps from one of its rounds to the next.

It is kept in Flower's context, which lasts as long as a run and its node do, and if there is a
folder also in files. A memory has a label, the run and the round that made it. The client keeps two
of them: the one that the server knows of, and the new one, whose reply the server may never use.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord, RecordDict

from fedac.errors import InputError
from fedac.federation.checkpoint import Envelope
from fedac.flower._arrays import NamedArrays, NDArray, to_record
from fedac.flower._server.checkpoint import read_archive, write_archive
from fedac.flower._server.replies import BadArraysError, read_like

log = logging.getLogger("flwr.fedac")

ENVELOPE = Envelope(package="fedac.flower memory", version=1, oldest=1)
STATE = "fedac-memory"


@dataclass
class ClientMemory:
    """The memory of one client.

    Parameters
    ----------
    state : RecordDict
        ``context.state``, which Flower keeps.
    client : int
        The client's number.
    folder : Path, optional
        Where to keep files as well.

    Examples
    --------
    >>> import numpy as np
    >>> memory, run = ClientMemory(RecordDict(), client=0), "0" * 16
    >>> memory.keep(run, 1, {"c_m/0": np.ones(2)}, before=None)
    >>> memory.keep(run, 2, {"c_m/0": np.zeros(2)}, before=1)
    >>> memory.find(run, 1, like={"c_m/0": np.zeros(2)})  # the reply of round 2 was lost
    {'c_m/0': array([1., 1.])}
    """

    state: RecordDict
    client: int
    folder: Path | None = None

    def find(self, run: str, made_in: int, like: NamedArrays) -> dict[str, NDArray] | None:
        """Return the memory that a round made, or None if it is lost.

        It must have the names, shapes and types of `like`, and be finite.
        """
        problems = []
        for read in (self._from_state, self._from_file):
            try:
                return read_like(read(run, made_in), like)
            except (BadArraysError, InputError) as problem:
                problems.append(str(problem))
        log.warning(
            "client %d: its memory of round %d is lost, it begins anew: %s",
            self.client, made_in, "; ".join(problems),
        )  # fmt: skip
        return None

    def keep(self, run: str, made_in: int, arrays: NamedArrays, *, before: int | None) -> None:
        """Keep what a round made, and what was there before it; forget older ones.

        Files of other runs stay: two runs may share a folder.
        """
        record, kept = to_record(arrays), {made_in, before}
        stay = {self._key(run, number) for number in kept if number is not None}
        for key in [key for key in self.state if key.startswith(f"{STATE}/") and key not in stay]:
            del self.state[key]
        self.state[self._key(run, made_in)] = record
        if self.folder is None:
            return
        try:
            header = {"client": self.client, "run": run, "round": made_in}
            write_archive(ENVELOPE, self._path(self.folder, run, made_in), header, arrays)
            self._forget_files(self.folder, run, older_than=before or made_in)
        except OSError as error:  # the context has it, for as long as the run lasts
            log.warning("client %d: cannot keep its memory: %s", self.client, error)

    def _from_state(self, run: str, made_in: int) -> ArrayRecord:
        record = self.state.array_records.get(self._key(run, made_in))
        if record is None:
            raise BadArraysError("it is not in the context of this run")
        return record

    def _from_file(self, run: str, made_in: int) -> ArrayRecord:
        if self.folder is None:
            raise BadArraysError("there is no memory_folder")
        path = self._path(self.folder, run, made_in)
        header, arrays = ENVELOPE.read(path, lambda file: read_archive(ENVELOPE, file))
        if (header.get("run"), header.get("round")) != (run, made_in):
            raise BadArraysError(f"'{path}' is of another round")
        return to_record(arrays)

    def _forget_files(self, folder: Path, run: str, *, older_than: int) -> None:
        """Delete files of this run that the server cannot ask for any more.

        A slow process may still write the file of an earlier round: it does no harm.
        """
        for path in folder.glob(f"client-{self.client}-{run}-*.npz"):
            number = path.stem.rpartition("-")[2]
            if number.isdigit() and int(number) < older_than:
                path.unlink(missing_ok=True)

    def _key(self, run: str, number: int) -> str:
        return f"{STATE}/{run}/{number}"

    def _path(self, folder: Path, run: str, number: int) -> Path:
        return folder / f"client-{self.client}-{run}-{number}.npz"
