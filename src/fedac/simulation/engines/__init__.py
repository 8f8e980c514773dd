"""Choose an engine: the fast one if it can run the problem, else the reference, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Generator

from fedac.cluster import connect
from fedac.errors import InputError, SlowEngineWarning, unknown_name
from fedac.simulation.engines import reference
from fedac.simulation.problem import Problem, Snapshot, require_cluster, require_threads

ENGINES = ("fast", "reference")
PRECISIONS = ("float32", "float64")


def start_engine(
    problem: Problem,
    engine: str | None,
    precision: str,
    threads: int | None,
    on: str | None,
) -> tuple[str, Generator[list[Snapshot]]]:
    """Return the name of the chosen engine, and a generator of its snapshots."""
    if engine not in (None, *ENGINES):
        raise unknown_name("engine", str(engine), ENGINES)
    if precision not in PRECISIONS:
        raise unknown_name("precision", str(precision), PRECISIONS)
    require_threads(threads)
    require_cluster(on, engine)
    if on is not None:
        engine = "fast"
    if engine == "reference":
        return "reference", reference.run(problem)
    # Imports Numba, which the reference engine does not need.
    from fedac.simulation.engines.linear import engine as fast

    try:
        fast.check(problem)
    except InputError as reason:
        if engine == "fast":
            else_use = "on one machine, use engine='reference'" if on else "use engine='reference'"
            raise InputError(f"{reason}; {else_use}") from None
        warnings.warn(
            f"running on the reference engine, up to 500 times slower: {reason}",
            SlowEngineWarning,
            stacklevel=3,
        )
        return "reference", reference.run(problem)
    from numba import get_num_threads

    threads = threads or get_num_threads()
    if on is not None:
        return "fast", _run_on_ray(problem, precision, threads)
    return "fast", fast.run(problem, dtype=precision, threads=threads)


def _run_on_ray(problem: Problem, precision: str, threads: int) -> Generator[list[Snapshot]]:
    """Run a problem on all nodes of a Ray cluster."""
    from fedac.simulation.engines.linear import engine
    from fedac.simulation.engines.ray import driver

    with connect(), driver.Crew(problem, precision, driver.places()) as actors:
        yield from engine.run(problem, dtype=precision, threads=threads, crew=actors)
