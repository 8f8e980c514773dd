"""A comparison: the runs that answer a question, tuned by search and repeated on fresh seeds.

All runs go through the store of a sweep, so a comparison that was stopped continues where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedac.algorithms.checks import needs_mu
from fedac.data import Dataset
from fedac.errors import InputError
from fedac.experiments.comparison.baselines import baseline_curve
from fedac.experiments.comparison.question import Budget, Question
from fedac.experiments.comparison.rows import (
    EXACT,
    NOTHING,
    WHOLE,
    Curve,
    Row,
    find_costs,
    find_ratio,
)
from fedac.experiments.comparison.tuner import Try, Tuner
from fedac.experiments.grid import Config
from fedac.experiments.plugins import find_algorithm
from fedac.experiments.run_key import key_fingerprint
from fedac.experiments.store import Store
from fedac.experiments.summary import predict
from fedac.experiments.sweep import Progress, run_groups
from fedac.experiments.task import Task, make_task, prepare
from fedac.federation.compression import FLOAT32, bytes_down, bytes_of, bytes_up
from fedac.federation.federation import batch_rows, require_batch, taking_part
from fedac.objectives import optimum
from fedac.objectives.heterogeneity import minimized
from fedac.simulation.problem import start_point
from fedac.simulation.result import edge_of
from fedac.validate import Array

# How many settings go on to the last of the tuning seeds.
FINALISTS = 3
# The record with which accelerated gradient descent shares its steps and what is tuned.
AGD = "mb-ac-sgd"


class Cell(NamedTuple):
    """What is tuned by itself."""

    method: str
    K: int
    wire: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The answer to a question.

    Attributes
    ----------
    rows : tuple of Row
        The best first.
    budget : Budget
        That of the rows' suboptimality.
    curves : dict
        By method, K and wire: a `Curve` for each fresh seed.
    runs : int
        How many runs it took, those found in the store included.
    disguised : int
        How many of them are FedAvg, though their method is FedAc (`Task.disguised`).
    f_star : float
        The minimum of the objective.
    """

    question: Question
    rows: tuple[Row, ...]
    budget: Budget
    curves: dict[Cell, tuple[Curve, ...]]
    runs: int
    disguised: int
    f_star: float
    dim: int

    @property
    def best_rows(self) -> tuple[Row, ...]:
        """The best row of every method and wire, the best first."""
        best: dict[tuple[str, str], Row] = {}
        for row in self.rows:
            best.setdefault((row.method, row.wire), row)
        return tuple(best.values())


def answer(
    question: Question,
    store: Store,
    *,
    data: Dataset | None = None,
    on_stage: Callable[[str], object] = lambda stage: None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    **where: Any,
) -> Comparison:
    """Answer a question with the runs of a store, and those that it lacks.

    Parameters
    ----------
    question : Question
        What to find out.
    store : Store
        Where runs are kept.
    data : Dataset, optional
        Already loaded; by default those that the question names.
    on_stage : callable
        Called with the name of a stage when it begins.
    on_progress : callable
        Called with the `Progress` of a stage.
    where
        Options of `fedac.experiments.sweep.run`: ``jobs``, ``on``, ``ray_address``, ``on_compile``.
    """
    task = prepare(question.grid) if data is None else make_task(question.grid, data)
    require_distance(question, task)
    study = _Study(question, task, store)

    def run(stage: str, tries: dict[Cell, list[Try]], seeds: Sequence[int]) -> None:
        on_stage(stage)
        groups = [
            tuple(study.config(cell, one, seed) for cell, one in here)
            for here in _together(tries)
            for seed in seeds
        ]
        records = {one.algorithm: one.record for each in tries.values() for one in each}
        on_task = replace(task, algorithms=records, groups=groups)
        done = run_groups(on_task, groups, store, on_progress=on_progress, **where)
        study.runs += len(done.keys)
        study.disguised += done.disguised

    first, *further = question.tuning_seeds
    tried: dict[Cell, list[Try]] = {cell: [] for cell in study.cells}
    for number, count in enumerate(study.tuner.stages, start=1):
        best = {cell: found[0] for cell, found in study.ranked(tried, [first]).items()}
        new = {cell: study.propose(cell, best.get(cell), tried[cell], count) for cell in tried}
        run(f"search {number} of {len(study.tuner.stages)}", new, [first])
        tried = {cell: tried[cell] + new[cell] for cell in tried}
    # Successive halving: the better a setting, the more seeds decide on it.
    few, seeds = max(FINALISTS, math.ceil(question.tries / 4)), [first]
    finalists = study.ranked(tried, seeds)
    for seed in further:
        finalists = {cell: found[:few] for cell, found in finalists.items()}
        run("best settings on another seed", finalists, [seed])
        seeds.append(seed)
        finalists, few = study.ranked(finalists, seeds), FINALISTS
    best = {cell: found[0] for cell, found in finalists.items()}
    run("winners on fresh seeds", {cell: [one] for cell, one in best.items()}, question.fresh_seeds)
    return study.compare(tried, best)


