"""When FedAc is FedAvg in disguise, and which settings accelerate.

With gamma = eta, w and w_ag take the same step from the same point: they stay equal, whatever
alpha and beta are, and so do what a server or a client keeps of each. FedAc-I and FedAc-II have
gamma = max(sqrt(eta/(mu K)), eta), which is eta from eta mu K = 1 on. Vanilla FedAc has
gamma = sqrt(eta/mu), which is eta where eta mu = 1, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_FLOOR, Context

from fedac.algorithms import hyperparameters
from fedac.algorithms.algorithm import Algorithm
from fedac.algorithms.local.fedavg import FEDAVG

ROUNDING = 1e-9
SHOWN = 4  # step sizes that a sentence lists


def is_fedavg(algorithm: Algorithm, *, eta: float, mu: float, K: int) -> bool:
    """Say whether a coupling has left FedAc, alone or in a composition, without acceleration.

    False for all that has nothing to accelerate, takes no local steps, or has a gamma of the
    user's own.

    Examples
    --------
    >>> from fedac.algorithms import get
    >>> [is_fedavg(get("fedac-i+cv"), eta=0.1, mu=0.1, K=K) for K in (99, 100)]
    [False, True]
    >>> is_fedavg(get("fedavg"), eta=0.1, mu=0.1, K=100)
    False
    """
    coupled = (hyperparameters.fedac_i, hyperparameters.fedac_ii, hyperparameters.vanilla)
    if algorithm.minibatch or algorithm.couple not in coupled:
        return False
    hp = algorithm.couple(eta=eta, mu=mu, K=K)
    if hyperparameters.as_fedac(hp).gamma > eta * (1 + ROUNDING):
        return False
    try:
        # A record of the user's own may step in another way. From 0 with gradient 1, FedAvg goes
        # to -eta.
        after = algorithm.update((0.0,) * len(algorithm.local_sequences), 0.0, 1.0, hp)
        steps = [after[place] for place in _iterates(algorithm, hp)]
    except Exception:  # a user's functions may fail on plain numbers
        return False
    same = all(math.isclose(step, -eta, rel_tol=ROUNDING) for step in steps)
    return same and len(steps) > 1  # a single iterate is not FedAc


def not_accelerated(
    runs: Iterable[tuple[Algorithm, float]],
    *,
    mu: float,
    K: int,
    eta_name: str = "eta",
    K_name: str = "K",
) -> str:
    """Say which algorithms are FedAvg with their step sizes, and what would accelerate them.

    Empty if none is. The runtimes call eta and K by other names.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I, get
    >>> print(not_accelerated([(FEDAC_I, 0.1)], mu=0.1, K=128))
    FedAc-I is FedAvg at twice the bytes with eta=0.1, mu=0.1, K=128, because eta mu K >= 1; to \
accelerate, use K <= 99, mu < 0.0781 or eta < 0.0781
    >>> print(not_accelerated([(get("fedac-i+local"), 2.0)], mu=0.5, K=1))
    FedAc-I + local is FedAvg with eta=2, mu=0.5, K=1, because eta mu K >= 1; to accelerate, use \
mu < 0.5 or eta < 2
    >>> not_accelerated([(FEDAC_I, 0.1)], mu=0.01, K=128)
    ''
    """
    found = [(a, eta) for a, eta in runs if is_fedavg(a, eta=eta, mu=mu, K=K)]
    if not found:
        return ""
    claims = dict.fromkeys(f"{a.label} is {_without_acceleration(a)}" for a, _ in found)
    etas = sorted({eta for _, eta in found})
    shown = [f"{eta:g}" for eta in etas[:SHOWN]] + ["..."] * (len(etas) > SHOWN)
    # Vanilla FedAc does not look at K.
    interval = 1 if all(a.couple is hyperparameters.vanilla for a, _ in found) else K
    largest_K = math.ceil((1 - ROUNDING) / (etas[-1] * mu)) - 1
    advice = [
        *([f"{K_name} <= {largest_K}"] if largest_K >= 1 else []),
        f"mu < {_rounded_down(largest_mu(eta=etas[-1], K=interval))}",
        f"{eta_name} < {_rounded_down(1 / (mu * interval))}",
    ]
    return (
        f"{', '.join(claims)} with {eta_name}={', '.join(shown)}, mu={mu:g}, {K_name}={K}, "
        f"because {eta_name} mu {K_name} >= 1; to accelerate, use "
        f"{', '.join(advice[:-1])} or {advice[-1]}"
    )


def largest_mu(*, eta: float, K: int) -> float:
    """Return the mu below which FedAc-I and FedAc-II accelerate.

    Examples
    --------
    >>> largest_mu(eta=0.1, K=100)
    0.1
    """
    return 1 / (eta * K)


def _iterates(algorithm: Algorithm, hp: hyperparameters.Hyperparameters) -> list[int]:
    """Return which of the vectors that local steps work on begin at w_0, as w and w_ag do."""
    sequences, _ = algorithm.split(algorithm.start(1.0))
    local = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
    return [place for place, value in enumerate(local) if value == 1.0]


def _without_acceleration(algorithm: Algorithm) -> str:
    """Name what is left of a method, and how many times its bytes the method sends."""
    _, *pieces = algorithm.label.split(" + ")
    left = " + ".join([FEDAVG.label, *(piece for piece in pieces if piece != "local")])
    sent, _ = algorithm.split(algorithm.start(1.0))
    needed = len(sent) - sent.count(1.0) + 1  # one of the equal iterates is enough
    times = len(sent) / needed
    if times == 1:
        return left
    return f"{left} at {'twice' if times == 2 else f'{times:g} times'} the bytes"


def _rounded_down(bound: float) -> str:
    """Write a bound with three digits that is not above it."""
    return f"{float(Context(prec=3, rounding=ROUND_FLOOR).create_decimal_from_float(bound)):g}"
