"""When FedAc degenerates to FedAvg.

With gamma = eta, w and w_ag take the same step from the same point and stay equal. FedAc-I and
FedAc-II have gamma = max(sqrt(eta/(mu K)), eta), which is eta where eta mu K >= 1. Vanilla FedAc
has gamma = sqrt(eta/mu), which is eta only where eta mu = 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedac.algorithms import hyperparameters
from fedac.algorithms.algorithm import Algorithm

ROUNDING = 1e-9
MOST_SHOWN = 4  # step sizes listed in the warning


def is_fedavg(algorithm: Algorithm, *, eta: float, mu: float, K: int) -> bool:
    """Return whether FedAc, alone or in a composition, does not accelerate with this coupling.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> [is_fedavg(get("fedac-i+cv"), eta=0.1, mu=0.1, K=K) for K in (99, 100)]
    [False, True]
    >>> is_fedavg(get("fedavg"), eta=0.1, mu=0.1, K=100)
    False
    """
    couplings = (hyperparameters.fedac_i, hyperparameters.fedac_ii, hyperparameters.vanilla)
    if algorithm.minibatch or algorithm.couple not in couplings:
        return False
    hp = algorithm.couple(eta=eta, mu=mu, K=K)
    if hyperparameters.as_fedac(hp).gamma > eta * (1 + ROUNDING):
        return False
    # A user's algorithm with this coupling may step differently. FedAvg moves 1 to 0 if g = 1/eta.
    try:
        sequences, _ = algorithm.split(algorithm.start(1.0))
        local = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
        after = algorithm.update(local, 1.0, 1 / eta, hp)
        moved = [new for old, new in zip(local, after, strict=True) if old == 1.0]
        slack = ROUNDING * max(1.0, eta * mu)  # 1/alpha = eta mu multiplies rounding
        return len(moved) > 1 and all(abs(new) < slack for new in moved)
    except Exception:  # a user's functions may fail on plain numbers in any way
        return False


def not_accelerated(
    runs: Iterable[tuple[Algorithm, float]],
    *,
    mu: float,
    K: int,
    eta_name: str = "eta",
    K_name: str = "K",
) -> str:
    """Return the warning for those (algorithm, eta) that degenerate to FedAvg, or an empty string.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> print(not_accelerated([(FEDAC_I, 0.1)], mu=0.1, K=128))
    FedAc-I degenerates to FedAvg with eta=0.1, mu=0.1, K=128, because eta mu K >= 1; to \
accelerate, use mu < 1/(eta K) = 0.0781
    >>> not_accelerated([(FEDAC_I, 0.1)], mu=0.01, K=128)
    ''
    """
    found = [(a, eta) for a, eta in runs if is_fedavg(a, eta=eta, mu=mu, K=K)]
    if not found:
        return ""
    labels = list(dict.fromkeys(a.label for a, _ in found))
    etas = sorted({eta for _, eta in found})
    shown = [f"{eta:g}" for eta in etas[:MOST_SHOWN]] + ["..."] * (len(etas) > MOST_SHOWN)
    return (
        f"{', '.join(labels)} {'degenerates' if len(labels) == 1 else 'degenerate'} to FedAvg with "
        f"{eta_name}={', '.join(shown)}, mu={mu:g}, {K_name}={K}, because {eta_name} mu {K_name} "
        f">= 1; to accelerate, use mu < 1/({eta_name} {K_name}) = "
        f"{largest_mu(eta=etas[-1], K=K):.3g}"
    )


def largest_mu(*, eta: float, K: int) -> float:
    """Return the mu below which FedAc-I and FedAc-II accelerate.

    Examples
    --------
    >>> largest_mu(eta=0.1, K=100)
    0.1
    """
    return 1 / (eta * K)
