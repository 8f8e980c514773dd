"""What the server asks a client to do in one round.

An algorithm travels as numbers: the coefficients of its local step, and of how a client enters and
leaves a round. So a client needs no record of it, and a record of your own works like a built-in
one. Code never travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import output_counts_steps
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.linear import Boundary, Linear, Rows, boundary_form, from_linear, linear_form
from fedac.errors import InputError
from fedac.federation.compression import FLOAT32, require_wire
from fedac.flower._client.labels import Label

COUNTS = ("round", "first_step", "local_steps", "seed")
# Coefficients of the boundary have the names of its fields with this prefix.
BOUNDARY, SLOPE = "boundary_", "slope_"


@dataclass(frozen=True, kw_only=True)
class Task:
    """The part of one client in one round.

    Attributes
    ----------
    algorithm : Algorithm
        Whose `query` and `update` to call. On a client it is rebuilt from coefficients and its
        sequences are what the client works on.
    hp : Hyperparameters
        What `query` and `update` need.
    round : int
        The round, from 1 on.
    local_steps : int
        K.
    seed : int
        The seed of the draws of all clients.
    first_step : int
        t of the first local step; the first step of the run is 0.
    boundary : Boundary or None
        On a client, how to enter and leave the round; None if it works on what was sent.
    sequences : tuple of str
        With a boundary, the names of what is sent.
    memory : tuple of str
        With a boundary, the names of what the client remembers.
    label : Label or None
        Which memory to use, if the algorithm has one.
    wire : str
        How the client's message travels (`fedac.wire`).
    wire_seed : int
        The seed of its draws.
    changes, echoes : tuples
        On a client, those of the algorithm.
    exact : bool
        On a client, whether the output counts local steps, so that there must be `local_steps`.

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
    boundary: Boundary | None = None
    sequences: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    label: Label | None = None
    wire: str = FLOAT32
    wire_seed: int = 0
    changes: tuple[str, ...] = ()
    echoes: tuple[tuple[str, str], ...] = ()
    exact: bool = False

    @property
    def messenger(self) -> Algorithm:
        """On a client, a record of what is sent and remembered, for `fedac.wire`."""
        return replace(
            self.algorithm,
            sequences=self.sequences or self.algorithm.sequences,
            memory=self.memory,
            changes=self.changes,
            echoes=self.echoes,
        )

    def require_steps(self, steps: int) -> None:
        """Refuse a number of local steps that the algorithm cannot have."""
        if self.exact and steps != self.local_steps:
            raise InputError(
                f"the output of '{self.algorithm.name}' counts local steps: a client must take "
                f"the strategy's local_steps={self.local_steps}, not {steps}"
            )

    def to_record(self) -> ConfigRecord:
        """Return the task of an algorithm as a record of numbers and names, without a label."""
        algorithm, hp = self.algorithm, self.hp
        step = linear_form(algorithm, hp)
        sequences, _ = algorithm.split(algorithm.start(1.0))
        start = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
        record = {
            "algorithm": algorithm.name,
            "start": [float(value) for value in start],
            "query": list(step.query),
            "update": _flat(step.update),
            "eta": float(hp.eta),
            **{name: getattr(self, name) for name in COUNTS},
        }
        if output_counts_steps(algorithm, hp):
            record["exact"] = True
        if self.wire != FLOAT32:
            record |= {"wire": self.wire, "wire_seed": self.wire_seed}
        if self.wire != FLOAT32 or algorithm.changes:
            record |= {
                "changes": list(algorithm.changes),
                "echoes": [name for pair in algorithm.echoes for name in pair],
            }
        if algorithm.is_plain:
            return ConfigRecord({"sequences": list(algorithm.sequences), **record})
        # Without "sequences": a client that knows nothing of boundaries says that it is missing.
        boundary = boundary_form(algorithm, hp, self.local_steps)
        return ConfigRecord(
            {
                **record,
                "local": list(algorithm.local_sequences),
                "sent": list(algorithm.sequences),
                "memory": list(algorithm.memory),
                **{f"{BOUNDARY}{name}": _flat(rows) for name, rows in _matrices(boundary).items()},
            }
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Task:
        """Read a task, or say what is missing in its record."""
        if "algorithm" not in record:
            raise InputError(
                "the server's strategy is none of fedac.flower, whose messages this client needs: "
                "use fedac.flower.FedAvg(eta=..., local_steps=...), FedAc or LocalStrategy on the "
                "server, in place of Flower's own"
            )
        try:
            plain, exact = "local" not in record, record.get("exact", False)
            local = tuple(record["sequences" if plain else "local"])
            hp = Hyperparameters(eta=record["eta"])
            step = Linear(tuple(record["query"]), _rows(record["update"], len(local)))
            return cls(
                algorithm=from_linear(
                    record["algorithm"],
                    local,
                    record["start"],
                    step,
                    eta=hp.eta,
                    scales=plain and not exact,
                ),
                hp=hp,
                exact=exact,
                **{name: record[name] for name in COUNTS},
                **({} if plain else _crossing(record, len(local))),
                **_sending(record),
            )
        except KeyError as missing:
            raise InputError(
                f"the server's message has no {missing}: does the server use the same version of "
                "fedac as this client?"
            ) from None


def _crossing(record: Mapping[str, Any], local: int) -> dict[str, Any]:
    """Read what a task has beyond the local step."""
    sent, memory = tuple(record["sent"]), tuple(record["memory"])
    counts = {"first_memory": len(memory), "enter": local, "message": len(sent)}
    counts |= {"memory": len(memory)}
    rows: dict[str, Any] = {
        name: _rows(record[f"{BOUNDARY}{name}"], count) for name, count in counts.items()
    }
    # Servers of before, and algorithms that leave otherwise, have none.
    for name in ("message", "memory"):
        slope = record.get(f"{BOUNDARY}{SLOPE}{name}")
        rows[f"{SLOPE}{name}"] = None if slope is None else _rows(slope, counts[name])
    return {
        "boundary": Boundary(**rows, steps=record["local_steps"]),
        "sequences": sent,
        "memory": memory,
        "label": Label.from_record(record),
    }


def _matrices(boundary: Boundary) -> dict[str, Rows]:
    """Return the coefficients of a boundary by name; those that it has."""
    found = {f.name: getattr(boundary, f.name) for f in fields(boundary) if f.name != "steps"}
    return {name: rows for name, rows in found.items() if rows is not None}


def _sending(record: Mapping[str, Any]) -> dict[str, Any]:
    """Read what a task says about the message."""
    names = record.get("echoes", ())
    return {
        "wire": require_wire(record.get("wire", FLOAT32)),
        "wire_seed": record.get("wire_seed", 0),
        "changes": tuple(record.get("changes", ())),
        "echoes": tuple(zip(names[::2], names[1::2], strict=True)),
    }


def _flat(rows: Sequence[Sequence[float]]) -> list[float]:
    return [number for row in rows for number in row]


def _rows(numbers: Sequence[float], count: int) -> Rows:
    if not count:
        return ()
    return tuple(map(tuple, np.reshape(numbers, (count, -1)).tolist()))
