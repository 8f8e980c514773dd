"""What the server asks a client to do in one round.

An algorithm travels as numbers: the coefficients of its local step, and of how a client enters and
leaves a round. So a client needs no definition of it, and your own algorithm works like a built-in
one. Code never travels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MessageType

from fedac.algorithms import Algorithm
from fedac.algorithms.algorithm import enter_whole, leave_whole
from fedac.algorithms.checks import output_counts_steps
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.linear import (
    Boundary,
    Linear,
    Rows,
    boundary_form,
    from_linear,
    linear_form,
    with_boundary,
)
from fedac.errors import InputError
from fedac.federation.compression import FLOAT32, require_wire

# Names of the records of a message, and of entries in them.
ARRAYS, CONFIG, MEMORY, METRICS = "arrays", "config", "memory", "metrics"
ROUND, WEIGHT = "server-round", "num-examples"
# A task is in the one ConfigRecord of a message, with this prefix before the names of its entries,
# next to the user's entries: Flower's modifiers expect no other.
TASK = "fedac/"

# The server asks for a client's id in a message of this type, whose ConfigRecord has the entry ASK.
# The reply has the id, as a string, under CLIENT in a ConfigRecord of that name and, if EXAMPLES is
# true, the number of examples under WEIGHT.
QUESTION = f"{MessageType.QUERY}.fedac"
ASK, EXAMPLES = f"{TASK}ask", f"{TASK}examples"
CLIENT = "client"

COUNTS = ("round", "first_step", "local_steps", "seed")
BOUNDARY = "boundary_"  # before the names of the boundary's coefficients
RUN = re.compile(r"[0-9a-f]{16}")  # it becomes part of a file's name on the client


@dataclass(frozen=True)
class MemoryVersion:
    """Which memory a client should use: that of its last reply which the server used.

    A reply may be lost, late or dropped after the client has updated its memory. So each memory has
    a version, the run and the round that made it, and the server says which one it knows of.

    Attributes
    ----------
    run : str
        The server's run.
    round : int
        The round of this client's last reply that was used; 0 if there is none.
    weight : float
        The number of examples of that reply; 0 if all clients count the same.
    """

    run: str
    round: int
    weight: float = 0.0

    def to_record(self) -> dict[str, Any]:
        """Return the entries of a task's record."""
        return {
            "memory_run": self.run,
            "memory_round": self.round,
            "memory_weight": float(self.weight),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> MemoryVersion | None:
        """Read the entries of a task's record, if they are there."""
        if "memory_run" not in record:
            return None
        run = record["memory_run"]
        if not (isinstance(run, str) and RUN.fullmatch(run)):
            raise InputError(f"the server's run must be 16 hexadecimal digits, got {run!r:.40}")
        return cls(run, int(record["memory_round"]), float(record["memory_weight"]))


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one client does in one round.

    Attributes
    ----------
    algorithm : Algorithm
        The algorithm. On a client it is rebuilt from coefficients.
    hp : Hyperparameters
        Its hyperparameters.
    round : int
        The round, from 1 on.
    local_steps : int
        K.
    seed : int
        The seed of all clients' draws.
    first_step : int
        t of the first local step; the first step of the run is 0.
    memory_version : MemoryVersion or None
        Which memory to use, if the algorithm has one.
    wire : str
        How the client's message travels: "float32", "bfloat16" or "int8".
    wire_seed : int
        The seed of its rounding.
    exact : bool
        On a client, whether it must take exactly `local_steps`, because the output counts them.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=8)
    >>> task = Task(algorithm=FEDAVG, hp=hp, round=2, first_step=8, local_steps=8, seed=1)
    >>> received = Task.from_record(task.to_record())
    >>> received.algorithm.update((3.0,), 3.0, 2.0, received.hp)
    (2.0,)
    """

    algorithm: Algorithm
    hp: Hyperparameters
    round: int
    first_step: int
    local_steps: int
    seed: int
    memory_version: MemoryVersion | None = None
    wire: str = FLOAT32
    wire_seed: int = 0
    exact: bool = False

    @property
    def local_algorithm(self) -> Algorithm:
        """The local steps alone, as an algorithm whose sequences are what a client works on."""
        return replace(
            self.algorithm,
            sequences=self.algorithm.local_sequences,
            local=(),
            memory=(),
            changes=(),
            echoes=(),
            enter=enter_whole,
            leave=leave_whole,
            first_memory=None,
        )

    def require_steps(self, steps: int) -> None:
        """Refuse a number of local steps that the algorithm does not allow."""
        if self.exact and steps != self.local_steps:
            raise InputError(
                f"the output of '{self.algorithm.name}' counts local steps: a client must take "
                f"the strategy's local_steps={self.local_steps}, not {steps}"
            )

    def to_record(self) -> ConfigRecord:
        """Return the task as a record of numbers and names, without the memory's version."""
        algorithm, hp = self.algorithm, self.hp
        step = linear_form(algorithm, hp)
        sequences, _ = algorithm.split(algorithm.start(1.0))
        start = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
        record: dict[str, Any] = {
            "algorithm": algorithm.name,
            "sequences": list(algorithm.sequences),
            "local": list(algorithm.local_sequences),
            "memory": list(algorithm.memory),
            "changes": list(algorithm.changes),
            "echoes": [name for pair in algorithm.echoes for name in pair],
            "start": [float(value) for value in start],
            "query": list(step.query),
            "update": _flat(step.update),
            "eta": float(hp.eta),
            "exact": output_counts_steps(algorithm, hp),
            "wire": self.wire,
            "wire_seed": self.wire_seed,
            **{name: getattr(self, name) for name in COUNTS},
        }
        if not algorithm.is_plain:
            boundary = boundary_form(algorithm, hp, self.local_steps)
            rows = {f.name: getattr(boundary, f.name) for f in fields(boundary)}
            del rows["steps"]
            record |= {f"{BOUNDARY}{k}": _flat(v) for k, v in rows.items() if v is not None}
        # Flower's message_size_mod fails on empty lists.
        return ConfigRecord({name: value for name, value in record.items() if value != []})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Task:
        """Read a task, or say what is missing in its record."""
        if "algorithm" not in record:
            raise InputError(
                "the server's strategy is not one of fedac.flower, whose messages this client "
                "needs: on the server, replace Flower's strategy by "
                "fedac.flower.FedAvg(eta=..., local_steps=...), FedAc or LocalStrategy"
            )
        try:
            return cls(
                algorithm=_rebuild(record),
                hp=Hyperparameters(eta=record["eta"]),
                memory_version=MemoryVersion.from_record(record),
                wire=require_wire(record["wire"]),
                wire_seed=record["wire_seed"],
                exact=record["exact"],
                **{name: record[name] for name in COUNTS},
            )
        except KeyError as missing:
            raise InputError(
                f"the server's message has no {missing}: does the server use the same version of "
                "fedac as this client?"
            ) from None


