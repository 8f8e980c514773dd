"""The question of a comparison: problem, federation, methods, link, target and budget."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from fedac.algorithms import expand, get
from fedac.algorithms.parsing import server_rule, without_server_rule
from fedac.algorithms.server import Momentum, SlowMo
from fedac.data.splits import is_split
from fedac.errors import InputError
from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.run_key import key_fingerprint
from fedac.experiments.surfaces import LARGEST_STORED, SWEEP
from fedac.federation.federation import taking_part
from fedac.federation.link import DEFAULT_LINK, Link
from fedac.federation.rules import check_spec
from fedac.federation.spec import Spec
from fedac.plugins import find_algorithm
from fedac.validate import require_count, require_positive

AXES = ("rounds", "megabytes", "seconds")
UNITS = {
    "round": ("rounds", 1.0), "rounds": ("rounds", 1.0),
    "kb": ("megabytes", 1e-3), "mb": ("megabytes", 1.0), "gb": ("megabytes", 1e3),
    "ms": ("seconds", 1e-3), "s": ("seconds", 1.0), "min": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
}  # fmt: skip


class Budget(NamedTuple):
    """A limit in rounds, megabytes or seconds."""

    amount: float
    axis: str

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a budget such as "90s", "2MB" or "20 rounds".

        >>> Budget.parse("1.5 min")
        Budget(amount=90.0, axis='seconds')
        """
        found = re.fullmatch(r"\s*([\d.]+(?:e[-+]?\d+)?)\s*([A-Za-z]+)\s*", str(text))
        try:
            if found is not None and 0 < float(found[1]) < math.inf:
                axis, factor = UNITS[found[2].lower()]
                return cls(float(found[1]) * factor, axis)
        except (KeyError, ValueError):
            pass
        raise InputError(
            "a budget is a positive number with a unit, such as '100 rounds', '2MB' or '60s' (also "
            f"kB, GB, ms, min and h), got '{text}'"
        )

    def __str__(self) -> str:
        if math.isinf(self.amount):
            return "the whole run"
        unit = {"rounds": " rounds", "megabytes": " MB", "seconds": " s"}[self.axis]
        return f"{self.amount:.4g}{unit}"


# Minibatch SGD, methods in common use, and compositions that won somewhere (docs/benchmark.md).
# Without SlowMo: at a constant step size it is FedAvgM.
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


def default_methods(*, everybody: bool) -> tuple[str, ...]:
    """Return the methods for full or for partial participation."""
    methods = (*DEFAULT_METHODS, "scaffnew")
    some = tuple(name for name in methods if everybody or not get(name).everybody)
    return some + tuple(BASELINES)


