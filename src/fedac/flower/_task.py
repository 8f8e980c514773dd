# SPDX-License-Identifier: Apache-2.0
"""What the server asks a client to do in one round.

An algorithm travels as numbers: the coefficients of its local step, and of how a client enters and
leaves a round. So a client needs no definition of it, and your own algorithm works like a built-in
one. Code never travels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from flwr.app import Message, MessageType

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import output_counts_steps
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.linear import (
    Boundary,
    Linear,
    boundary_form,
    from_linear,
    linear_form,
    with_boundary,
)
from fedac.errors import InputError
from fedac.federation.compression import FLOAT32, require_wire
from fedac.flower._arrays import NDArray, from_record

# Names of the records of a message, and of entries in them.
ARRAYS, CONFIG, MEMORY, METRICS = "arrays", "config", "memory", "metrics"
ROUND, WEIGHT, STEPS = "server-round", "num-examples", "local-steps"
# A message has one ConfigRecord, because Flower's modifiers allow no other. It holds the user's
# entries, and ours with this prefix.
PREFIX = "fedac/"
TASK = f"{PREFIX}task"

# To learn a client id, the server sends a message of this type. The reply has the id, as a string,
# under CLIENT in a ConfigRecord of that name and, if the entry EXAMPLES of the message's
# ConfigRecord is true, the number of examples under WEIGHT.
QUESTION = f"{MessageType.QUERY}.fedac"
EXAMPLES = f"{PREFIX}examples"
CLIENT = "client"

VECTORS = ("sequences", "memory", "changes", "means", "broadcast_only", "asks")
PAIRS = ("echoes", "pooled")
COUNTS = ("round", "first_step", "local_steps", "makes", "seed", "wire_seed")
RUN = re.compile(r"[0-9a-f]{16}")  # it becomes part of a file's name on the client


@dataclass(frozen=True)
class MemoryVersion:
    """The memory that a client should use: the one of its last reply that the server used.

    The client cannot know which one that is: a reply may be lost, late or dropped.
    """

    run: str
    round: int  # its number, the round that made it; 0: no reply of this client was used yet
    weight: float = 0.0  # number of examples of that reply; 0 if all clients count the same

    def __post_init__(self) -> None:
        if not (isinstance(self.run, str) and RUN.fullmatch(self.run)):
            raise InputError(
                f"the server's run must be 16 hexadecimal digits, got {self.run!r:.40}"
            )


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one client does in one round.

    Attributes
    ----------
    algorithm : Algorithm
        The algorithm. On a client it is rebuilt from coefficients.
    hp : Hyperparameters
        Its hyperparameters.
    round, local_steps : int
        The round, from 1 on, and the number of its local steps, K.
    first_step : int
        t of the first local step; the first step of the run is 0.
    makes : int
        The number of the memory that the client makes. It grows from message to message; in rounds
        it is the round's.
    seed : int
        The seed of all clients' draws.
    memory_version : MemoryVersion or None
        The memory to use, if the algorithm has one.
    wire, wire_seed : str, int
        How the client's message travels ("float32", "bfloat16" or "int8"), and the seed of its
        rounding.
    exact : bool
        On a client, whether it must take exactly `local_steps`, because the output counts them.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=8)
    >>> task = Task(algorithm=FEDAVG, hp=hp, round=2, first_step=8, local_steps=8, seed=1)
    >>> received = Task.from_json(task.to_json())
    >>> received.algorithm.update((3.0,), 3.0, 2.0, received.hp)
    (2.0,)
    """

    algorithm: Algorithm
    hp: Hyperparameters
    round: int
    first_step: int
    local_steps: int
    seed: int
    makes: int = 0
    memory_version: MemoryVersion | None = None
    wire: str = FLOAT32
    wire_seed: int = 0
    exact: bool = False

    @property
    def draws(self) -> int:
        """The number of the round whose random numbers it draws, from 0."""
        return self.first_step // self.local_steps

    @property
    def local_algorithm(self) -> Algorithm:
        """The local steps alone: an algorithm whose sequences are the client's local ones."""
        names = ("name", "label", "couple", "start", "query", "update", "output")
        same: dict[str, Any] = {name: getattr(self.algorithm, name) for name in names}
        return Algorithm(sequences=self.algorithm.local_sequences, **same)

    def require_steps(self, steps: int) -> None:
        """Reject a number of local steps that the algorithm does not allow."""
        if self.exact and steps != self.local_steps:
            raise InputError(
                f"'{self.algorithm.name}' counts local steps: every client must take "
                f"the strategy's local_steps={self.local_steps}, not {steps}"
            )

    def to_json(self) -> str:
        """Return the task as names and numbers."""
        algorithm, hp, version = self.algorithm, self.hp, self.memory_version
        sequences, _ = algorithm.split(algorithm.start(1.0))
        start = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
        boundary = None if algorithm.is_plain else boundary_form(algorithm, hp, self.local_steps)
        content = {
            "algorithm": algorithm.name,
            "local": algorithm.local_sequences,
            "start": [float(value) for value in start],
            "step": asdict(linear_form(algorithm, hp)),
            "boundary": None if boundary is None else asdict(boundary),
            "eta": float(hp.eta),
            "exact": output_counts_steps(algorithm, hp),
            "wire": self.wire,
            "memory_version": None if version is None else asdict(version),
            **{name: getattr(algorithm, name) for name in (*VECTORS, *PAIRS)},
            **{name: getattr(self, name) for name in COUNTS},
        }
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read a task, or raise InputError with what is missing in it."""
        content = json.loads(text)
        try:
            version = content["memory_version"]
            return cls(
                algorithm=_rebuild(content),
                hp=Hyperparameters(eta=content["eta"]),
                memory_version=None if version is None else MemoryVersion(**version),
                wire=require_wire(content["wire"]),
                exact=content["exact"],
                **{name: content[name] for name in COUNTS},
            )
        except KeyError as missing:
            raise InputError(
                f"the server's message has no {missing}: does the server use the same version of "
                "fedac as this client?"
            ) from None


def receive(message: Message) -> tuple[Task, dict[str, Any], dict[str, NDArray]]:
    """Return the task, the user's config entries and the arrays of a message."""
    config: Mapping[str, Any] = message.content.config_records.get(CONFIG, {})
    if TASK not in config:
        raise InputError(
            "the server's strategy is not one of fedac.flower, whose messages this client needs: "
            "on the server, replace Flower's strategy by "
            "fedac.flower.FedAvg(eta=..., local_steps=...), FedAc or LocalStrategy"
        )
    arrays = from_record(message.content.array_records[ARRAYS])
    return Task.from_json(config[TASK]), users_entries(config), arrays


def users_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's entries of a message's config."""
    return {name: value for name, value in config.items() if not name.startswith(PREFIX)}


def _rebuild(content: Mapping[str, Any]) -> Algorithm:
    """Return an algorithm for a client, made of the coefficients of a task."""
    boundary = content["boundary"]
    algorithm = from_linear(
        content["algorithm"],
        tuple(content["local"]),
        content["start"],
        Linear(**content["step"]),
        eta=content["eta"],
        scales=boundary is None and not content["exact"],
    )
    if boundary is None:
        return replace(algorithm, asks=tuple(content["asks"]))
    names = {name: tuple(content[name]) for name in VECTORS}
    names |= {name: tuple(map(tuple, content[name])) for name in PAIRS}
    return with_boundary(algorithm, Boundary(**boundary), **names)
