"""Clients as a picture: how many rows they hold, and with which labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedac.data.clients import Clients


def draw(clients: Clients, ax: Axes | None) -> Axes:
    """Draw."""
    raise NotImplementedError
