"""What F is where rows belong to clients."""

from __future__ import annotations

from fedac.data.clients import Clients
from fedac.objectives.base import Objective


def minimized(objective: Objective, clients: Clients | None, weighting: str) -> Objective:
    """Return F: the loss over all rows or, with uniform weights, the mean of the clients' losses.

    Examples
    --------
    >>> import numpy as np
    >>> from fedac.objectives import LeastSquares
    >>> F = LeastSquares([[1.0], [1.0], [1.0]], [0.0, 0.0, 3.0])
    >>> two = Clients(["a", "a", "b"])
    >>> w = np.zeros(1)
    >>> [minimized(F, two, weighting).value(w) for weighting in ("examples", "uniform")]
    [1.5, 2.25]
    """
    if clients is None or weighting != "uniform":
        return objective
    return objective.weighted(clients.row_weights)
