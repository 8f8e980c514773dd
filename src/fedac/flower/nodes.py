"""Which nodes are there, and which of them to ask."""

from __future__ import annotations

import random
from collections.abc import Sequence

from flwr.serverapp import Grid

from fedac.flower.exchange import poll


def wait_for_nodes(grid: Grid, wanted: int, seconds: float) -> list[int]:
    """Return the nodes that are there, as soon as `wanted` of them are or the time is over."""
    nodes: list[int] = []

    def enough() -> bool:
        nonlocal nodes
        nodes = sorted(grid.get_node_ids())
        return len(nodes) >= wanted

    poll(enough, seconds)
    return nodes


def draw_nodes(
    nodes: Sequence[int], else_from: Sequence[int], *, count: int, seed: str
) -> list[int]:
    """Draw nodes, the same for the same seed; where `nodes` are too few, also of `else_from`.

    >>> draw_nodes([1, 2], [3, 4], count=2, seed="any")
    [1, 2]
    >>> draw_nodes([1, 2, 3], [], count=2, seed="7/1/1") == draw_nodes(
    ...     [3, 2, 1], [], count=2, seed="7/1/1"
    ... )
    True
    """
    draw = random.Random(seed)
    chosen: list[int] = []
    for some in (nodes, else_from):
        chosen += draw.sample(sorted(some), min(count - len(chosen), len(some)))
    return sorted(chosen)
