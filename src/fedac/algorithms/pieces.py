"""All pieces by the names users type, and the well-known methods made of them.

To add a piece, write its file in `local/`, `memory/` or `server/` and its line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedac.algorithms.local.fedac import FEDAC_I, FEDAC_II, FEDAC_VANILLA
from fedac.algorithms.local.fedavg import FEDAVG
from fedac.algorithms.local.gpa import make_gpa
from fedac.algorithms.local.momentum import make_momentum
from fedac.algorithms.local.prox import make_prox
from fedac.algorithms.memory.at_home import keep_at_home
from fedac.algorithms.memory.control_variates import with_control_variates
from fedac.algorithms.memory.scaffnew import with_scaffnew
from fedac.algorithms.record import Algorithm
from fedac.algorithms.server.accelerated import Accelerated
from fedac.algorithms.server.adaptive import Adagrad, Adam, Yogi
from fedac.algorithms.server.momentum import Momentum
from fedac.algorithms.server.nesterov import Nesterov
from fedac.algorithms.server.rule import ServerRule
from fedac.algorithms.server.slowmo import SlowMo
from fedac.algorithms.server.step import Step

# Called with the numbers in a name's parentheses.
LOCAL_RULES: dict[str, Callable[..., Algorithm]] = {
    "fedavg": lambda: FEDAVG,
    "fedac-i": lambda: FEDAC_I,
    "fedac-ii": lambda: FEDAC_II,
    "fedac-vanilla": lambda: FEDAC_VANILLA,
    "momentum": make_momentum,
    "prox": make_prox,
    "gpa": make_gpa,
}
MEMORIES: dict[str, Callable[[Algorithm], Algorithm]] = {
    "local": keep_at_home,
    "cv": with_control_variates,
    "scaffnew": with_scaffnew,
}
SERVER_RULES: dict[str, Callable[..., ServerRule]] = {
    "step": Step,
    "momentum": Momentum,
    "slowmo": SlowMo,
    "nesterov": Nesterov,
    "accelerated": Accelerated,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}
SYNONYMS = {"sgd": "fedavg"}


@dataclass(frozen=True)
class WellKnown:
    """A composition with a name of its own; numbers in parentheses go to its last piece."""

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
    "scaffnew": WellKnown("Scaffnew", ("fedavg", "scaffnew")),
}
