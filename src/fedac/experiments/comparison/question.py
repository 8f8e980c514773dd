"""How much a run may cost: so many rounds, megabytes or seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedac.algorithms import expand, get
from fedac.algorithms.parsing import server_rule, without_server_rule
from fedac.algorithms.server import Momentum, SlowMo
from fedac.data.splits import is_split
from fedac.errors import InputError
from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.comparison.tuner import FEWEST_TRIES
from fedac.experiments.grid import LARGEST_SEED, Grid
from fedac.experiments.plugins import find_algorithm
from fedac.experiments.run_key import key_fingerprint
from fedac.experiments.summary import label_of
from fedac.federation.federation import taking_part
from fedac.federation.link import DEFAULT_LINK, Link
from fedac.validate import require_count, require_positive

AXES = ("rounds", "megabytes", "seconds")
UNITS = {
    "round": ("rounds", 1.0), "rounds": ("rounds", 1.0),
    "kb": ("megabytes", 1e-3), "mb": ("megabytes", 1.0), "gb": ("megabytes", 1e3),
    "ms": ("seconds", 1e-3), "s": ("seconds", 1.0), "min": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
}  # fmt: skip


class Budget(NamedTuple):
    """An amount on one of the three axes."""

    amount: float
    axis: str

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read a budget as it is typed.

        Examples
        --------
        >>> Budget.parse("90s"), Budget.parse("1.5 min").amount, Budget.parse("20 rounds").axis
        (Budget(amount=90.0, axis='seconds'), 90.0, 'rounds')
        """
        found = re.fullmatch(r"\s*([\d.]+(?:e[-+]?\d+)?)\s*([A-Za-z]+)\s*", str(text))
        try:
            if found is not None and 0 < float(found[1]) < math.inf:
                axis, factor = UNITS[found[2].lower()]
                return cls(float(found[1]) * factor, axis)
        except (KeyError, ValueError):
            pass
        raise InputError(
            "a budget is a number above 0 with a unit, such as '100 rounds', '2MB' or '60s' (also "
            f"kB, GB, ms, min and h), got '{text}'"
        )

    def __str__(self) -> str:
        if math.isinf(self.amount):
            return "the whole run"
        unit = {"rounds": " rounds", "megabytes": " MB", "seconds": " s"}[self.axis]
        return f"{self.amount:.4g}{unit}"


# --- Which methods are compared unless others are asked for.

# Minibatch SGD, what others use, and compositions that have won somewhere (docs/benchmark.md).
DEFAULT_METHODS = (
    "mb-sgd",
    "mb-ac-sgd",
    "fedavg",
    "fedavgm",
    "diloco",
    "outer-nesterov",
    "fedadam",
    "scaffold",
    "fedavg+cv+nesterov(1,0.9)",
    "fedac-i",
    "fedac-ii",
    "fedac-i+local",
    "fedac-i+local+nesterov(1,0.3)",
    "fedac-i+cv",
    "fedac-i+cv+nesterov(1,0.3)",
)


# SlowMo is not in the list: at a constant step size it is FedAvgM.


def label(method: str) -> str:
    """Return what a table calls a method, or a baseline.

    Examples
    --------
    >>> label("fedac-i"), label("lbfgs")
    ('FedAc-I', 'L-BFGS')
    """
    return BASELINES.get(method) or label_of(method)


def default_methods(*, everybody: bool) -> tuple[str, ...]:
    """Return the methods to compare, where all clients take part in every round or only some.

    Examples
    --------
    >>> "scaffnew" in default_methods(everybody=False)
    False
    """
    methods = (*DEFAULT_METHODS, "scaffnew")
    some = tuple(name for name in methods if everybody or not get(name).everybody)
    return some + tuple(BASELINES)


# --- What a comparison is asked: a problem, who takes part, which methods, and what a round costs.

