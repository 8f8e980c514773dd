"""Copies of messages, as if they had travelled through a network.

The bytes of arrays are immutable and shared, so a copy of a large model costs next to nothing.
"""

from __future__ import annotations

import copy
from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict


def copy_message(message: Message) -> Message:
    """Return a message that has nothing in common with this one that anybody could change."""
    twin = _with_own_metadata(message)
    if message.has_content():
        twin.content = copy_records(message.content)
    return twin


def without_content(message: Message) -> Message:
    """Return a copy that is as good for replies, but small."""
    twin = _with_own_metadata(message)
    twin.content = RecordDict()
    return twin


def copy_records(records: RecordDict) -> RecordDict:
    """Return a copy of all records.

    Examples
    --------
    >>> from flwr.app import ConfigRecord
    >>> sent = RecordDict({"config": ConfigRecord({"widths": [8, 4]})})
    >>> copy_records(sent)["config"]["widths"].append(2)
    >>> sent["config"]["widths"]
    [8, 4]
    """
    return RecordDict({name: _copy_record(record) for name, record in records.items()})


def _with_own_metadata(message: Message) -> Message:
    twin = copy.copy(message)
    twin.__dict__["_metadata"] = copy.copy(message.metadata)
    return twin


def _copy_record(record: Any) -> Any:
    twin = record.copy()
    for key, value in record.items():
        if isinstance(record, ArrayRecord):
            twin.__dict__["_data"][key] = _copy_array(value)
        elif isinstance(value, list):
            twin.__dict__["_data"][key] = list(value)
    return twin


def _copy_array(array: Array) -> Array:
    # Not what Flower has cached in it, which cannot be pickled. Its fields have been checked.
    twin = Array.__new__(Array)
    fields = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data}
    twin.__dict__.update(fields)
    return twin
