# SPDX-License-Identifier: Apache-2.0
"""The study that answers a question: tune every method, then repeat the winners on fresh seeds.

Every method gets the same number of tries. The search starts with a coarse grid of step sizes. Then
it tries the neighbours of the best setting so far, in every number that the method has: beyond the
grid if the best lies at its edge, and closer once all neighbours were tried. All runs go through
the store of a sweep, so an interrupted comparison resumes where it stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from fedac.algorithms import Algorithm, parsing
from fedac.algorithms.catalog import MOMENTA
from fedac.algorithms.checks import couple, needs_mu
from fedac.algorithms.parsing import Numbers, find_algorithm, tuned_numbers, values_to_try
from fedac.algorithms.server import Adaptive
from fedac.data import Dataset
from fedac.errors import InputError
from fedac.experiments.comparison import table
from fedac.experiments.comparison.baselines import BASELINES, agd_curve, lbfgs_curve
from fedac.experiments.comparison.question import SUBOPTIMALITY, Budget, Question
from fedac.experiments.comparison.table import Comparison, Curve, Variant
from fedac.experiments.store import Store
from fedac.experiments.sweep import (
    WORTH_MEASURING,
    Progress,
    measure_speed,
    predict_seconds,
    run_groups,
)
from fedac.experiments.workload import (
    Group,
    Workload,
    key_fingerprint,
    list_groups,
    load_data,
    make_workload,
)
from fedac.federation.compression import FLOAT32, bytes_of
from fedac.federation.federation import minimized
from fedac.federation.link import Costs, run_costs
from fedac.federation.mode import Mode
from fedac.federation.schedule import Schedule
from fedac.federation.spec import FULL, RunSpec
from fedac.federation.timeline import Work, make_timeline
from fedac.objectives import optimum
from fedac.objectives.losses import describe_target
from fedac.processes import usable_cores
from fedac.simulation.problem import start_point
from fedac.simulation.result import edge_of, traffic
from fedac.simulation.simulator import held_out
from fedac.validate import Array

# Coarse grid of step sizes, in units of 1/L. The theory ends at 1/L, but larger ones often do
# better.
SMALLEST, LARGEST = 2.0**-9, 2.0**3
# Coarse grid of an adaptive server's step, in units of the distance to the optimum per coordinate.
SMALLEST_MOVE, LARGEST_MOVE = 2.0**-10, 2.0**2
MU_FACTORS = (1.0, 10.0, 100.0)
# Of networks: step sizes around the best one of FedAvg in short runs, and mu likewise.
NETWORK_ETAS = (2.0**-5, 2.0**3)
NETWORK_MU_FACTORS = (0.01, 0.1, 1.0, 10.0)
LADDER = 4.0 ** np.arange(-8, 3)
# Rounds of these runs: a fifth of all, but at least ten. If clients differ, the smallest step size
# may look best after a few rounds, because larger ones overshoot at first.
LADDER_SHARE, LADDER_ROUNDS = 5, 10
# How often neighbours move closer: a factor of 4, 2, 1.4, 1.2, ...
LEVELS = 8
# Number of settings that reach the last tuning seed.
FINALISTS = 3
# Accelerated gradient descent shares its steps and tuned numbers with this algorithm.
AGD = "mb-ac-sgd"


@dataclass(frozen=True)
class Setting:
    """A method with its tuned numbers; None where it has no such number."""

    method: str  # as the user named it
    eta: float
    server_step: float | None = None
    momentum: float | None = None
    mu_factor: float = 1.0  # times mu of the objective
    piece: float | None = None  # the number of a local rule or memory

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method with these numbers."""
        numbers = Numbers(self.server_step, self.momentum, self.piece)
        if numbers in (Numbers(), tuned_numbers(self.method)):
            return find_algorithm(self.method)
        return parsing.with_numbers(self.method, numbers)


Settings = dict[Variant, list[Setting]]


class Forecast(NamedTuple):
    """How many runs a study makes, and how long they take."""

    runs: int
    seconds: float


