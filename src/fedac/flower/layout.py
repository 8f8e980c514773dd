"""Which arrays of a model travel, and under which keys; the others stay as they were.

A PyTorch model's `state_dict` has more than its parameters: buffers, of which some are counters,
and two names for a tensor that two layers share. Outputs have all of its names again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord

from fedac.flower.messages import NamedArrays, NDArray, from_record


@dataclass(frozen=True)
class Layout:
    """How the names of a model relate to what travels; by default they are the same.

    Attributes
    ----------
    keys : dict
        By name, the key under which an array travels; None if it does not. Names of the same tensor
        have the same key.
    fixed : dict
        By name, the arrays that do not travel.

    Examples
    --------
    >>> keys = {"a": "a", "b": "a", "mean": "buffer/mean", "count": None}
    >>> layout = Layout(keys, {"count": np.array(7)})
    >>> layout.complete({"a": np.array(1.0), "buffer/mean": np.array(2.0)})
    {'a': array(1.), 'b': array(1.), 'mean': array(2.), 'count': array(7)}
    """

    keys: Mapping[str, str | None] = field(default_factory=dict)
    fixed: NamedArrays = field(default_factory=dict)

    def travelling(self, arrays: NamedArrays) -> dict[str, NDArray]:
        """Return what travels of a model's arrays."""
        if not self.keys:
            return dict(arrays)
        return {key: arrays[name] for name, key in self.keys.items() if key is not None}

    def complete(self, arrays: NamedArrays) -> dict[str, NDArray]:
        """Undo `travelling`: return arrays under all names of the model."""
        if not self.keys:
            return dict(arrays)
        return {
            name: self.fixed[name] if key is None else arrays[key]
            for name, key in self.keys.items()
        }


class ModelArrays(ArrayRecord):
    """A model's arrays under the names of its `state_dict`, and their layout.

    Examples
    --------
    >>> list(ModelArrays({"weight": np.ones(2)}, Layout()))
    ['weight']
    """

    layout: Layout

    def __init__(self, arrays: NamedArrays, layout: Layout) -> None:
        super().__init__({name: Array(np.asarray(array)) for name, array in arrays.items()})
        self.layout = layout


def layout_of(record: ArrayRecord) -> Layout:
    """Return the layout of a run's initial arrays: of a plain ArrayRecord, everything travels."""
    return record.layout if isinstance(record, ModelArrays) else Layout()


def travelling(record: ArrayRecord) -> dict[str, NDArray]:
    """Return what travels of a run's initial arrays."""
    return layout_of(record).travelling(from_record(record))