# A step size that every method accepts, to validate a grid before the data is loaded.
ANY_ETA = 1e-3
CLIENTS = 100
TRIES, FEWEST_TRIES = 20, 4
# Every setting runs on the first seed, and the best settings on all of them.
TUNING_SEEDS = 3
# A larger number is more likely a typo than a simulation.
MOST_STEPS = 10**8
# More records of a run would not show in a figure.
MOST_RECORDS = 200


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of a comparison.

    Attributes
    ----------
    grid : Spec
        Problem, federation, methods, local steps and wire formats. Its seed is the first tuning
        seed.
    rounds : int
        Rounds of every run.
    steps : int or None
        Instead of rounds: T, the local steps of every run, a multiple of every K.
    link : Link
        Gives the seconds of a round.
    target : float or None
        Target suboptimality. If omitted, methods are ranked by suboptimality within the budget.
    budget : Budget or None
        Limit within which suboptimality is measured. Default: the whole run with a target;
        otherwise the time in which every run ends.
    tries : int
        Settings tried for each method, K and wire.
    repeats : int
        Number of fresh seeds on which the best setting is repeated.
    baselines : tuple of str
        Methods without local steps to compare too: names of `BASELINES`.
    """

    grid: Spec
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
        require_count("repeats", self.repeats, least=2)  # an interval needs two
        if self.target is not None:
            require_positive("target", self.target)
        if self.link.is_free:
            raise InputError(
                "the link has zero cost: set latency, gradient or row, as in Link(latency='50ms')"
            )
        longest = max(K * self.rounds_of(K) for K in self.grid.several("local_steps"))
        if longest > MOST_STEPS:
            raise InputError(
                f"runs of {longest} steps are too long: use fewer rounds or a smaller K"
            )
        for name in ("participation", "batch", "seed"):
            if len(self.grid.several(name)) > 1:
                raise InputError(f"a comparison takes one value of {name}: run it once for each")
        if self.tuning_seeds[-1] > LARGEST_STORED:
            most = f"2^63 - {self.repeats + TUNING_SEEDS}"
            raise InputError(f"seed must be at most {most}: the seeds after it are used too")

    @classmethod
    def ask(
        cls, values: Mapping[str, Any], place: Callable[[str], str] = str, **how: Any
    ) -> Question:
        """Build a question from the keys of a sweep, with defaults for missing ones.

        `place` returns where the user set a value, for error messages. `how` has the other
        attributes.
        """
        given = {"name": "compare", "eta": (ANY_ETA,), **values}
        given.setdefault("dataset", "synthetic")
        given.setdefault("l2", 1e-3)
        given.setdefault("local_steps", (8, 32, 128))
        # A file of client names also determines their number.
        drawn = is_split(_first(given.get("split")) or "iid")
        if not given.get("workers") and not given.get("clients") and drawn:
            given["clients"] = (CLIENTS,)
        Ks = given["local_steps"]
        Ks = [K for K in (Ks if isinstance(Ks, list | tuple) else [Ks]) if isinstance(K, int)]
        Ks = [K for K in Ks if K > 0]
        given["steps"] = how.get("steps") or math.lcm(*Ks, 1)
        if given["steps"] > MOST_STEPS:
            raise InputError(
                f"{place('local_steps')}: {', '.join(map(str, Ks))} have no common multiple up to "
                "10^8; use other values, for example powers of two"
            )
        typed = given.get("algorithms") or default_methods(everybody=_everybody(given))
        baselines = tuple(dict.fromkeys(name for name in typed if name in BASELINES))
        try:
            # Every method spelled in one way.
            methods = tuple(
                name if ":" in name else get(name).name
                for each in typed
                if each not in BASELINES
                for name in expand(each)
            )
            _require_different(methods)
        except InputError as error:
            raise InputError(f"{place('algorithms')}: {error}") from None
        if not methods:
            raise InputError(
                f"{place('algorithms')}: add a method to compare {' and '.join(baselines)} with, "
                "such as fedavg"
            )
        given["algorithms"] = methods
        surface = replace(SWEEP, spell=place)
        return cls(grid=check_spec(surface, given), baselines=baselines, **how)

    def rounds_of(self, K: int) -> int:
        """Return the number of rounds of a run with K local steps."""
        return self.rounds if self.steps is None else self.steps // K

    def rounds_between_records(self, K: int) -> int:
        """Return the number of rounds between two records of the loss."""
        return math.ceil(self.rounds_of(K) / MOST_RECORDS)

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """The seeds on which winners are repeated."""
        (seed,) = self.grid.several("seed")
        return tuple(range(seed + 1, seed + 1 + self.repeats))

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """The seeds on which settings are tried: the first, then those after the fresh seeds."""
        (seed,) = self.grid.several("seed")
        after = seed + 1 + self.repeats
        return (seed, *range(after, after + TUNING_SEEDS - 1))

    @property
    def subject(self) -> dict[str, Any]:
        """The problem and the federation; results of another subject do not compare."""
        grid = self.grid
        return {
            "dataset": grid.dataset,
            "loss": grid.loss,
            "l2": grid.l2,
            **{
                name: (grid.several(name) or (None,))[0]
                for name in ("workers", "clients", "split", "participation", "batch")
            },
            "weighting": grid.weighting,
        }

    def with_methods(self, names: Sequence[str]) -> Question:
        """Return the question with further methods and baselines."""
        methods = tuple(name for name in names if name not in BASELINES)
        algorithms: Any = (*self.grid.several("algorithm"), *methods)
        grid = replace(self.grid, algorithm=algorithms)
        baselines = (*self.baselines, *(name for name in names if name in BASELINES))
        return replace(self, grid=grid, baselines=baselines)


def _require_different(methods: Sequence[str]) -> None:
    """Reject one method under two names, which would be its own runner-up."""
    seen: dict[str, str] = {}
    for name in methods:
        algorithm = find_algorithm(name)
        other = seen.setdefault(key_fingerprint(algorithm) or algorithm.name, name)
        if other is not name:
            raise InputError(f"{other} and {name} are the same method")
    # Momentum is tuned, and step sizes are constant here.
    rules = {name: None if ":" in name else server_rule(name) for name in methods}
    for one, other in product(rules, rules):
        same_rule = isinstance(rules[one], SlowMo) and isinstance(rules[other], Momentum)
        if same_rule and without_server_rule(one) == without_server_rule(other):
            raise InputError(
                f"{one} and {other} are the same method at a constant step size; omit one"
            )


def _everybody(values: Mapping[str, Any]) -> bool:
    """Return whether all clients are present, as far as known before the data is loaded."""
    share, M = (_first(values.get(name)) for name in ("participation", "workers"))
    return taking_part(share or 1.0, M or _first(values.get("clients")) or 2) is None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) else value
