"""Wait for nodes, and choose which of them to ask."""

from __future__ import annotations

import random
from collections.abc import Sequence

from flwr.serverapp import Grid

from fedac.flower.exchange import poll


def wait_for_nodes(grid: Grid, wanted: int, seconds: float) -> list[int]:
    """Return the connected nodes, as soon as there are `wanted` or the time is up."""
    nodes: list[int] = []

    def enough() -> bool:
        nonlocal nodes
        nodes = sorted(grid.get_node_ids())
        return len(nodes) >= wanted

    poll(enough, seconds)
    return nodes


def draw_nodes(nodes: Sequence[int], reserve: Sequence[int], *, count: int, seed: str) -> list[int]:
    """Draw nodes, the same for the same seed; if there are too few, also from `reserve`.

    >>> draw_nodes([1, 2], [3, 4], count=2, seed="any")
    [1, 2]
    >>> draw_nodes([1, 2, 3], [], count=2, seed="7/1/1") == draw_nodes(
    ...     [3, 2, 1], [], count=2, seed="7/1/1"
    ... )
    True
    """
    draw = random.Random(seed)
    chosen: list[int] = []
    for some in (nodes, reserve):
        chosen += draw.sample(sorted(some), min(count - len(chosen), len(some)))
    return sorted(chosen)
