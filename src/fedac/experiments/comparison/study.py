"""The study that answers a question: tune every method, then repeat the winners on fresh seeds.

All runs go through the store of a sweep, so an interrupted comparison resumes where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fedac.algorithms.checks import needs_mu
from fedac.algorithms.parsing import find_algorithm
from fedac.data import Dataset, load
from fedac.errors import InputError
from fedac.experiments.comparison.baselines import BASELINES, agd_curve, lbfgs_curve
from fedac.experiments.comparison.question import Budget, Question
from fedac.experiments.comparison.table import (
    EXACT,
    WHOLE_RUN,
    Comparison,
    Curve,
    Row,
    Variant,
    make_row,
    rank_rows,
)
from fedac.experiments.comparison.tuner import Setting, Tuner
from fedac.experiments.store import Store
from fedac.experiments.sweep import Progress, run_groups
from fedac.experiments.workload import key_fingerprint, list_groups, make_workload
from fedac.federation.compression import FLOAT32, bytes_down, bytes_of, bytes_up
from fedac.federation.federation import batch_rows, batch_size, minimized, taking_part
from fedac.federation.link import Costs, run_costs
from fedac.federation.spec import RunSpec
from fedac.objectives import optimum
from fedac.simulation.problem import start_point
from fedac.simulation.result import edge_of
from fedac.validate import Array

# Number of settings that reach the last tuning seed.
FINALISTS = 3
# Accelerated gradient descent shares its steps and tuned numbers with this algorithm.
AGD = "mb-ac-sgd"

Settings = dict[Variant, list[Setting]]


class Study:
    """A question with its data loaded.

    Parameters
    ----------
    question : Question
        What to find out. A target that is already reached at the start raises InputError.
    data : Dataset, optional
        Default: loaded by the name in the question.
    """

    def __init__(self, question: Question, data: Dataset | None = None) -> None:
        self.question = question
        spec = question.spec
        data = data or load(spec.dataset)
        self.task = make_workload(spec, data)
        # All runs of a comparison share these fields.
        self._template = list_groups(spec, self.task, data)[0][0]
        self._clients = self.task.clients.get(self._template.split_hash)
        self._objective = minimized(self.task.objective, self._clients, spec.weighting)
        self._start = start_point(self._objective, None)
        self._f_star = optimum(self._objective).value
        self._mu = self._template.mu or self._objective.strong_convexity
        away = self._objective.value(self._start) - self._f_star
        if spec.target is not None and spec.target >= away:
            raise InputError(
                f"the target {spec.target:g} is already reached at the start, where F - F* is "
                f"{away:.4g}; use a smaller one"
            )
        distance = optimum(self._objective).w - self._start
        self._tuner = Tuner(
            tries=spec.tries,
            smoothness=self._objective.smoothness,
            mu=self._mu,
            distance=float(np.sqrt(np.mean(distance**2))) or 1.0,
        )
        self._variants = [
            Variant(method, K, wire)
            for wire in spec.several("wire")
            for K in spec.several("local_steps")
            for method in spec.several("algorithm")
        ]
        self._costs = cache(self._compute_costs)
        self._curves: dict[tuple[Variant, Setting, int], Curve] = {}
        self._budget = self._find_budget()
        self._runs = self._disguised = 0

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
            Options of `fedac.experiments.sweep.run`: ``jobs``, ``on``, ``ray_address``,
            ``on_compile``.
        """

        def run(stage: str, settings: Settings, seeds: Sequence[int]) -> None:
            on_stage(stage)
            self._run(store, settings, seeds, on_progress=on_progress, **where)

        first, *further = self.question.tuning_seeds
        tuner = self._tuner
        tried: Settings = {variant: [] for variant in self._variants}
        for number, count in enumerate(tuner.stages, start=1):
            best = {variant: found[0] for variant, found in self._ranked(tried, [first]).items()}
            new = {
                variant: tuner.propose(*variant[:2], settings, best.get(variant), count)
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

    def _run(self, store: Store, settings: Settings, seeds: Sequence[int], **how: Any) -> None:
        """Run settings on seeds, and keep their curves."""
        configs: dict[tuple[Variant, Setting, int], RunSpec] = {}
        # One call of the engine runs all settings that share K, wire, mu and seed.
        groups: dict[tuple[int, str, float, int], list[RunSpec]] = {}
        for variant, each in settings.items():
            for setting in each:
                for seed in seeds:
                    config = self._config(variant, setting, seed)
                    configs[variant, setting, seed] = config
                    shared = (variant.K, variant.wire, setting.mu_factor, seed)
                    groups.setdefault(shared, []).append(config)
        listed = [tuple(group) for group in groups.values()]
        algorithms = {one.algorithm.name: one.algorithm for _, one, _ in configs}
        task = replace(self.task, algorithms=algorithms)
        done = run_groups(task, listed, store, **how)
        self._runs += len(done.keys)
        self._disguised += done.disguised
        stored = store.curves({config.key for config in configs.values()})
        for (variant, setting, seed), config in configs.items():
            found = stored[config.key]
            values = np.maximum(np.array(found.suboptimality), EXACT)
            if found.status != "ok":  # no part of a diverged run counts
                values = np.full(len(values), np.inf)
            rounds = np.array(found.steps) // variant.K
            self._curves[variant, setting, seed] = self._curve(variant, seed, rounds, values)

    def _curve(self, variant: Variant, seed: int, rounds: Any, values: Array) -> Curve:
        """Return a curve whose suboptimality was recorded after these rounds."""
        costs = self._costs(variant, seed)
        count = costs.rounds[rounds].astype(float)
        return Curve(count, costs.megabytes[rounds], costs.seconds[rounds], values)

    def _config(self, variant: Variant, setting: Setting, seed: int) -> RunSpec:
        factor, rounds = setting.mu_factor, self.question.rounds_of(variant.K)
        return replace(
            self._template,
            algorithm=setting.algorithm.name,
            fingerprint=key_fingerprint(setting.algorithm),
            local_steps=variant.K,
            steps=variant.K * rounds,
            eta=setting.eta,
            mu=self._template.mu if factor == 1 else self._mu * factor,
            seed=seed,
            record_every=variant.K * self.question.rounds_between_records(variant.K),
            wire=variant.wire,
        )

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
        target = self.question.spec.target
        if target is None:
            return (result,)
        costs = [curve.cost_of(target, "rounds") for curve in curves]
        finite = [math.log(cost) for cost in costs if cost < math.inf]
        return len(costs) - len(finite), sum(finite) / max(len(finite), 1), result

    def _compare(self, tried: Settings, winners: dict[Variant, Setting]) -> Comparison:
        """Return the table of winners and baselines."""
        question, rows = self.question, []
        curves: dict[Variant, tuple[Curve, ...]] = {}
        for variant in self._variants:
            best = winners.get(variant)
            if best and all(
                self._curves[variant, best, s].converged for s in question.tuning_seeds
            ):
                fresh = (self._curves[variant, best, seed] for seed in question.fresh_seeds)
                curves[variant] = tuple(fresh)
            else:
                best = None
            rows.append(self._row(variant, tried[variant], best, curves.get(variant, ())))
        for name in question.baselines:
            variant = Variant(name, 1, FLOAT32)
            settings, best, curves[variant] = self._baseline(variant)
            rows.append(self._row(variant, settings, best, curves[variant]))
        return Comparison(
            question=question,
            rows=rank_rows(rows, curves, question.spec.target, self._budget),
            budget=self._budget,
            curves=curves,
            runs=self._runs,
            disguised=self._disguised,
            f_star=self._f_star,
            dim=self.task.objective.dim,
        )

    def _row(
        self,
        variant: Variant,
        tried: Sequence[Setting],
        best: Setting | None,
        curves: Sequence[Curve],
    ) -> Row:
        baseline = variant.method in BASELINES
        every = 0 if baseline else self.question.rounds_between_records(variant.K)
        tuned: dict[str, Any] = {}
        if best is not None:  # None: every try diverged, or there is nothing to tune
            steps = [one.server_step for one in tried if one.server_step is not None]
            with_mu = needs_mu(best.algorithm, eta=best.eta, K=variant.K)
            tuned = {
                "algorithm": variant.method if baseline else best.algorithm.name,
                "eta": best.eta,
                "server_step": best.server_step,
                "momentum": best.momentum,
                "mu": self._mu * best.mu_factor if with_mu else None,
                "edge": _edge(best.eta, [one.eta for one in tried]),
                "server_edge": _edge(best.server_step, steps),
            }
        return make_row(variant, curves, self.question.spec.target, self._budget, every, **tuned)

    def _baseline(
        self, variant: Variant
    ) -> tuple[list[Setting], Setting | None, tuple[Curve, ...]]:
        """Return the settings tried for a baseline, the best of them and its curves."""
        F, start, rounds = self._objective, self._start, self.question.rounds_of(variant.K)
        if variant.method == "lbfgs":  # nothing to tune
            return [], None, self._baseline_curves(variant, lbfgs_curve(F, start, rounds))
        found: dict[Setting, tuple[Curve, ...]] = {}

        def score(setting: Setting) -> tuple[float, ...]:
            return self._score(found[setting])

        for count in self._tuner.stages:
            best = min(found, key=score, default=None)
            for setting in self._tuner.propose(AGD, 1, found, best, count):
                values = agd_curve(F, start, rounds, setting.eta, self._mu * setting.mu_factor)
                found[setting] = self._baseline_curves(variant, values)
        best = min(found, key=score)
        return list(found), best, found[best]

    def _baseline_curves(self, variant: Variant, values: Array) -> tuple[Curve, ...]:
        """Return a curve for each fresh seed; they differ only in the clients' speed."""
        suboptimality = np.maximum(values - self._f_star, EXACT)
        if not math.isfinite(values[-1]):
            suboptimality[:] = np.inf
        every = np.arange(len(values))
        seeds = self.question.fresh_seeds
        return tuple(self._curve(variant, seed, every, suboptimality) for seed in seeds)

    def _find_budget(self) -> Budget:
        """Return the budget of the question, or the default one."""
        budget, target = self.question.budget, self.question.spec.target
        if budget is None and (target is not None or self.question.spec.steps is not None):
            return WHOLE_RUN
        axis = "seconds" if budget is None else budget.axis
        spent = [
            getattr(self._costs(variant, seed), axis)
            for variant in self._variants
            for seed in self.question.fresh_seeds
        ]
        ends = [float(each[-1]) for each in spent]
        if budget is None:  # the time in which every run ends
            return Budget(min(ends), axis)
        first = Budget(max(float(each[1]) for each in spent), axis)
        if budget.amount < first.amount:
            raise InputError(
                f"the budget of {budget} ends before the first round of some method; use at least "
                f"{first}"
            )
        return budget._replace(amount=min(budget.amount, max(ends)))

    def _compute_costs(self, variant: Variant, seed: int) -> Costs:
        dim, M, template = self.task.objective.dim, self._template.M, self._template
        rounds = self.question.rounds_of(variant.K)
        n, batch = self.task.objective.n_samples, batch_size(template.batch)
        members, minibatch = taking_part(template.participation, M), False
        if variant.method in self.question.baselines:  # a vector each way, all rows of all clients
            up = down = bytes_of(FLOAT32, dim)
            members, batch = None, None
        else:
            algorithm = find_algorithm(variant.method)
            up, down = bytes_up(algorithm, dim, variant.wire), bytes_down(algorithm, dim)
            minibatch = algorithm.minibatch
        return run_costs(
            bytes_up=up, bytes_down=down, gaps=(variant.K,) * rounds, link=self.question.link,
            seed=seed, M=M, taking_part=members, rows=batch_rows(batch, n, self._clients),
            minibatch=minibatch,
        )  # fmt: skip


def _edge(value: float | None, tried: Sequence[float]) -> str:
    return "" if value is None else edge_of(value, min(tried), max(tried)) or ""
