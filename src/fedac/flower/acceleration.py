"""Say, where a federation is set up, that FedAc will be FedAvg."""

from __future__ import annotations

import logging
import warnings

from fedac.algorithms import Algorithm
from fedac.algorithms.acceleration import not_accelerated
from fedac.errors import NotAcceleratedWarning

log = logging.getLogger("flwr.fedac")


def warn_if_not_accelerated(algorithm: Algorithm, *, eta: float, mu: float, K: int) -> None:
    """Warn whoever makes a strategy, also in the log: `flwr run` shows nothing else."""
    if text := not_accelerated([(algorithm, eta)], mu=mu, K=K, K_name="local_steps"):
        log.warning("%s", text)
        warnings.warn(text, NotAcceleratedWarning, stacklevel=3)
