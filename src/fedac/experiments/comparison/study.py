"""Answers a question: tunes every method equally, then repeats the winners on fresh seeds.

Three stages, each a sweep of its own: a coarse grid of step sizes; a finer one around the best; the
best setting of each method, K and wire on seeds that were not used for tuning. So the figures
reported are not those of the lucky draw that won. All runs are kept in a store: a comparison that
was stopped continues where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedac.algorithms.server_steps import server_step
from fedac.data import Dataset
from fedac.errors import InputError
from fedac.experiments.comparison.budget import Budget
from fedac.experiments.comparison.curves import Curve, smallest_so_far
from fedac.experiments.comparison.question import Question
from fedac.experiments.comparison.rows import (
    WHOLE,
    Row,
    common_budget,
    find_costs,
    find_reached,
    within_runs,
)
from fedac.experiments.comparison.tries import Try, Tuner
from fedac.experiments.grid import Config
from fedac.experiments.identity import key_fingerprint
from fedac.experiments.store import Store
from fedac.experiments.sweep import Progress, run_groups
from fedac.experiments.task import Task, make_task, prepare
from fedac.objectives.over_clients import minimized
from fedac.simulation.federation import taking_part
from fedac.simulation.inputs import start_point
from fedac.simulation.result import edge_of
from fedac.wire import bytes_down, bytes_up

STAGES = ("coarse", "fine", "repeats")


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
        Called with one of `STAGES` when it begins.
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
            tuple(study.config(cell, one, seed) for cell, each in here for one in each)
            for here in _together(tries)
            for seed in seeds
        ]
        groups = [group for group in groups if group]
        records = {one.algorithm: one.record for each in tries.values() for one in each}
        on_task = replace(task, algorithms=records, groups=groups)
        done = run_groups(on_task, groups, store, on_progress=on_progress, **where)
        study.runs += len(done.keys)
        study.disguised += done.disguised

    tuning = question.grid.seeds
    coarse = {cell: study.tuner.coarse(cell.method, cell.K) for cell in study.cells}
    run("coarse", coarse, tuning)
    best = study.best_of(coarse)
    fine = {cell: study.tuner.fine(one, cell.K) for cell, one in best.items()}
    run("fine", fine, tuning)
    tried = {cell: coarse[cell] + fine.get(cell, []) for cell in study.cells}
    best = study.best_of(tried)
    run("repeats", {cell: [one] for cell, one in best.items()}, question.fresh_seeds)
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
        # All that the runs of a comparison have in common.
        self._template = task.groups[0][0]
        clients = task.clients.get(self._template.split_hash)
        objective = minimized(task.objective, clients, grid.weighting)
        self.f_star = task.minima()[self._template.split_hash]
        mu = self._template.mu or objective.strong_convexity
        self.tuner = Tuner(question.tries, objective.smoothness, mu)

    def config(self, cell: Cell, one: Try, seed: int) -> Config:
        """Return the run of a try."""
        return replace(
            self._template,
            algorithm=one.algorithm,
            fingerprint=key_fingerprint(one.record),
            K=cell.K,
            T=cell.K * self.question.rounds_of(cell.K),
            eta=one.eta,
            seed=seed,
            record_every=cell.K * self.question.rounds_between_records(cell.K),
            wire=cell.wire,
        )

    def best_of(self, tries: dict[Cell, list[Try]]) -> dict[Cell, Try]:
        """Return the best try of every cell in which one did not diverge."""
        (seed,) = self.question.grid.seeds
        best = {}
        for cell, curves in self._curves(tries, [seed]).items():
            scores = [self._score(curve) for (curve,) in curves]
            place = min(range(len(scores)), key=scores.__getitem__, default=None)
            if place is not None and scores[place][1] < math.inf:
                best[cell] = tries[cell][place]
        return best

    def compare(self, tried: dict[Cell, list[Try]], best: dict[Cell, Try]) -> Comparison:
        """Make the table of the winners, as they did on fresh seeds."""
        question, seeds = self.question, self.question.fresh_seeds
        winners = {cell: [one] for cell, one in best.items()}
        curves = {cell: tuple(found) for cell, (found,) in self._curves(winners, seeds).items()}
        every = [curve for found in curves.values() for curve in found]
        budget = question.budget or (common_budget(every) if question.steps is None else WHOLE)
        budget = within_runs(budget, every) if question.budget else budget
        rows = [
            self._row(cell, tried[cell], best.get(cell), curves.get(cell, ()), budget)
            for cell in self.cells
        ]
        return Comparison(
            question=question,
            rows=tuple(sorted(rows, key=lambda row: row.rank)),
            budget=budget,
            curves=curves,
            runs=self.runs,
            disguised=self.disguised,
            f_star=self.f_star,
            dim=self.task.objective.dim,
        )

    def _row(
        self,
        cell: Cell,
        tried: Sequence[Try],
        best: Try | None,
        curves: tuple[Curve, ...],
        budget: Budget,
    ) -> Row:
        target = self.question.target
        costs = find_costs(curves, target, self.question.rounds_between_records(cell.K))
        counts = [target is not None and c.cost_of(target, "rounds") < math.inf for c in curves]
        etas = [one.eta for one in tried]
        own = ":" in cell.method
        return Row(
            **cell._asdict(),
            algorithm=best.algorithm if best else cell.method,
            eta=best.eta if best else None,
            server_step=None if own or best is None else server_step(best.algorithm),
            edge=(best and edge_of(best.eta, min(etas), max(etas))) or "",
            reached=bool(counts) and all(counts),
            seeds_reached=sum(counts),
            rounds=costs["rounds"],
            megabytes=costs["megabytes"],
            seconds=costs["seconds"],
            suboptimality=find_reached(curves, budget),
        )

    def _score(self, curve: Curve) -> tuple[float, float]:
        """Return what tries are ranked by: rounds to the target, then what was reached at last."""
        target, last = self.question.target, float(curve.suboptimality[-1])
        return math.inf if target is None else curve.cost_of(target, "rounds"), last

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
        stored = self.store.curves(config.key for config in configs.values())

        def curve(cell: Cell, i: int, seed: int) -> Curve:
            config = configs[cell, i, seed]
            found = stored[config.key]
            up = bytes_up(tries[cell][i].record, self.task.objective.dim, cell.wire)
            down = bytes_down(tries[cell][i].record, self.task.objective.dim)
            elapsed = self.question.link.elapsed(
                up=up, down=down, gaps=(cell.K,) * self.question.rounds_of(cell.K), seed=seed,
                M=config.M, taking_part=taking_part(config.participation, config.M),
            )  # fmt: skip
            rounds = np.array(found.steps) // cell.K
            suboptimality = np.array(found.suboptimality)
            return Curve(
                rounds=rounds.astype(np.float64),
                megabytes=rounds * (up + down) / 1e6,
                seconds=elapsed[rounds],
                suboptimality=smallest_so_far(suboptimality, diverged=found.status != "ok"),
            )

        return {
            cell: [[curve(cell, i, seed) for seed in seeds] for i in range(len(each))]
            for cell, each in tries.items()
        }


def _together(tries: dict[Cell, list[Try]]) -> Iterator[Iterable[tuple[Cell, list[Try]]]]:
    """Group what one call of the engine can run: the same K and wire."""
    groups: dict[tuple[int, str], list[tuple[Cell, list[Try]]]] = {}
    for cell, each in tries.items():
        groups.setdefault((cell.K, cell.wire), []).append((cell, each))
    yield from groups.values()
