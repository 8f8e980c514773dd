# SPDX-License-Identifier: Apache-2.0
"""The pieces of methods by name, and the well-known methods composed of them.

To add a piece, write it in `local/`, `memory/` or `server.py` and add a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedac.algorithms import server
from fedac.algorithms.algorithm import Algorithm
from fedac.algorithms.hyperparameters import FedAcHyperparameters
from fedac.algorithms.local.adamw import make_adamw
from fedac.algorithms.local.fedac import FEDAC_I, FEDAC_II, FEDAC_VANILLA, make_fedac
from fedac.algorithms.local.fedavg import FEDAVG, make_prox
from fedac.algorithms.local.momentum import make_dualavg, make_gpa, make_mimelite, make_momentum
from fedac.algorithms.memory.client_momentum import with_client_momentum
from fedac.algorithms.memory.control_variates import with_control_variates
from fedac.algorithms.memory.feddyn import with_feddyn
from fedac.algorithms.memory.local_momentum import with_local_momentum
from fedac.algorithms.memory.local_state import with_average, with_reset
from fedac.algorithms.memory.normalized import with_normalized_moves
from fedac.algorithms.memory.scaffnew import with_scaffnew


@dataclass(frozen=True)
class Piece:
    """A piece of a method: its factory, whose arguments are its numbers, its formula and source."""

    make: Callable[..., Any]
    rule: str
    source: str
    after_server: bool = False  # of a memory
    tuned: tuple[float, ...] = ()  # values of the first number that comparisons try


# Momenta that comparisons try.
MOMENTA = (0.3, 0.6, 0.8, 0.9, 0.95)
# A local step of a client; g is a stochastic gradient at w unless a rule says otherwise.
LOCAL_RULES = {
    "fedavg": Piece(lambda: FEDAVG, "w <- w - eta g", "arXiv 1602.05629"),
    "fedac-i": Piece(
        lambda: FEDAC_I,
        "g at w_md = w/beta + (1-1/beta) w_ag; w_ag <- w_md - eta g; w <- (1-1/alpha) w + "
        "w_md/alpha - gamma g",
        "arXiv 2006.08950",
    ),
    "fedac-ii": Piece(
        lambda: FEDAC_II,
        "as fedac-i, with the paper's second choice of alpha, beta and gamma",
        "arXiv 2006.08950",
    ),
    "fedac-vanilla": Piece(
        lambda: FEDAC_VANILLA,
        "as fedac-i, with the alpha, beta and gamma of accelerated SGD",
        "arXiv 2006.08950",
    ),
    "momentum": Piece(
        make_momentum, "u <- beta u + g; w <- w - eta u", "Polyak, 1964", tuned=MOMENTA
    ),
    "mimelite": Piece(
        make_mimelite,
        "w <- w - eta ((1-beta) g + beta u); u <- (1-beta) mean(G_m) + beta u, G_m the client's "
        "full gradient at the start of the round; the server rule does not move u",
        "arXiv 2008.03606",
        tuned=MOMENTA,
    ),
    "dualavg": Piece(
        make_dualavg,
        "minimizes F + l1 |w|_1: z <- z - eta g, g at w = sign(z) max(|z| - l1 s, 0), s the sum "
        "of all eta so far; output w",
        "arXiv 2011.08474",
    ),
    "prox": Piece(
        make_prox,
        "w <- w - eta (g + mu (w - x)), x the start of the round",
        "arXiv 1812.06127",
        tuned=(0.001, 0.01, 0.1, 1.0),
    ),
    "gpa": Piece(
        make_gpa,
        "g at mu_y x + (1-mu_y) z; z <- z - eta g; x <- mu_x x + (1-mu_x) z",
        "arXiv 2512.17131",
    ),
    "adamw": Piece(
        make_adamw,
        "m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; w <- (1 - eta wd) w - eta m^/(sqrt(v^) + "
        "eps), m^ and v^ without bias; the client keeps m and v",
        "arXiv 1711.05101",
    ),
}
# What a client keeps between its rounds, and what it does beside its local rule. They are applied
# in this order, those with `after_server` after the server rule, which then does not move what they
# send.
MEMORIES = {
    "local": Piece(
        with_local_momentum,
        "only the first sequence is sent; the client keeps the offsets of all others from it",
        "as DiLoCo's inner optimizer, arXiv 2311.08105",
    ),
    "reset": Piece(
        with_reset,
        "momentum, or the moments of adamw, start at zero in every round",
        "arXiv 2106.02305",
    ),
    "scaffnew": Piece(
        with_scaffnew,
        "g - h_m instead of g; h_m <- h_m + (new x - w_m)/(K eta), K the most steps of any client",
        "arXiv 2202.09357",
    ),
    "feddyn": Piece(
        with_feddyn,
        "g - h_m + a (y - x) instead of g; h_m <- h_m - a (y_m - x); h is the mean of all h_m; "
        "x <- mean(y_m) - h/a",
        "arXiv 2111.04263",
        tuned=(0.001, 0.01, 0.1, 1.0),
    ),
    "average": Piece(
        with_average,
        "the moments of adamw are sent and averaged; the server rule does not move them",
        "arXiv 2106.02305",
        after_server=True,
    ),
    "fednova": Piece(
        with_normalized_moves,
        "x <- x + mean(K_m) mean((y_m - x)/K_m), K_m the steps of client m",
        "arXiv 2007.07481",
        after_server=True,
    ),
    "fedcm": Piece(
        with_client_momentum,
        "a g + (1-a) D instead of g; D <- mean(x - y_m)/(K eta), K the mean number of steps",
        "arXiv 2106.10874",
        after_server=True,
        tuned=(0.02, 0.05, 0.1, 0.3, 0.6),
    ),
    "cv": Piece(
        with_control_variates,
        "g - c_m + c instead of g; c_m <- mean g of the round; c <- c + share mean(change of c_m)",
        "arXiv 1910.06378",
        after_server=True,
    ),
}
# How the server moves every point x that clients send; delta = x - mean(clients).
SERVER_RULES = {
    "step": Piece(server.ServerStep, "x <- x - gamma delta", "arXiv 1910.06378"),
    "exp": Piece(
        server.Extrapolation,
        "x <- x - gamma delta, gamma = max(1, mean|x - y_m|^2 / (2 (|delta|^2 + eps))), lengths of "
        "the whole model",
        "arXiv 2301.09604",
    ),
    "momentum": Piece(server.Momentum, "u <- beta u + delta; x <- x - gamma u", "arXiv 1909.06335"),
    "slowmo": Piece(
        server.SlowMo,
        "u <- beta u + delta/eta; x <- x - alpha eta u; with constant eta the same as "
        "momentum(alpha, beta)",
        "arXiv 1910.00643",
    ),
    "nesterov": Piece(
        server.Nesterov, "u <- beta u + delta; x <- x - gamma (beta u + delta)", "arXiv 2311.08105"
    ),
    "accelerated": Piece(
        server.Accelerated,
        "u <- x - delta; z <- z - gamma (r+1)/2 delta; x <- (1-t) u + t z, t = 2/(r+3); output u",
        "arXiv 2509.10439",
    ),
    "adam": Piece(
        server.Adam,
        "m <- b1 m - (1-b1) delta; v <- b2 v + (1-b2) delta^2; x <- x + gamma m/(sqrt(v) + tau)",
        "arXiv 2003.00295",
    ),
    "yogi": Piece(
        server.Yogi, "as adam, v <- v - (1-b2) delta^2 sign(v - delta^2)", "arXiv 2003.00295"
    ),
    "adagrad": Piece(
        server.Adagrad, "as adam without momentum (b1 = 0), v <- v + delta^2", "arXiv 2003.00295"
    ),
}
SYNONYMS = {"sgd": "fedavg"}


@dataclass(frozen=True)
class WellKnown:
    """A composition with its own name; numbers in parentheses go to its last piece."""

    label: str
    pieces: tuple[str, ...]


WELL_KNOWN = {
    "fedavgm": WellKnown("FedAvgM", ("fedavg", "momentum")),
    "slowmo": WellKnown("SlowMo", ("fedavg", "slowmo")),
    "diloco": WellKnown("DiLoCo", ("fedavg", "nesterov")),
    "outer-nesterov": WellKnown("outer Nesterov", ("fedavg", "accelerated")),
    "fedadam": WellKnown("FedAdam", ("fedavg", "adam")),
    "fedyogi": WellKnown("FedYogi", ("fedavg", "yogi")),
    "fedadagrad": WellKnown("FedAdagrad", ("fedavg", "adagrad")),
    "fedprox": WellKnown("FedProx", ("prox",)),
    "scaffold": WellKnown("SCAFFOLD", ("fedavg", "cv")),
    "scaffold-m": WellKnown("SCAFFOLD-M", ("fedavg", "cv", "fedcm")),
    "scaffnew": WellKnown("Scaffnew", ("fedavg", "scaffnew")),
    "led": WellKnown("LED", ("fedavg", "scaffnew")),
    "feddyn": WellKnown("FedDyn", ("fedavg", "feddyn")),
    "fedcm": WellKnown("FedCM", ("fedavg", "fedcm")),
    "fedexp": WellKnown("FedExP", ("fedavg", "exp")),
    "fednova": WellKnown("FedNova", ("fedavg", "fednova")),
}


def fedac(*, gamma: float, alpha: float, beta: float, name: str | None = None) -> Algorithm:
    """Return FedAc with the given coefficients; only ``eta`` is left to choose.

    Examples
    --------
    With ``alpha = beta = 1`` and ``gamma = eta`` FedAc is FedAvg:

    >>> algorithm = fedac(gamma=0.5, alpha=1.0, beta=1.0)
    >>> algorithm.name
    'fedac(gamma=0.5,alpha=1,beta=1)'
    >>> hp = algorithm.couple(eta=0.5, mu=1.0, K=8)
    >>> algorithm.update((3.0, 3.0), 3.0, 2.0, hp)
    (2.0, 2.0)
    """
    couple = partial(_uncoupled, gamma=gamma, alpha=alpha, beta=beta)
    couple(eta=1.0, mu=1.0, K=1)  # raises InputError here, not in the first run
    coefficients = f"gamma={gamma:.12g},alpha={alpha:.12g},beta={beta:.12g}"
    label = f"FedAc ({coefficients.replace(',', ', ')})"
    return make_fedac(name or f"fedac({coefficients})", label if name is None else name, couple)


def _uncoupled(
    *, eta: float, mu: float, K: int, gamma: float, alpha: float, beta: float
) -> FedAcHyperparameters:
    return FedAcHyperparameters(eta=eta, gamma=gamma, alpha=alpha, beta=beta)