def with_task(config: Mapping[str, Any], task: Mapping[str, Any]) -> ConfigRecord:
    """Return the user's entries and those of a task as one record.

    >>> split_config(with_task({"lr": 0.1}, {"local_steps": 4}))
    ({'lr': 0.1}, {'local_steps': 4})
    """
    return ConfigRecord({**config, **{f"{TASK}{name}": value for name, value in task.items()}})


def split_config(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the user's entries, and those of the task."""
    own = {name: value for name, value in record.items() if not name.startswith(TASK)}
    task = {name.removeprefix(TASK): record[name] for name in record if name not in own}
    return own, task


def _rebuild(record: Mapping[str, Any]) -> Algorithm:
    """Return an algorithm for a client, made of the coefficients of a task."""
    sequences, local = tuple(record["sequences"]), tuple(record["local"])
    memory = tuple(record.get("memory", ()))
    plain = f"{BOUNDARY}message" not in record
    steps = from_linear(
        record["algorithm"],
        local,
        record["start"],
        Linear(tuple(record["query"]), _rows(record["update"], len(local))),
        eta=record["eta"],
        scales=plain and not record["exact"],
    )
    if plain:
        return steps
    counts = {"first_memory": len(memory), "enter": len(local)}
    counts |= {"message": len(sequences), "memory": len(memory)}
    rows: dict[str, Any] = {"slope_message": None, "slope_memory": None}
    if f"{BOUNDARY}slope_message" in record:  # else leaving is known for `local_steps` only
        counts |= {"slope_message": len(sequences), "slope_memory": len(memory)}
    for name, count in counts.items():
        rows[name] = _rows(record[f"{BOUNDARY}{name}"], count) if count else ()
    echoes = record.get("echoes", ())
    return with_boundary(
        steps,
        Boundary(**rows, steps=record["local_steps"]),
        sequences=sequences,
        memory=memory,
        changes=tuple(record.get("changes", ())),
        echoes=tuple(zip(echoes[::2], echoes[1::2], strict=True)),
    )


def _flat(rows: Sequence[Sequence[float]]) -> list[float]:
    return [number for row in rows for number in row]


def _rows(numbers: Sequence[float], count: int) -> Rows:
    return tuple(map(tuple, np.reshape(numbers, (count, -1)).tolist()))
