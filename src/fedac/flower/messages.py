"""What travels: every sequence of an algorithm in one ArrayRecord, and the round's orders.

Arrays are keyed ``<sequence>/<name>``: ``w_ag/0`` and ``w/0``, say. A floating-point buffer of
the model (BatchNorm's, say) is keyed ``buffer/<name>`` and travels once, whatever the algorithm.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedac.algorithms import Algorithm, fedac, get
from fedac.errors import InputError
from fedac.flower.aggregate import Array as NumPyArray
from fedac.flower.aggregate import Arrays
from fedac.theory.couplings import Hyperparameters

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
BUFFER, OUTPUT = "buffer", "output"
ROUND, WEIGHT = "server-round", "num-examples"
LARGEST_SEED = 2**63 - 1  # the largest integer of a ConfigRecord
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
    >>> hp = Hyperparameters(eta=0.5, gamma=0.5, alpha=1.0, beta=1.0)
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


def count_bytes(messages: Iterable[Message]) -> int:
    """Return the bytes of all arrays in some messages."""
    return sum(
        len(array.data)
        for message in messages
        if message.has_content()
        for record in message.content.array_records.values()
        for array in record.values()
    )


@dataclass(frozen=True)
class Reply:
    """A reply that can be used."""

    arrays: Arrays
    weight: float
    metrics: Mapping[str, float]


class BadReply(Exception):  # noqa: N818 - it is a finding, not a failure of ours
    """A reply that must not be used; the message says why."""


def check_reply(message: Message, *, like: Arrays, server_round: int) -> str | None:
    """Return why a training reply is bad, or None if it is good.

    Good is: exactly one ArrayRecord with the keys, shapes and types of `like`, all finite;
    exactly one MetricRecord of finite numbers, with this round's number and a positive weight.
    """
    try:
        read_reply(message, like=like, server_round=server_round)
    except BadReply as reason:
        return str(reason)
    return None


def read_reply(message: Message, *, like: Arrays, server_round: int) -> Reply:
    """Return what a training reply holds; raise `BadReply` if it is bad."""
    content = _content(message)
    weight, metrics = _metrics(content, server_round)
    records = list(content.array_records.values())
    if len(records) != 1:
        raise BadReply(f"{len(records)} ArrayRecords, not one")
    (record,) = records
    missing, extra = sorted(set(like) - set(record)), sorted(set(record) - set(like))
    if missing:
        raise BadReply(f"missing key: {', '.join(missing)}")
    if extra:
        raise BadReply(f"extra key: {', '.join(extra)}")
    return Reply({key: _array(key, record[key], like[key]) for key in like}, weight, metrics)


def read_metrics(message: Message, *, server_round: int) -> Reply:
    """Return what an evaluation reply holds; raise `BadReply` if it is bad."""
    weight, metrics = _metrics(_content(message), server_round)
    return Reply({}, weight, metrics)


def _content(message: Message) -> RecordDict:
    if message.has_error():
        error = message.error
        raise BadReply(f"error {error.code}: {_first_line(error.reason)}")
    if not message.has_content():
        raise BadReply("empty")
    return message.content


def _first_line(reason: str | None) -> str:
    # Flower sends the traceback; its last line is the one that says what went wrong.
    text = (reason or "")[-4000:]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = (lines[-1] if lines else "no reason given")[:200]
    places = re.findall(r'File "([^"\n]*)", line (\d{1,7})\b', text)
    # Where the user's code was, if it was there at all.
    own = [place for place in places if not re.search(r"site-packages|[\\/]fedac[\\/]", place[0])]
    if not places:
        return last
    path, line = (own or places)[-1]
    name = re.split(r"[\\/]", path)[-1][:60]
    return f"{last} ({name}:{line})"


def _metrics(content: RecordDict, server_round: int) -> tuple[float, dict[str, float]]:
    records: list[MetricRecord] = list(content.metric_records.values())
    if len(records) != 1:
        raise BadReply(f"{len(records)} MetricRecords, not one")
    numbers = {k: v for k, v in records[0].items() if isinstance(v, int | float)}
    for key in (ROUND, WEIGHT):
        if key not in numbers:
            raise BadReply(f"missing metric: {key} (is the client made by client_app?)")
    broken = [key for key, value in numbers.items() if not _finite(value)]
    if broken:
        raise BadReply(f"not finite: metric {', '.join(broken)}")
    if numbers[ROUND] != server_round:
        raise BadReply(f"of round {numbers[ROUND]:g}, not {server_round}")
    if not numbers[WEIGHT] > 0:
        raise BadReply(f"weight not above 0: {numbers[WEIGHT]:g}")
    metrics = {k: float(v) for k, v in numbers.items() if k not in (ROUND, WEIGHT)}
    return float(numbers[WEIGHT]), metrics


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _array(key: str, sent: Array, like: NumPyArray) -> NumPyArray:
    """Return an array that was sent, if it is what its label says and what was expected."""
    label = f"{sent.dtype} {tuple(sent.shape)}"
    if sent.dtype != str(like.dtype):
        raise BadReply(f"wrong type: {key} is {label[:80]}, not {like.dtype}")
    if tuple(sent.shape) != like.shape:
        raise BadReply(f"wrong shape: {key} is {label[:80]}, not {like.shape}")
    # Read what the bytes say of themselves before making room for them.
    try:
        shape, dtype, start = _npy_header(sent.data)
    except Exception as error:  # hostile bytes: whatever reading them raises, they are unreadable
        raise BadReply(f"unreadable: {key}: {str(error)[:80]}") from error
    if dtype != like.dtype or shape != like.shape or len(sent.data) - start != like.nbytes:
        raise BadReply(f"unreadable: {key}: its bytes are not what its label says")
    try:
        array = sent.numpy()
    except Exception as error:
        raise BadReply(f"unreadable: {key}: {str(error)[:80]}") from error
    if not np.isfinite(array).all():
        raise BadReply(f"not finite: {key}")
    return array


def _npy_header(data: bytes) -> tuple[tuple[int, ...], np.dtype[np.generic], int]:
    """Return shape and type that serialized bytes claim, and where their numbers start."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):  # what np.save writes for every plain array
        raise ValueError(f"version {version} of NumPy's format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, dtype, file.tell()
