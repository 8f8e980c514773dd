"""A message from the server as a client sees it, and the reply to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedac.errors import InputError
from fedac.flower._arrays import (
    ARRAYS,
    CLIENT,
    CONFIG,
    MEMORY,
    METRICS,
    ROUND,
    WEIGHT,
    NDArray,
    checksum,
    from_record,
    split_config,
    to_record,
)
from fedac.flower._client.round import Visited
from fedac.flower._task import Task
from fedac.validate import require_count


@dataclass(frozen=True)
class Request:
    """What the server asks of a client.

    Attributes
    ----------
    message : Message
        As it came.
    task : Task
        The algorithm and the round.
    config : dict
        The entries of the user's own (``train_config``, ``evaluate_config``), and "server-round".
    arrays : dict
        The sequences, or in an evaluation the output.
    """

    message: Message
    task: Task
    config: dict[str, Any]
    arrays: dict[str, NDArray]

    @classmethod
    def read(cls, message: Message) -> Request:
        """Read a message, or say what is missing in it."""
        config, asked = split_config(message.content.config_records.get(CONFIG, {}))
        task = Task.from_record(asked)
        return cls(message, task, config, from_record(message.content.array_records[ARRAYS]))

    def reply(self, metrics: Mapping[str, Any], visited: Visited | None = None) -> Message:
        """Return the reply: metrics, "num-examples" among them, and after training the message."""
        records: dict[str, Any] = {}
        if visited is not None:
            # In the order of what was sent: Flower's modifiers compare arrays one by one.
            order = [*(key for key in self.arrays if key in visited.arrays), *visited.arrays]
            records[ARRAYS] = to_record({key: visited.arrays[key] for key in order})
            records[CLIENT] = ConfigRecord({CLIENT: str(visited.client)})
            if self.task.memory:
                # Of what the client remembers having sent: a modifier may still change it.
                records[MEMORY] = ConfigRecord(
                    {"lost": visited.memory_lost, "checksum": checksum(records[ARRAYS])}
                )
        records[METRICS] = MetricRecord({**require_metrics(metrics), ROUND: self.task.round})
        return Message(RecordDict(records), reply_to=self.message)


def require_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as Python's numbers, "num-examples" among them."""
    if not isinstance(metrics, Mapping):
        raise InputError(f"metrics must be a dict of numbers, got {type(metrics).__name__}")
    if WEIGHT not in metrics:
        raise InputError(f"metrics need '{WEIGHT}', how many examples this client has")
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"metric '{name}' must be a number, got {value!r:.60}") from None
    return numbers | {WEIGHT: require_count(WEIGHT, metrics[WEIGHT])}