# A step size that every method takes, until the data are known.
ANY_ETA = 1e-3
# As many as there are unless somebody says otherwise.
CLIENTS = 100
TRIES = 20
# Settings are tried on the first; the best of them also on the others.
TUNING_SEEDS = 3
# A larger number is more likely a typo than a simulation.
MOST_STEPS = 10**8
# More records of a run would not show in a figure.
MOST_RECORDS = 200


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a comparison is asked.

    Attributes
    ----------
    grid : Grid
        Problem, federation, methods, local steps and wire formats; its seed is the first for
        tuning.
    rounds : int
        Of every run.
    steps : int or None
        In place of rounds: T, the local steps of every run, which every K divides.
    link : Link
        What a round costs in seconds.
    target : float or None
        The suboptimality to reach; without, methods are ranked by what they reach.
    budget : Budget or None
        Within which to say what is reached. Default: the whole run with a target; without, the
        time in which every run ends.
    tries : int
        Settings that are tried for each method, K and wire.
    repeats : int
        Fresh seeds on which the best setting is repeated.
    baselines : tuple of str
        Methods without local steps that are compared too, of `BASELINES`.
    """

    grid: Grid
    rounds: int = 200
    steps: int | None = None
    link: Link = DEFAULT_LINK
    target: float | None = None
    budget: Budget | None = None
    tries: int = TRIES
    repeats: int = 5
    baselines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_count("rounds", self.rounds)
        require_count("tries", self.tries, least=FEWEST_TRIES)
        require_count("repeats", self.repeats, least=2)  # one says nothing about the others
        if self.target is not None:
            require_positive("target", self.target)
        if self.link.is_free:
            raise InputError(
                "nothing costs time on the link: give latency, gradient or row, as in "
                "Link(latency='50ms')"
            )
        longest = max(K * self.rounds_of(K) for K in self.grid.local_steps)
        if longest > MOST_STEPS:
            raise InputError(
                f"runs of {longest} steps are too long: take fewer rounds or local steps"
            )
        for name in ("participation", "batch", "seeds"):
            if len(getattr(self.grid, name)) > 1:
                raise InputError(f"a comparison has one value of {name}: run it once for each")
        if self.tuning_seeds[-1] > LARGEST_SEED:
            most = f"2^63 - {self.repeats + TUNING_SEEDS}"
            raise InputError(f"seed must be at most {most}: the next ones are used too")

    @classmethod
    def ask(
        cls,
        values: Mapping[str, Any],
        place: Callable[[str], str] = str,
        **how: Any,
    ) -> Question:
        """Make a question of the values of a `Grid`, those that it needs filled in.

        `place` returns where the user set a value, for errors; `how` are the attributes besides
        the grid.
        """
        given = {"name": "compare", "eta": (ANY_ETA,), **values}
        given.setdefault("l2", 1e-3)
        given.setdefault("local_steps", (8, 32, 128))
        if not given.get("workers") and not given.get("clients") and _is_drawn(given):
            given["clients"] = (CLIENTS,)
        steps = [K for K in given["local_steps"] if isinstance(K, int) and K > 0]
        given["steps"] = how.get("steps") or math.lcm(*steps, 1)
        if given["steps"] > MOST_STEPS:
            raise InputError(
                f"{place('local_steps')}: {', '.join(map(str, steps))} have no common multiple up "
                "to 10^8; take others, powers of two for example"
            )
        typed = given.get("algorithms") or default_methods(everybody=_everybody(given))
        baselines = tuple(dict.fromkeys(name for name in typed if name in BASELINES))
        given["algorithms"] = tuple(
            n for name in typed if name not in BASELINES for n in _names(name, place)
        )
        if not given["algorithms"]:
            raise InputError(
                f"{place('algorithms')}: give a method to compare {' and '.join(baselines)} with, "
                "such as fedavg"
            )
        _require_different(given["algorithms"], place)
        return cls(grid=Grid.checked(given, place), baselines=baselines, **how)

    def rounds_of(self, K: int) -> int:
        """Return how many rounds a run with K local steps has."""
        return self.rounds if self.steps is None else self.steps // K

    def rounds_between_records(self, K: int) -> int:
        """Return how many rounds are between two records of a loss."""
        return math.ceil(self.rounds_of(K) / MOST_RECORDS)

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """The seeds on which winners are repeated."""
        (seed,) = self.grid.seeds
        return tuple(range(seed + 1, seed + 1 + self.repeats))

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """The seeds on which settings are tried: the first, and those after the fresh ones."""
        (seed,) = self.grid.seeds
        after = seed + 1 + self.repeats
        return (seed, *range(after, after + TUNING_SEEDS - 1))


def _is_drawn(values: Mapping[str, Any]) -> bool:
    """Say whether rows are split by a rule: a file names the clients, and so says how many."""
    return all(is_split(by) for by in values.get("split") or ("iid",) if isinstance(by, str))


def _names(typed: str, place: Callable[[str], str]) -> list[str]:
    """Return the methods that a name stands for, each spelled in one way."""
    try:
        return [name if ":" in name else get(name).name for name in expand(typed)]
    except InputError as error:
        raise InputError(f"{place('algorithms')}: {error}") from None


def _require_different(methods: Sequence[str], place: Callable[[str], str]) -> None:
    """Refuse one method under two names: it would be its own runner-up."""
    seen: dict[str, str] = {}
    for name in methods:
        record = find_algorithm(name)
        other = seen.setdefault(key_fingerprint(record) or record.name, name)
        if other is not name:
            raise InputError(f"{place('algorithms')}: {other} and {name} are the same method")
    # Momentum is tuned, and step sizes are constant here.
    rules = {name: None if ":" in name else server_rule(name) for name in methods}
    slowmo = [name for name, rule in rules.items() if isinstance(rule, SlowMo)]
    heavy_ball = [name for name, rule in rules.items() if isinstance(rule, Momentum)]
    for one in slowmo:
        for other in heavy_ball:
            if without_server_rule(one) == without_server_rule(other):
                raise InputError(
                    f"{place('algorithms')}: {one} and {other} are the same method at a constant "
                    "step size; leave out one"
                )


def _everybody(values: Mapping[str, Any]) -> bool:
    """Say whether all clients take part, as far as that is known before the data are."""
    (share, *_) = values.get("participation", (1.0,))
    (M, *_) = values.get("workers") or values.get("clients") or (2,)
    return taking_part(share, M) is None
