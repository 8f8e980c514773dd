# SPDX-License-Identifier: Apache-2.0
"""The question of a comparison: its options, completed and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from fedac.algorithms import expand, get
from fedac.algorithms.parsing import find_algorithm, split_server_rule
from fedac.algorithms.server import Momentum, SlowMo
from fedac.data import Dataset
from fedac.errors import InputError
from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.workload import key_fingerprint, network_loss
from fedac.federation.availability import Availability
from fedac.federation.federation import taking_part
from fedac.federation.link import Link, as_link
from fedac.federation.mode import Mode, require_oversample
from fedac.federation.spec import COMPARE, LARGEST_COUNT, LARGEST_STORED, OptionSet, Spec
from fedac.federation.spec_checks import check_spec
from fedac.federation.timeline import Work
from fedac.objectives.losses import choose_loss
from fedac.objectives.metrics import METRICS, TITLES

AXES = ("rounds", "megabytes", "seconds")
SUBOPTIMALITY = "suboptimality"
UNITS = {
    "round": ("rounds", 1.0), "rounds": ("rounds", 1.0),
    "kb": ("megabytes", 1e-3), "mb": ("megabytes", 1.0), "gb": ("megabytes", 1e3),
    "ms": ("seconds", 1e-3), "s": ("seconds", 1.0), "min": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
}  # fmt: skip
# The methods that won somewhere in docs/benchmark.md, and FedAvg and FedAc-I to compare them with.
DEFAULT_METHODS = (
    "mb-ac-sgd", "fedavg", "fedavgm", "diloco", "outer-nesterov", "fedadam", "mimelite(0.9)",
    "feddyn", "fedavg+cv+nesterov(1,0.9)", "fedac-i", "fedac-ii", "fedac-i+local+nesterov(1,0.3)",
    "fedac-i+cv", "fedac-i+cv+nesterov(1,0.3)",
)  # fmt: skip
# For networks, which have no optimum for the baselines: those near the best somewhere in
# docs/benchmark-networks.md, FedAvg and SCAFFOLD.
NETWORK_METHODS = (
    "fedavg", "fedavgm", "diloco", "fedadam", "feddyn", "fedcm", "scaffold", "momentum(0.9)",
    "fedac-i", "fedac-i+local", "fedac-i+cv", "adamw",
)  # fmt: skip
# The share of rows that a target on a metric of a network is measured on, if no test set is given.
HELD_OUT = 0.2
# Every setting runs on the first seed, and the best settings on all of them.
TUNING_SEEDS = 3
# More records of a run would not show in a figure. One of a network costs a pass over all rows.
MOST_RECORDS, MOST_NETWORK_RECORDS, MOST_ROUGH_RECORDS = 200, 50, 5


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


class Target(NamedTuple):
    """A value to reach: of the suboptimality, or of a metric on the test set."""

    metric: str  # SUBOPTIMALITY, one of METRICS, or a function of the user's by name
    value: float

    @classmethod
    def parse(cls, given: float | str, own: Collection[str] = ()) -> Target:
        """Parse a target: a suboptimality, or a metric and its value; `own` are further names.

        >>> Target.parse(0.01), str(Target.parse("Log-loss 0.3"))
        (Target(metric='suboptimality', value=0.01), 'log-loss 0.3')
        """
        name, _, number = ("" if isinstance(given, float) else given.strip()).rpartition(" ")
        metric = "-".join(name.lower().replace("_", " ").split()) or SUBOPTIMALITY
        metric = name.strip() if name.strip() in own else metric
        try:
            value = float(number or given)
        except ValueError:
            value = math.nan
        if metric not in (SUBOPTIMALITY, *METRICS, *own) or not math.isfinite(value):
            raise InputError(
                "a target is a suboptimality (for networks: a training loss), such as 0.001, or a "
                "metric with its value, such as 'accuracy 0.85' (also "
                f"{', '.join([*METRICS, *own][1:])}), got '{given}'; the column to predict is "
                "given as label"
            )
        found = cls(metric, value)
        if found.larger_is_better and metric in METRICS and value > 1:
            raise InputError(f"{metric} is at most 1, got {value:g}")
        if not found.larger_is_better and value <= 0:
            raise InputError(f"a target {metric} must be above 0, got {value:g}")
        return found

    @property
    def larger_is_better(self) -> bool:
        """Whether the metric grows with training."""
        if self.metric in METRICS:
            return METRICS[self.metric].larger_is_better
        return self.metric != SUBOPTIMALITY

    @property
    def is_of_clients(self) -> bool:
        """Whether the metric is computed over the clients' own rows."""
        return self.metric.startswith("client-")

    def met_by(self, values: Any) -> Any:
        """Return whether values reach the target, one by one."""
        return values >= self.value if self.larger_is_better else values <= self.value

    def in_words(self, measure: str = SUBOPTIMALITY) -> str:
        """Return the target for a sentence: "an accuracy of 0.85 on the test set"."""
        title = TITLES.get(self.metric, self.metric)
        if self.metric == SUBOPTIMALITY:
            return f"a {measure} of {self.value:g}"
        article = "an" if self.metric in ("accuracy", "auc", "r2", "mae") else "a"
        where = "" if self.is_of_clients else " on the test set"
        return f"{article} {title} of {self.value:g}{where}"

    def __str__(self) -> str:
        return (
            f"{self.value:g}" if self.metric == SUBOPTIMALITY else f"{self.metric} {self.value:g}"
        )


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of a comparison.

    Attributes
    ----------
    spec : Spec
        Problem, federation, methods, K, wire formats, length, target, tries and repeats. Its seed
        is the first tuning seed.
    link : Link
        Gives the seconds of a round.
    budget : Budget or None
        Limit within which suboptimality is measured. Default: the whole run with a target;
        otherwise the time of the shortest run.
    target : Target or None
        The target of the spec.
    baselines : tuple of str
        Methods without local steps to compare too: names of `BASELINES`.
    rough : bool
        Whether settings are tried on one seed only, with few records.
    """

    spec: Spec
    link: Link
    budget: Budget | None = None
    target: Target | None = None
    baselines: tuple[str, ...] = ()
    rough: bool = False

    @classmethod
    def ask(cls, given: Mapping[str, Any], options: OptionSet = COMPARE) -> Question:
        """Complete and check the options that a user set, by the names of an option set.

        Examples
        --------
        >>> question = Question.ask({"methods": ["fedavg", "lbfgs"], "budget": "60s"})
        >>> question.spec.clients, question.baselines
        (100, ('lbfgs',))
        """
        methods = options.names["algorithm"]
        if _lacks_test(given):
            given = {**given, "test": HELD_OUT}
        # The default methods depend on the availability: check that first.
        spec = check_spec(options, {**given, methods: "fedavg"})
        network = spec.model is not None
        always = str(spec.availability) == "always"
        typed = given.get(methods) or default_methods(network=network, baselines=always)
        typed = [typed] if isinstance(typed, str) else typed
        baselines = tuple(dict.fromkeys(name for name in typed if name in BASELINES))
        if baselines and network:
            raise InputError(f"the baseline {baselines[0]} is for linear models; omit it")
        names = _spelled_once([name for name in typed if name not in BASELINES], options)
        if not names:
            raise InputError(
                f"{options.spelled('algorithm')}: add a method to compare "
                f"{' and '.join(baselines)} with, such as fedavg"
            )
        spec = check_spec(options, {**given, methods: names})
        question = cls(
            spec=spec,
            link=as_link(spec.link),
            budget=None if spec.budget is None else Budget.parse(spec.budget),
            target=None if spec.target is None else Target.parse(spec.target, own_metrics(spec)),
            baselines=baselines,
        )
        tested = spec.test is not None or spec.test_clients is not None
        tested = tested or getattr(spec.model, "test", None) is not None  # of a Network
        target = question.target
        if target and target.is_of_clients:
            if not network or spec.workers is not None:
                raise InputError(
                    f"the target {target} is for networks and clients: add "
                    f"{options.spelled('model')} and {options.spelled('clients')}"
                )
        elif target and target.metric != SUBOPTIMALITY and not tested:
            own = network and not isinstance(spec.model, str)
            what = "a pair (X, y)" if own else "a share of the rows, such as 0.2, or a file"
            raise InputError(
                f"the target {target} needs a test set: add {options.spelled('test')}, {what}"
            )
        if question.link.is_free:
            raise InputError(
                "the link has zero cost: set latency, gradient or row, as in Link(latency='50ms')"
            )
        if baselines and question.availability != "always":
            raise InputError(
                f"the baseline {baselines[0]} needs all clients in every round: omit it, or "
                f"{options.spelled('availability')}"
            )
        require_oversample(spec.oversample, map(Mode.parse, question.modes))
        for name in spec.several("algorithm"):
            reasons = [question.refuses(name, mode) for mode in question.modes]
            if reasons[0] and all(reasons):
                raise reasons[0]
        lengths = product(spec.several("local_steps"), question.modes)
        longest = max(K * question.rounds_of(K, mode) for K, mode in lengths)
        if longest > LARGEST_COUNT:
            raise InputError(
                f"runs of {longest} steps are too long: use fewer rounds or a smaller K"
            )
        if question.tuning_seeds[-1] > LARGEST_STORED:
            most = f"2^63 - {spec.repeats + TUNING_SEEDS}"
            raise InputError(f"seed must be at most {most}: the seeds after it are used too")
        return question

    def on(self, data: Dataset) -> Question:
        """Return the question with what follows from the data: its loss, and its own clients."""
        network = self.spec.model is not None
        loss = network_loss(data) if network else choose_loss(data, self.spec.loss)
        spec = replace(self.spec, loss=loss)
        own = spec.client is not None or spec.test_clients is not None
        if own and data.clients is not None:
            spec = replace(spec, clients=len(data.clients), split=data.clients.how)
        return replace(self, spec=spec)

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes to compare, each spelled in one way."""
        return tuple(dict.fromkeys(str(Mode.parse(mode)) for mode in self.spec.several("mode")))

    @property
    def availability(self) -> str:
        """When clients are available."""
        return str(Availability.parse(self.spec.availability))

    def refuses(self, method: str, mode: str) -> InputError | None:
        """Return why a method does not run in a mode, or None if it does."""
        work = Work(mode=Mode.parse(mode), availability=Availability.parse(self.spec.availability))
        try:
            work.require_method(find_algorithm(method))
        except InputError as reason:
            return reason
        return None

    def rounds_of(self, K: int, mode: str = "rounds") -> int:
        """Return the number of rounds of a run with K local steps.

        Server steps that take fewer messages are more, so that clients work as much in all modes.
        """
        rounds, found = self.spec.rounds or (self.spec.steps or 0) // K, Mode.parse(mode)
        if found.kind != "buffer":
            return rounds
        M = self.spec.workers or self.spec.clients
        assert M is not None
        places = taking_part(self.spec.participation, M) or M
        return math.ceil(rounds * places / found.number)

    def rounds_between_records(self, K: int, mode: str = "rounds") -> int:
        """Return the number of rounds between two records of the loss."""
        most = MOST_RECORDS if self.spec.model is None else MOST_NETWORK_RECORDS
        most = MOST_ROUGH_RECORDS if self.rough else most
        return math.ceil(self.rounds_of(K, mode) / most)

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """The seeds on which winners are repeated."""
        return tuple(range(self.spec.seed + 1, self.spec.seed + 1 + self.spec.repeats))

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """The seeds on which settings are tried: the first, then those after the fresh seeds."""
        if self.rough:
            return (self.spec.seed,)
        after = self.spec.seed + 1 + self.spec.repeats
        return (self.spec.seed, *range(after, after + TUNING_SEEDS - 1))

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods, the baselines last."""
        return (*self.spec.several("algorithm"), *self.baselines)

    def with_methods(self, names: Sequence[str]) -> Question:
        """Return the question with further methods and baselines."""
        further = tuple(name for name in names if name not in BASELINES)
        algorithm: Any = (*self.spec.several("algorithm"), *further)
        baselines = (*self.baselines, *(name for name in names if name in BASELINES))
        return replace(self, spec=replace(self.spec, algorithm=algorithm), baselines=baselines)

    @property
    def subject(self) -> dict[str, Any]:
        """The problem and the federation; results of another subject do not compare."""
        names = ("dataset", "loss", "l2", "workers", "clients", "split", "participation", "batch",
                 "weighting")  # fmt: skip
        model = {} if self.spec.model is None else {"model": str(self.spec.model)}
        here = {} if self.availability == "always" else {"availability": self.availability}
        return {name: getattr(self.spec, name) for name in names} | model | here

    @property
    def held_out(self) -> dict[str, Any]:
        """The test set, or the share of the clients in it; None if there is none."""
        test = getattr(self.spec.test, "name", self.spec.test)  # of a Dataset
        return {"test": test, "test_clients": self.spec.test_clients}


def own_metrics(spec: Spec) -> tuple[str, ...]:
    """Return the metrics of a `Network` that only its user knows."""
    return tuple(name for name in getattr(spec.model, "metrics", ()) if name not in METRICS)


def _lacks_test(given: Mapping[str, Any]) -> bool:
    """Return whether a model by name has a target on test rows, but no test set."""
    target, tests = given.get("target"), (given.get("test"), given.get("test_clients"))
    if not isinstance(given.get("model"), str) or target is None or tests != (None, None):
        return False
    wanted = Target.parse(target)
    return wanted.metric != SUBOPTIMALITY and not wanted.is_of_clients


def default_methods(*, network: bool = False, baselines: bool = True) -> tuple[str, ...]:
    """Return the methods that are compared unless others are given."""
    if network:
        return NETWORK_METHODS
    return DEFAULT_METHODS + (tuple(BASELINES) if baselines else ())


def _spelled_once(typed: Sequence[str], options: OptionSet) -> tuple[str, ...]:
    """Spell every method in one way; one method under two names would be its own runner-up."""
    try:
        names = tuple(
            name if ":" in name else get(name).name for each in typed for name in expand(each)
        )
        seen: dict[str, str] = {}
        for name in names:
            algorithm = find_algorithm(name)
            other = seen.setdefault(key_fingerprint(algorithm) or algorithm.name, name)
            if other is not name:
                raise InputError(f"{other} and {name} are the same method")
        # Momentum is tuned, and step sizes are constant here.
        split = {name: split_server_rule(name) for name in names if ":" not in name}
        for one, other in product(split, split):
            (local, rule), (other_local, other_rule) = split[one], split[other]
            same_rule = isinstance(rule, SlowMo) and isinstance(other_rule, Momentum)
            if same_rule and local == other_local:
                raise InputError(
                    f"{one} and {other} are the same method at a constant step size; omit one"
                )
    except InputError as error:
        raise InputError(f"{options.spelled('algorithm')}: {error}") from None
    return names
