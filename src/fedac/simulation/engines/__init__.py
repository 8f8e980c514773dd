# SPDX-License-Identifier: Apache-2.0
"""The list of engines, and the choice among them."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from importlib import import_module
from typing import TYPE_CHECKING, cast

from fedac.errors import InputError, SlowEngineWarning
from fedac.simulation.problem import PRECISIONS, Problem, Snapshot, require_cluster, require_threads
from fedac.validate import unknown_name

if TYPE_CHECKING:
    from fedac.simulation.engines.base import Engine

# Names and modules of the engines, in the order in which they are tried. Modules are imported
# lazily: the reference engine must not pay for importing Numba.
ENGINES = (
    ("fast", "linear.engine"),
    ("network", "network.engine"),
    ("reference", "reference"),
)


def start_engine(
    problem: Problem, name: str | None
) -> tuple[str, Problem, Generator[list[Snapshot]]]:
    """Choose an engine, or take the named one.

    Returns its name, the problem with the choices that the engine made, and its snapshots.
    """
    names = tuple(dict.fromkeys(known for known, _ in ENGINES))
    if name not in (None, *names):
        raise unknown_name("engine", str(name), names)
    if problem.precision not in PRECISIONS:
        raise unknown_name("precision", str(problem.precision), PRECISIONS)
    require_threads(problem.threads)
    require_cluster(problem.on, name)
    reasons: list[str] = []
    for known, module in ENGINES:
        if name not in (None, known):
            continue
        if known == "network" and not problem.objective.is_network:  # do not import PyTorch
            reasons.append("the network engine runs a fedac.Network")
            continue
        engine = cast("Engine", import_module(f"{__name__}.{module}"))
        if reason := engine.refuse(problem):
            reasons.append(reason)
            continue
        if known == "reference" and reasons:
            text = f"running on the reference engine, up to 500 times slower: {reasons[0]}"
            warnings.warn(text, SlowEngineWarning, stacklevel=5)
        if hasattr(engine, "settle"):
            problem = engine.settle(problem)
        return known, problem, engine.run(problem)
    where = "on one machine, use" if problem.on else "use"
    other = "network" if problem.objective.is_network else "reference"
    raise InputError(f"{reasons[0]}; {where} engine='{other}'")