def require_distance(question: Question, task: Task) -> None:
    """Refuse a target that is reached at the start."""
    if question.target is None:
        return
    split = task.groups[0][0].split_hash
    F = minimized(task.objective, task.clients.get(split), question.grid.weighting)
    start = F.value(start_point(F, None)) - task.minima()[split]
    if question.target >= start:
        raise InputError(
            f"the target {question.target:g} is already reached at the start, where F - F* is "
            f"{start:.4g}; use a smaller one"
        )


class _Study:
    """A question with its data and its store."""

    def __init__(self, question: Question, task: Task, store: Store) -> None:
        self.question = question
        self.task = task
        self.store = store
        self.runs = self.disguised = 0
        grid = question.grid
        self.cells = [
            Cell(method, K, wire)
            for wire in grid.wire
            for K in grid.local_steps
            for method in grid.algorithms
        ]
        self.baselines = [Cell(name, 1, FLOAT32) for name in question.baselines]
        # All that the runs of a comparison have in common.
        self._template = task.groups[0][0]
        self._clients = task.clients.get(self._template.split_hash)
        self._objective = minimized(task.objective, self._clients, grid.weighting)
        self._start = start_point(self._objective, None)
        self.f_star = task.minima()[self._template.split_hash]
        self._mu = self._template.mu or self._objective.strong_convexity
        self.tuner = Tuner(question.tries, self._objective.smoothness, self._mu, self._distance())
        self.budget = self._find_budget()
        self._known: dict[str, Curve] = {}

    def propose(self, cell: Cell, best: Try | None, tried: Sequence[Try], count: int) -> list[Try]:
        """Return the next tries of a cell: a coarse grid first, then near the best."""
        if best is None:
            return [] if tried else self.tuner.coarse(cell.method, cell.K)
        return self.tuner.near(best, tried, count, cell.K)

    def config(self, cell: Cell, one: Try, seed: int) -> Config:
        """Return the run of a try."""
        factor = one.setting.mu
        return replace(
            self._template,
            algorithm=one.algorithm,
            fingerprint=key_fingerprint(one.record),
            K=cell.K,
            T=cell.K * self.question.rounds_of(cell.K),
            eta=one.eta,
            mu=self._template.mu if factor == 1 else self._mu * factor,
            seed=seed,
            record_every=cell.K * self.question.rounds_between_records(cell.K),
            wire=cell.wire,
        )

    def ranked(self, tries: dict[Cell, list[Try]], seeds: Sequence[int]) -> dict[Cell, list[Try]]:
        """Return the tries of every cell that has some, the best on these seeds first."""
        curves = self._curves(tries, seeds)
        ranked = {}
        for cell, each in tries.items():
            scores = [self._score(found) for found in curves[cell]]
            if each:
                ranked[cell] = [each[i] for i in sorted(range(len(each)), key=scores.__getitem__)]
        return ranked

    def compare(self, tried: dict[Cell, list[Try]], best: dict[Cell, Try]) -> Comparison:
        """Make the table of the winners, as they did on fresh seeds, and of the baselines."""
        winners = {cell: [one] for cell, one in best.items()}
        tuned = self._curves(winners, self.question.tuning_seeds)
        winners = {cell: one for cell, one in winners.items() if _converges(tuned[cell][0])}
        fresh = self._curves(winners, self.question.fresh_seeds)
        curves = {cell: tuple(found) for cell, (found,) in fresh.items()}
        rows = {
            cell: self._row(cell, tried[cell], winners.get(cell, [None])[0], curves.get(cell, ()))
            for cell in self.cells
        }
        for cell in self.baselines:
            tries, one, curves[cell] = self._baseline(cell)
            rows[cell] = self._row(cell, tries, one, curves[cell])
        cells = sorted(rows, key=lambda cell: rows[cell].rank)
        first = curves.get(cells[0], ())
        target, budget = self.question.target, self.budget
        return Comparison(
            question=self.question,
            rows=tuple(
                replace(rows[cell], ratio=find_ratio(curves.get(cell, ()), first, target, budget))
                for cell in cells
            ),
            budget=budget,
            curves=curves,
            runs=self.runs,
            disguised=self.disguised,
            f_star=self.f_star,
            dim=self.task.objective.dim,
        )

    def _baseline(self, cell: Cell) -> tuple[list[Try], Try | None, tuple[Curve, ...]]:
        """Return the tries of a baseline, the best of them and its curves; L-BFGS has no tries."""
        tries: list[Try] = []
        if cell.method != "agd":
            return tries, None, self._baseline_curves(cell)
        found: dict[Try, tuple[Curve, ...]] = {}
        for count in self.tuner.stages:
            ranked = sorted(found, key=lambda one: self._score(found[one]))
            near = (self.tuner.near(ranked[0], tries, count, 1) if ranked
                    else self.tuner.coarse(AGD, 1))  # fmt: skip
            for one in near:
                mu = self._mu * one.setting.mu
                found[one] = self._baseline_curves(cell, eta=one.eta, mu=mu)
            tries += near
        best = min(found, key=lambda one: self._score(found[one]))
        return tries, best, found[best]

    def _baseline_curves(self, cell: Cell, **setting: float) -> tuple[Curve, ...]:
        """Return a curve for each fresh seed, which differ only in how slow the clients are."""
        rounds = self.question.rounds
        values = baseline_curve(cell.method, self._objective, self._start, rounds, **setting)
        suboptimality = np.maximum(values - self.f_star, EXACT)
        if not math.isfinite(values[-1]):
            suboptimality[:] = np.inf
        return tuple(
            Curve(*self._axes(cell, seed), suboptimality) for seed in self.question.fresh_seeds
        )

    def _row(
        self, cell: Cell, tried: Sequence[Try], best: Try | None, curves: tuple[Curve, ...]
    ) -> Row:
        target = self.question.target
        known = cell in self.baselines
        every = 0 if known else self.question.rounds_between_records(cell.K)
        costs = find_costs(curves, target, every)
        reached = [c.cost_of(target, "rounds") < math.inf for c in curves] if target else []
        within, smallest = NOTHING, NOTHING
        if curves:
            within = predict([curve.within(self.budget) for curve in curves])
            smallest = predict([curve.smallest_within(self.budget) for curve in curves])
        return Row(
            **cell._asdict(),
            **self._setting(cell, tried, best),
            all_clients=known,
            reached=None if target is None else bool(reached) and all(reached),
            seeds_reached=sum(reached),
            rounds=costs["rounds"],
            megabytes=costs["megabytes"],
            seconds=costs["seconds"],
            suboptimality=within,
            smallest=smallest,
        )

    def _setting(self, cell: Cell, tried: Sequence[Try], best: Try | None) -> dict[str, Any]:
        """Return the tuned numbers of a row, and whether they are at an edge of those tried."""
        if best is None:  # all tries diverged, or there is nothing to tune
            numbers = dict.fromkeys(("eta", "server_step", "momentum", "mu"))
            return {"algorithm": cell.method, **numbers, "edge": "", "server_edge": ""}
        setting = best.setting
        steps = [one.setting.step for one in tried if one.setting.step is not None]
        with_mu = needs_mu(best.record, eta=best.eta, K=cell.K)
        return {
            "algorithm": cell.method if cell in self.baselines else best.algorithm,
            "eta": setting.eta,
            "server_step": setting.step,
            "momentum": setting.beta,
            "mu": self._mu * setting.mu if with_mu else None,
            "edge": _edge(setting.eta, [one.eta for one in tried]),
            "server_edge": _edge(setting.step, steps),
        }

    def _score(self, curves: Sequence[Curve]) -> tuple[float, ...]:
        """Return what tries are ranked by, as rows are: the cost of the target, or what is reached.

        Of seeds that do not reach the target, the fewer the better.
        """
        reached = float(np.mean([math.log(curve.within(self.budget)) for curve in curves]))
        target = self.question.target
        if target is None:
            return (reached,)
        costs = [curve.cost_of(target, "rounds") for curve in curves]
        finite = [math.log(cost) for cost in costs if cost < math.inf]
        return len(costs) - len(finite), sum(finite) / max(len(finite), 1), reached

    def _distance(self) -> float:
        """Return how far the optimum is from the start, per coordinate."""
        away = optimum(self._objective).w - self._start
        return float(np.sqrt(np.mean(away**2))) or 1.0

    def _find_budget(self) -> Budget:
        """Return the budget of a question, or the one that goes without saying."""
        question = self.question
        if question.budget is None and (question.target or question.steps):
            return WHOLE
        axis = "seconds" if question.budget is None else question.budget.axis
        spent = [
            getattr(self._axes(cell, seed), axis)
            for cell in self.cells
            for seed in question.fresh_seeds
        ]
        ends = [float(each[-1]) for each in spent]
        if question.budget is None:  # in which every run ends
            return Budget(min(ends), axis)
        first = Budget(max(float(each[1]) for each in spent), axis)
        if question.budget.amount < first.amount:
            raise InputError(
                f"the budget of {question.budget} ends before the first round of some method; give "
                f"at least {first}"
            )
        return question.budget._replace(amount=min(question.budget.amount, max(ends)))

    def _axes(self, cell: Cell, seed: int) -> Axes:
        """Return what a run costs round by round, which does not depend on its numbers."""
        dim, M, template = self.task.objective.dim, self._template.M, self._template
        rounds = self.question.rounds_of(cell.K)
        n, batch = self.task.objective.n_samples, require_batch(template.batch)
        members, minibatch = taking_part(template.participation, M), False
        if cell in self.baselines:  # a vector each way, all rows of all clients
            up = down = bytes_of(FLOAT32, dim)
            members, batch = None, None
        else:
            record = find_algorithm(cell.method)
            up, down = bytes_up(record, dim, cell.wire), bytes_down(record, dim)
            minibatch = record.minibatch
        elapsed = self.question.link.elapsed(
            up=up, down=down, gaps=(cell.K,) * rounds, seed=seed, M=M, taking_part=members,
            rows=batch_rows(batch, n, self._clients), minibatch=minibatch,
        )  # fmt: skip
        count = np.arange(rounds + 1.0)
        return Axes(count, count * (up + down) / 1e6, elapsed)

    def _curves(
        self, tries: dict[Cell, list[Try]], seeds: Sequence[int]
    ) -> dict[Cell, list[list[Curve]]]:
        """Return by cell, and by try, the curve of every seed."""
        configs = {
            (cell, i, seed): self.config(cell, one, seed)
            for cell, each in tries.items()
            for i, one in enumerate(each)
            for seed in seeds
        }
        new = {config.key for config in configs.values()} - self._known.keys()
        stored = self.store.curves(new)
        axes: dict[tuple[Cell, int], Axes] = {}
        for (cell, _, seed), config in configs.items():
            if config.key in new:
                if (cell, seed) not in axes:
                    axes[cell, seed] = self._axes(cell, seed)
                found = stored[config.key]
                values = np.maximum(np.array(found.suboptimality), EXACT)
                if found.status != "ok":  # nothing of a run that diverged counts
                    values = np.full(len(values), np.inf)
                rounds = np.array(found.steps) // cell.K
                count, megabytes, seconds = (axis[rounds] for axis in axes[cell, seed])
                self._known[config.key] = Curve(count, megabytes, seconds, values)

        def curves_of(cell: Cell, i: int) -> list[Curve]:
            return [self._known[configs[cell, i, seed].key] for seed in seeds]

        return {
            cell: [curves_of(cell, i) for i in range(len(each))] for cell, each in tries.items()
        }


class Axes(NamedTuple):
    """What a run has cost before the first round and after each one."""

    rounds: Array
    megabytes: Array
    seconds: Array


def _converges(curves: Sequence[Curve]) -> bool:
    return all(math.isfinite(curve.suboptimality[-1]) for curve in curves)


def _edge(value: float | None, tried: Sequence[float]) -> str:
    return "" if value is None else edge_of(value, min(tried), max(tried)) or ""


def _together(tries: dict[Cell, list[Try]]) -> Iterator[list[tuple[Cell, Try]]]:
    """Group what one call of the engine can run: the same K, wire and mu."""
    groups: dict[tuple[int, str, float], list[tuple[Cell, Try]]] = {}
    for cell, each in tries.items():
        for one in each:
            groups.setdefault((cell.K, cell.wire, one.setting.mu), []).append((cell, one))
    yield from groups.values()
