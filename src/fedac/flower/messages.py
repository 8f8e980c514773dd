"""What travels: every sequence of an algorithm in one ArrayRecord, and the round's orders.

Arrays are keyed ``<sequence>/<name>``: ``w_ag/0`` and ``w/0``, say. A floating-point buffer of
the model (BatchNorm's, say) is keyed ``buffer/<name>`` and travels once, whatever the algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedac.algorithms import Algorithm, fedac, get
from fedac.algorithms.couplings import Hyperparameters
from fedac.errors import InputError
from fedac.flower.aggregate import Array as NumPyArray
from fedac.flower.aggregate import Arrays

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
BUFFER, OUTPUT = "buffer", "output"
ROUND, WEIGHT = "server-round", "num-examples"
LARGEST_SEED = 2**63 - 1  # the largest integer of a ConfigRecord
# Messages outlive their deadline by this many seconds, for clocks that disagree.
CLOCK_SKEW = 60.0
COEFFICIENTS = ("eta", "gamma", "alpha", "beta", "rho")
# What a config holds besides the user's own entries.
OURS = {"algorithm", ROUND, "first-step", "local-steps", "seed", *COEFFICIENTS}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a client is asked to do in one round.

    Attributes
    ----------
    algorithm : str
        The name of the algorithm, as in ``fedac.algorithms.ALGORITHMS``; "fedac" is FedAc with
        coefficients of its own.
    hp : Hyperparameters
        What `query` and `update` need.
    round : int
        From 1 on.
    first_step : int
        t of the first local step; the run's first step is 0.
    local_steps : int
        K.
    seed : int
        Of the draws of all clients.

    Examples
    --------
    >>> hp = FedAcHyperparameters(eta=0.5, gamma=0.5, alpha=1.0, beta=1.0)
    >>> task = Task(algorithm="fedavg", hp=hp, round=2, first_step=8, local_steps=8, seed=1)
    >>> Task.from_config(task.to_config()) == task
    True
    """

    algorithm: str
    hp: Hyperparameters
    round: int
    first_step: int
    local_steps: int
    seed: int

    def to_config(self, also: Mapping[str, object] | None = None) -> ConfigRecord:
        """Return the task as a record, with the user's own entries beside it."""
        mine: dict[str, object] = {
            "algorithm": self.algorithm,
            ROUND: self.round,
            "first-step": self.first_step,
            "local-steps": self.local_steps,
            "seed": self.seed,
        }
        mine |= {name: float(getattr(self.hp, name)) for name in COEFFICIENTS}
        taken = sorted(set(also or ()) & OURS)
        if taken:
            raise InputError(f"the strategy itself sends {', '.join(taken)}; use other names")
        return ConfigRecord({**mine, **(also or {})})  # type: ignore[dict-item]

    @staticmethod
    def not_ours(config: Mapping[str, object]) -> dict[str, object]:
        """Return the user's own entries of a message's config.

        Examples
        --------
        >>> Task.not_ours({"seed": 1, "eta": 0.5, "server-round": 2, "mine": 7})
        {'mine': 7}
        """
        return {name: value for name, value in config.items() if name not in OURS}

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Task:
        """Read a task, or say what its record lacks."""
        try:
            return cls(
                algorithm=str(config["algorithm"]),
                hp=Hyperparameters(**{name: _number(config[name]) for name in COEFFICIENTS}),
                round=_whole(config[ROUND]),
                first_step=_whole(config["first-step"]),
                local_steps=_whole(config["local-steps"]),
                seed=_whole(config["seed"]),
            )
        except KeyError as error:
            raise InputError(
                f"the message's config lacks {error}: is the strategy one of fedac.flower?"
            ) from None

    def get_algorithm(self) -> Algorithm:
        """Return the algorithm of that name."""
        if self.algorithm == "fedac":
            return fedac(gamma=self.hp.gamma, alpha=self.hp.alpha, beta=self.hp.beta)
        return get(self.algorithm)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"a number was expected in the message's config, got {value!r}")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"a whole number was expected in the message's config, got {value!r}")
    return value


def under(prefix: str, arrays: Arrays) -> dict[str, NumPyArray]:
    """Put a prefix before every key.

    Examples
    --------
    >>> under("w_ag", {"bias": np.zeros(1)})
    {'w_ag/bias': array([0.])}
    """
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def part(prefix: str, arrays: Arrays) -> dict[str, NumPyArray]:
    """Return the arrays under a prefix, without it.

    Examples
    --------
    >>> part("w", {"w_ag/bias": np.zeros(1), "w/bias": np.ones(1)})
    {'bias': array([1.])}
    """
    start = f"{prefix}/"
    return {
        key.removeprefix(start): array for key, array in arrays.items() if key.startswith(start)
    }


def to_record(arrays: Arrays) -> ArrayRecord:
    """Return arrays as one ArrayRecord.

    Examples
    --------
    >>> from_record(to_record({"w/0": np.ones(2)}))
    {'w/0': array([1., 1.])}
    """
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def from_record(record: ArrayRecord) -> dict[str, NumPyArray]:
    """Return the arrays of an ArrayRecord by key."""
    return {key: array.numpy() for key, array in record.items()}


def address(
    content: RecordDict, nodes: Iterable[int], kind: str, server_round: int, deadline: float
) -> list[Message]:
    """Return one message for each node, which expires some time after the deadline."""
    return [
        Message(content, node, kind, group_id=str(server_round), ttl=deadline + CLOCK_SKEW)
        for node in nodes
    ]


def count_bytes(messages: Iterable[Message]) -> int:
    """Return the bytes of all arrays in some messages."""
    return sum(
        len(array.data)
        for message in messages
        if message.has_content()
        for record in message.content.array_records.values()
        for array in record.values()
    )