class Study:
    """A question with its data loaded.

    Parameters
    ----------
    question : Question
        What to find out. A target that is already reached at the start raises InputError.
    data : Dataset, optional
        Default: loaded by the name in the question, with the test set.
    test : Dataset, optional
        The test set of these data.
    """

    def __init__(
        self, question: Question, data: Dataset | None = None, test: Dataset | None = None
    ) -> None:
        if data is None:
            data, test = load_data(question.spec)
        self.question = question.on(data)
        spec = self.question.spec
        self.task = make_workload(spec, data, test)
        given: Any = spec.model
        self._model = describe_target(data, self.task.loss)
        if given is not None:
            self._model = f"{given!s}; {self.task.loss}" if isinstance(given, str) else repr(given)
        # All runs of a comparison share these fields.
        self._template = list_groups(spec, self.task, data)[0][0]
        if spec.epochs is not None:
            spec = replace(spec, local_steps=self._template.K)
            self.question = replace(self.question, spec=spec)
        self._clients = self.task.clients.get(self._template.split_hash)
        self._objective = minimized(self.task.objective, self._clients, spec.weighting)
        self._start = start_point(self._objective, None)
        self._test: Any = held_out(self.task.objective, self.task.test)
        if self._objective.is_network:
            self._f_star = 0.0  # losses are compared as they are
            self._test = self._objective if self._objective.test is not None else None
        else:
            self._f_star = optimum(self._objective).value
        self._check_target()
        self._variants = [
            Variant(method, K, wire, mode)
            for mode in question.modes
            for wire in spec.several("wire")
            for K in spec.several("local_steps")
            for method in spec.several("algorithm")
            if not question.refuses(method, mode)
        ]
        self._baseline_values = cache(self._run_baseline)
        self._costs = cache(self._compute_costs)
        self._seconds = cache(self._compute_seconds)
        self._budget = self._find_budget()
        self._variants += [Variant(name, 1, FLOAT32) for name in question.baselines]
        self._curves: dict[tuple[Variant, Setting, int], Curve] = {}
        self._runs = self._disguised = 0
        self._mu = math.nan  # until the tuner knows it

    def _make_tuner(self, climb_ladder: Callable[[], float]) -> Tuner:
        """Return the tuner: in units of the objective's constants, or by short runs."""
        spec, F = self.question.spec, self._objective
        if not F.is_network:
            distance = optimum(F).w - self._start
            return Tuner(
                tries=spec.tries, smoothness=F.smoothness, etas=(SMALLEST, LARGEST),
                mu=self._template.mu or F.strong_convexity,
                distance=float(np.sqrt(np.mean(distance**2))) or 1.0,
            )  # fmt: skip
        eta = climb_ladder()
        # With this mu, FedAc-I moves w by three times eta: neither FedAvg nor unstable.
        mu = 0.1 / (eta * min(spec.several("local_steps")))
        return Tuner(
            tries=spec.tries, smoothness=1 / eta, mu=mu, etas=NETWORK_ETAS,
            mu_factors=NETWORK_MU_FACTORS, distance=float(np.sqrt(np.mean(self._start**2))) or 1.0,
        )  # fmt: skip

    def short_run(self, rounds: int) -> RunSpec:
        """Return a run of FedAvg, with records at its start and end only."""
        K = min(self.question.spec.several("local_steps"))
        fedavg = find_algorithm("fedavg")
        return replace(
            self._template, algorithm=fedavg.name, fingerprint=key_fingerprint(fedavg),
            local_steps=K, steps=K * rounds, record_every=K * rounds, eta=float(LADDER[0]),
        )  # fmt: skip

    def _climb_ladder(self, store: Store, **how: Any) -> float:
        """Return the best step size of FedAvg in a few rounds: a network has no smoothness."""
        short = self.short_run(_ladder_rounds(self.question))
        runs = [replace(short, eta=float(eta)) for eta in LADDER]
        fedavg = find_algorithm("fedavg")
        task = replace(self.task, algorithms={fedavg.name: fedavg})
        # Two groups, so that two cores have work.
        groups = [tuple(runs[::2]), tuple(runs[1::2])]
        self._runs += len(run_groups(task, groups, store, **how).keys)
        best = store.best(run.key for run in runs)
        if best is None:
            raise InputError(f"FedAvg diverges at every step size from {LADDER[0]:g} on: scale X")
        _, _, eta = best
        return eta

    @property
    def data_hash(self) -> str:
        """The hash of the network and its data."""
        return self._template.data_hash

    def estimate(self, cores: int, question: Question | None = None) -> float:
        """Predict the seconds of all runs of a network on some cores, perhaps of another length."""
        question = question or self.question
        spec = question.spec
        each = spec.tries + FINALISTS * (len(question.tuning_seeds) - 1) + spec.repeats
        configs = [
            replace(self._template, mode=v.mode, **_length(question, v.K, v.mode))
            for v in self._variants
        ]
        ladder = len(LADDER) * self.task.seconds([self.short_run(_ladder_rounds(question))])
        return (ladder + each * sum(self.task.seconds([run]) for run in configs)) / cores

    def forecast(self, jobs: int | None = None, *, measured: bool = False) -> Forecast:
        """Predict the number of runs and the seconds that they take on this machine.

        Parameters
        ----------
        jobs : int, optional
            Parallel groups of runs. Default: the number that uses this machine best.
        measured : bool
            Whether to run a few short groups of a linear model first if all take long.
        """
        stages = list(self._rehearse())
        runs = sum(len(group) for _, groups in stages for group in groups)
        if self._objective.is_network:
            return Forecast(runs + len(LADDER), self.estimate(jobs or usable_cores()))
        seconds = sum(predict_seconds(task, groups, jobs) for task, groups in stages)
        if measured and seconds > WORTH_MEASURING:
            seconds *= measure_speed(*max(stages, key=lambda stage: predict_seconds(*stage)))
        return Forecast(runs, seconds + self._baseline_seconds())

    def _rehearse(self) -> Iterator[tuple[Workload, list[Group]]]:
        """Yield what every stage runs, as if one setting of every variant stayed the best."""
        tuner, (first, *further) = self._make_tuner(lambda: 1.0), self.question.tuning_seeds
        self._mu = tuner.mu
        tried: Settings = {variant: [] for variant in self._variants}
        for count in tuner.stages:
            new = {
                v: tuner.propose(v.method, v.K, each, each[len(each) // 2] if each else None, count)
                for v, each in tried.items()
            }
            yield self._grouped(self._configs(new, [first]))
            tried = {variant: tried[variant] + new[variant] for variant in tried}
        few = max(FINALISTS, math.ceil(self.question.spec.tries / 4))
        for seed in further:
            yield self._grouped(self._configs({v: s[:few] for v, s in tried.items()}, [seed]))
            few = FINALISTS
        best = {variant: each[:1] for variant, each in tried.items()}
        yield self._grouped(self._configs(best, self.question.fresh_seeds))

    def _baseline_seconds(self) -> float:
        """Predict the seconds of the baselines from one gradient and one value."""
        counts = {"lbfgs": 1, "agd": self.question.spec.tries}
        passes = self.question.rounds_of(1) * sum(counts[name] for name in self.question.baselines)
        before = time.perf_counter()
        if passes:
            self._objective.gradient(self._start)
            self._objective.value(self._start)
        return passes * (time.perf_counter() - before)

    def _check_target(self) -> None:
        """Refuse a target that does not fit the data, or that is reached at the start."""
        target = self.question.target
        if target is None or target.is_of_clients:
            return
        start = self._objective.value(self._start) - self._f_star
        where = "the loss" if self._objective.is_network else "F - F*"
        if target.metric != SUBOPTIMALITY:
            known = self._test.evaluate(self._start) if self._test else {}
            fit = [name for name in known if name != "loss"]
            if target.metric not in fit:
                raise InputError(
                    f"{target.metric} does not fit the targets of {self._template.test or 'this'}: "
                    f"use {' or '.join(fit)}"
                )
            start, where = known[target.metric], "it"
        if target.met_by(start):
            raise InputError(
                f"the target {target} is already reached at the start, where {where} is "
                f"{start:.4g}; use a {'larger' if target.larger_is_better else 'smaller'} one"
            )

    def answer(
        self,
        store: Store,
        *,
        on_stage: Callable[[str], object] = lambda stage: None,
        on_progress: Callable[[Progress], object] = lambda progress: None,
        **where: Any,
    ) -> Comparison:
        """Run what the store lacks, and return the comparison.

        Parameters
        ----------
        store : Store
            Where runs are kept.
        on_stage : callable
            Called with the name of a stage when it begins.
        on_progress : callable
            Called with the `Progress` of a stage.
        where
            Keywords of `fedac.experiments.sweep.run_groups`: ``jobs``, ``on``, ``ray_address``,
            ``on_compile``.
        """

        def run(stage: str, settings: Settings, seeds: Sequence[int]) -> None:
            on_stage(stage)
            self._run(store, settings, seeds, on_progress=on_progress, **where)

        def climb_ladder() -> float:
            on_stage("first step sizes")
            return self._climb_ladder(store, on_progress=on_progress, **where)

        first, *further = self.question.tuning_seeds
        tuner = self._make_tuner(climb_ladder)
        self._mu = tuner.mu
        tried: Settings = {variant: [] for variant in self._variants}
        for number, count in enumerate(tuner.stages, start=1):
            best = {variant: found[0] for variant, found in self._ranked(tried, [first]).items()}
            new = {
                variant: tuner.propose(
                    variant.method, variant.K, settings, best.get(variant), count
                )
                for variant, settings in tried.items()
            }
            run(f"search {number} of {len(tuner.stages)}", new, [first])
            tried = {variant: tried[variant] + new[variant] for variant in tried}
        # Successive halving: the better a setting, the more seeds it runs on.
        few, seeds = max(FINALISTS, math.ceil(self.question.spec.tries / 4)), [first]
        finalists = self._ranked(tried, seeds)
        for seed in further:
            finalists = {variant: found[:few] for variant, found in finalists.items()}
            run("best settings on another seed", finalists, [seed])
            seeds.append(seed)
            finalists, few = self._ranked(finalists, seeds), FINALISTS
        winners = {variant: found[0] for variant, found in finalists.items()}
        fresh = self.question.fresh_seeds
        run("winners on fresh seeds", {v: [setting] for v, setting in winners.items()}, fresh)
        return self._compare(tried, winners)

    def _configs(
        self, settings: Settings, seeds: Sequence[int]
    ) -> dict[tuple[Variant, Setting, int], RunSpec]:
        """Return the runs of settings on seeds; baselines have none."""
        return {
            (variant, setting, seed): self._config(variant, setting, seed)
            for variant, each in settings.items()
            if variant.method not in BASELINES
            for setting in each
            for seed in seeds
        }

    def _grouped(
        self, configs: Mapping[tuple[Variant, Setting, int], RunSpec]
    ) -> tuple[Workload, list[Group]]:
        """Return runs in groups, and what they need."""
        # One call of the engine runs all settings that share K, wire, mu and seed. Networks go by
        # method too, so that all cores have work.
        groups: dict[tuple[Any, ...], list[RunSpec]] = {}
        by_method = self._objective.is_network
        for (variant, setting, seed), config in configs.items():
            shared = (variant.K, variant.wire, variant.mode, setting.mu_factor, seed,
                      by_method and variant.method)  # fmt: skip
            groups.setdefault(shared, []).append(config)
        algorithms = {one.algorithm.name: one.algorithm for _, one, _ in configs}
        return replace(self.task, algorithms=algorithms), list(map(tuple, groups.values()))

    def _run(self, store: Store, settings: Settings, seeds: Sequence[int], **how: Any) -> None:
        """Run settings on seeds, and keep their curves."""
        for variant, each in settings.items():
            for setting in each if variant.method in BASELINES else ():
                values, metrics = self._baseline_values(setting)
                for seed in seeds:
                    rounds = np.arange(len(values))
                    self._add_curve(variant, setting, seed, rounds, values, metrics)
        configs = self._configs(settings, seeds)
        task, groups = self._grouped(configs)
        done = run_groups(task, groups, store, **how)
        self._runs += len(done.keys)
        self._disguised += done.disguised
        stored = store.curves({config.key for config in configs.values()})
        for (variant, setting, seed), config in configs.items():
            found = stored[config.key]
            values = np.array(found.suboptimality)
            if found.status != "ok":
                values[-1] = np.inf
            rounds = np.array(found.steps) // variant.K
            metrics = {name: np.array(trace) for name, trace in found.metrics.items()}
            self._add_curve(variant, setting, seed, rounds, values, metrics)

    def _add_curve(
        self,
        variant: Variant,
        setting: Setting,
        seed: int,
        rounds: Any,
        values: Array,
        metrics: Mapping[str, Array],
    ) -> None:
        """Keep a curve whose suboptimality was recorded after these rounds."""
        costs = self._costs(variant, seed)
        values = np.maximum(values, table.EXACT)
        if not math.isfinite(values[-1]):  # no part of a diverged run counts
            values = np.full(len(values), np.inf)
        count, spent = costs.rounds[rounds].astype(float), costs.megabytes[rounds]
        curve = Curve(count, spent, costs.seconds[rounds], values, metrics)
        self._curves[variant, setting, seed] = curve

    def _config(self, variant: Variant, setting: Setting, seed: int) -> RunSpec:
        factor = setting.mu_factor
        return replace(
            self._template, algorithm=setting.algorithm.name, eta=setting.eta, seed=seed,
            fingerprint=key_fingerprint(setting.algorithm), wire=variant.wire,
            **self._in_mode(variant.mode),
            mu=self._template.mu if factor == 1 and self._template.mu else self._mu * factor,
            **_length(self.question, variant.K, variant.mode),
        )  # fmt: skip

    def _in_mode(self, mode: str) -> dict[str, Any]:
        """Return the options of a run that its mode decides."""
        template = replace(self._template, mode=mode)
        work = self.task.work_of(template)
        deadline = Mode.parse(mode).kind == "deadline"
        return {
            "mode": mode, "timing": "" if work is None else str(work.link),
            "oversample": self.task.work.oversample if deadline else 1.0,
        }  # fmt: skip

    def _run_baseline(self, setting: Setting) -> tuple[Array, dict[str, Array]]:
        """Return suboptimality and metrics of a baseline after every round; it draws no rows."""
        F, start, rounds = self._objective, self._start, self.question.rounds_of(1)
        test = self._test
        metrics: dict[str, Array] = {}

        def measure(r: int, w: Array) -> None:
            for name, value in (test.evaluate(w) if test else {}).items():
                metrics.setdefault(name, np.empty(rounds + 1))[r:] = value

        measure(0, start)
        if setting.method == "lbfgs":
            return lbfgs_curve(F, start, rounds, measure) - self._f_star, metrics
        mu = self._mu * setting.mu_factor
        return agd_curve(F, start, rounds, setting.eta, mu, measure) - self._f_star, metrics

    def _ranked(self, settings: Settings, seeds: Sequence[int]) -> Settings:
        """Sort the settings of every variant that has some, the best on these seeds first."""
        ranked = {}
        for variant, each in settings.items():
            curves = {one: [self._curves[variant, one, seed] for seed in seeds] for one in each}
            if each:
                ranked[variant] = sorted(each, key=lambda one: self._score(curves[one]))
        return ranked

    def _score(self, curves: Sequence[Curve]) -> tuple[float, ...]:
        """Return the sort key of settings, the same as for rows: cost of the target, then result.

        The fewer seeds miss the target, the better.
        """
        result = float(np.mean([math.log(curve.within(self._budget)) for curve in curves]))
        target = self.question.target
        if target is None:
            return (result,)
        costs = [curve.cost_of(target, "rounds") for curve in curves]
        # A seed may start at the target, where the cost is 0.
        finite = [math.log(max(cost, 0.5)) for cost in costs if cost < math.inf]
        return len(costs) - len(finite), sum(finite) / max(len(finite), 1), result

    def _compare(self, tried: Settings, winners: dict[Variant, Setting]) -> Comparison:
        """Return the table of winners; a variant has no curves if every try diverged."""
        question, target = self.question, self.question.target
        tuning, rows = question.tuning_seeds, []
        for variant in self._variants:
            best = winners.get(variant)
            tuned: dict[str, Any] = {}
            curves: tuple[Curve, ...] = ()
            if best and all(self._curves[variant, best, seed].converged for seed in tuning):
                tuned = self._tuned(variant, tried[variant], best)
                curves = tuple(self._curves[variant, best, seed] for seed in question.fresh_seeds)
            baseline = variant.method in BASELINES
            every = 0 if baseline else question.rounds_between_records(variant.K, variant.mode)
            rows.append(table.make_row(variant, curves, target, self._budget, every, **tuned))
        return Comparison(
            question=question, rows=table.rank_rows(rows, target, self._budget),
            budget=self._budget, runs=self._runs, disguised=self._disguised, f_star=self._f_star,
            dim=self.task.objective.dim, model=self._model, test=self._template.test,
        )  # fmt: skip

    def _tuned(self, variant: Variant, tried: Sequence[Setting], best: Setting) -> dict[str, Any]:
        """Return the tuned numbers of a row."""
        if variant.method == "lbfgs":  # has none
            return {}

        def edge(value: float | None, tried: Sequence[float]) -> str:
            return "" if value is None else edge_of(value, min(tried), max(tried)) or ""

        steps = [one.server_step for one in tried if one.server_step is not None]
        with_mu = needs_mu(best.algorithm, eta=best.eta, K=variant.K)
        return {
            "algorithm": variant.method if variant.method in BASELINES else best.algorithm.name,
            "eta": best.eta,
            "server_step": best.server_step,
            "momentum": best.momentum,
            "mu": self._mu * best.mu_factor if with_mu else None,
            "edge": edge(best.eta, [one.eta for one in tried]),
            "server_edge": edge(best.server_step, steps),
        }

    def _find_budget(self) -> Budget:
        """Return the budget of the question, or the default one."""
        budget, target = self.question.budget, self.question.spec.target
        if budget is None and (target is not None or self.question.spec.steps is not None):
            return table.WHOLE_RUN
        axis, seeds = "seconds" if budget is None else budget.axis, self.question.fresh_seeds
        spent = [getattr(self._costs(v, seed), axis) for v in self._variants for seed in seeds]
        ends = [float(each[-1]) for each in spent]
        if budget is None:  # until the shortest run ends
            return Budget(min(ends), axis)
        first = Budget(max(float(each[1]) for each in spent), axis)
        if budget.amount < first.amount:
            raise InputError(
                f"the budget of {budget} ends before the first round of some method; use at least "
                f"{first}"
            )
        return budget._replace(amount=min(budget.amount, max(ends)))

    def _compute_costs(self, variant: Variant, seed: int) -> Costs:
        template = replace(self._template, seed=seed, local_steps=variant.K)
        what: dict[str, Any]
        if variant.method in BASELINES:  # a vector each way, all rows of all clients
            up = down = bytes_of(FLOAT32, self.task.objective.dim)
            template = replace(template, participation=1.0, batch=FULL, epochs=None)
            what = {}
        else:
            algorithm = find_algorithm(variant.method)
            up, down = traffic(algorithm, self.task.objective, variant.wire)
            what = {
                "minibatch": algorithm.minibatch, "full_gradient": "gradient" in algorithm.asks
            }  # fmt: skip
        federation = self.task.federation(template)
        rounds = self.question.rounds_of(variant.K, variant.mode)
        work = self.task.work_of(replace(template, mode=variant.mode))
        if work is not None:
            work = replace(work, up=up, down=down, **what)
            seconds = self._seconds(seed, variant.K, rounds, work)
            share = work.messages_a_place(federation)
            sent = np.round(np.arange(rounds + 1) * share).astype(np.int64)
            return Costs(np.arange(rounds + 1), sent * (up + down), seconds)
        return run_costs(
            bytes_up=up, bytes_down=down, gaps=(variant.K,) * rounds, link=self.question.link,
            **federation.timing(**what),
        )  # fmt: skip

    def _compute_seconds(self, seed: int, K: int, rounds: int, work: Work) -> Array:
        """Return the seconds before the first server step and after each."""
        federation = self.task.federation(replace(self._template, seed=seed, local_steps=K))
        return make_timeline(federation, Schedule((K,) * rounds), work).seconds


def _length(question: Question, K: int, mode: str = "rounds") -> dict[str, Any]:
    """Return the options that K decides: the steps of a round, of a run and of a record."""
    rounds = question.rounds_of(K, mode)
    return {
        "local_steps": K, "steps": K * rounds, "rounds": rounds,
        "record_every": K * question.rounds_between_records(K, mode),
    }  # fmt: skip


def _ladder_rounds(question: Question) -> int:
    whole = question.rounds_of(min(question.spec.several("local_steps")))
    return min(whole, max(LADDER_ROUNDS, whole // LADDER_SHARE))


@dataclass(frozen=True)
class Tuner:
    """Proposes settings, for an objective with this smoothness and mu.

    `distance` is the root mean square distance per coordinate from the start to the optimum.

    >>> tuner = Tuner(tries=12, smoothness=1.0, mu=1e-3, distance=1.0)
    >>> tuner.stages
    (4, 3, 3, 2)
    >>> coarse = tuner.propose("diloco", 4)
    >>> [round(setting.eta, 4) for setting in coarse]
    [0.002, 0.0312, 0.5, 8.0]
    >>> [new.algorithm.name for new in tuner.propose("diloco", 4, coarse, coarse[2], 3)]
    ['fedavg+nesterov(2.8,0.9)', 'fedavg+nesterov(0.175,0.9)', 'fedavg+nesterov(1.4,0.8)']
    """

    tries: int  # for every method, K and wire
    smoothness: float
    mu: float
    distance: float
    etas: tuple[float, float] = (SMALLEST, LARGEST)  # of the coarse grid, in units of 1/L
    mu_factors: tuple[float, ...] = MU_FACTORS

    @property
    def stages(self) -> tuple[int, ...]:
        """Number of tries in each stage: the coarse grid, then around the best."""
        first = max(3, math.ceil(self.tries / 3))
        left = self.tries - first
        return (first, *(n for n in (len(range(i, left, 3)) for i in range(3)) if n))

    def propose(
        self,
        method: str,
        K: int,
        tried: Collection[Setting] = (),
        best: Setting | None = None,
        count: int = 0,
    ) -> list[Setting]:
        """Return the coarse grid at first, then `count` untried settings near the best one."""
        if method == "lbfgs":  # nothing to tune
            return [] if tried else [Setting(method, eta=0.0)]
        if best is None:
            coarse = [] if tried else self._coarse_grid(AGD if method == "agd" else method)
            return [setting for setting in coarse if self._accepts(setting, K)]
        known = {_rounded(setting) for setting in tried}
        found: list[Setting] = []
        for setting in _neighbours(best, K, self.mu_factors):
            if len(found) == count:
                break
            if _rounded(setting) not in known:
                known.add(_rounded(setting))
                if self._accepts(setting, K):
                    found.append(setting)
        return found

    def _coarse_grid(self, method: str) -> list[Setting]:
        n, eta = self.stages[0], 1 / self.smoothness
        etas = (np.geomspace(*self.etas, n) / self.smoothness).tolist()
        if ":" in method:  # user-defined: its server rule is not known here
            return [Setting(method, eta) for eta in etas]
        step, momentum, piece = tuned_numbers(method)
        if step is None or not isinstance(parsing.split_server_rule(method)[1], Adaptive):
            return [Setting(method, eta, step, momentum, piece=piece) for eta in etas]
        # The clients' step size hardly changes the direction: tune the server's step.
        steps = (np.geomspace(SMALLEST_MOVE, LARGEST_MOVE, n) * self.distance).tolist()
        return [Setting(method, eta / 8, _short(step), momentum, piece=piece) for step in steps]

    def _accepts(self, setting: Setting, K: int) -> bool:
        try:
            couple(setting.algorithm, eta=setting.eta, mu=self.mu * setting.mu_factor, K=K)
        except InputError:
            return False
        return True


def _neighbours(best: Setting, K: int, mu_factors: tuple[float, ...]) -> Iterator[Setting]:
    """Yield the settings around one, the farthest first."""
    step, momentum = best.server_step, best.momentum
    for level in range(LEVELS):
        factor = 4.0 ** (0.5**level)  # the coarse grid is a factor of four, or more
        if level == 0 and needs_mu(best.algorithm, eta=best.eta, K=K):
            for mu in reversed(_adjacent(mu_factors, best.mu_factor)):
                yield replace(best, mu_factor=mu)
        if level == 0 and best.piece is not None:
            for piece in _adjacent(values_to_try(best.method), best.piece):
                yield replace(best, piece=piece)
        if step is not None:
            for times in (factor, 1 / factor):
                yield replace(best, server_step=_short(step * times))
            if level == 0 and momentum is not None:
                for other in _adjacent(MOMENTA, momentum):
                    # Keeps the sum of steps, step / (1 - momentum).
                    same = step * (1 - other) / (1 - momentum)
                    yield replace(best, momentum=other, server_step=_short(same))
            # A longer server step wants shorter client steps, and the reverse.
            for times in (factor, 1 / factor):
                yield replace(best, server_step=_short(step * times), eta=best.eta / times)
        for times in (factor, 1 / factor):
            yield replace(best, eta=best.eta * times)


def _adjacent(values: Sequence[float], now: float) -> list[float]:
    """Return the next smaller and the next larger of some values, where they exist."""
    smaller = [value for value in values if value < now]
    larger = [value for value in values if value > now]
    return smaller[-1:] + larger[:1]


def _short(value: float) -> float:
    """Round to four digits: server steps are part of a method's name."""
    return float(f"{value:.4g}")


def _rounded(setting: Setting) -> tuple[float | None, ...]:
    """Return the numbers to three digits, so that sqrt(2)^2 is 2."""
    numbers = (setting.eta, setting.server_step, setting.momentum, setting.mu_factor, setting.piece)
    return tuple(None if value is None else float(f"{value:.3g}") for value in numbers)
