"""Compare methods by measurement, in rounds, megabytes and seconds, with equal tuning.

A `Question` goes to a `Study`. Its tuner proposes settings, the sweep runs them, and the curves of
the winners on fresh seeds become the rows of a `Comparison` (`table`), from which verdict, figure
and report are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedac.data import Dataset
from fedac.errors import InputError
from fedac.experiments.comparison.question import Budget, Question
from fedac.experiments.comparison.study import Study
from fedac.experiments.comparison.table import Comparison, to_frame
from fedac.experiments.store import open_store
from fedac.federation.link import Link
from fedac.federation.spec import COMPARE

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Budget", "Comparison", "Question", "Study", "compare", "open_store"]

KEYWORDS = replace(COMPARE, names={"algorithm": "methods", "local_steps": "K"})


def compare(
    dataset: str | Path | Dataset,
    methods: str | Iterable[str] = (),
    *,
    K: int | Iterable[int] = (8, 32, 128),
    rounds: int = 200,
    clients: int | None = None,
    split: str | None = None,
    split_seed: int = 0,
    workers: int | None = None,
    participation: float = 1.0,
    batch: int | str = 1,
    weighting: str = "examples",
    wire: str | Iterable[str] = "float32",
    link: Link | str = "wan",
    target: float | None = None,
    budget: str | None = None,
    loss: str = "logistic",
    l2: float = 1e-3,
    intercept: bool = False,
    tries: int = 20,
    seed: int = 1,
    repeats: int = 5,
    out: str | Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[Any], object] = lambda progress: None,
) -> pd.DataFrame:
    """Compare methods on fresh seeds after equal tuning, in rounds, megabytes and seconds.

    Parameters
    ----------
    dataset : str or Path or Dataset
        A registered name, a LIBSVM file, or data: ``fedac.Dataset("mine", X, y)``.
    methods : str or several, optional
        Any composition, and the baselines ``"lbfgs"`` and ``"agd"``. Default: the methods of
        docs/compare.md.
    K : int or several
        Local steps per round.
    rounds : int
        Rounds of every run.
    clients : int, optional
        Number of clients, each with its own rows. Default: 100, or the number in a file of client
        names.
    split : str, optional
        Split of the rows among clients, as in `fedac.split`, or a file of client names. Default:
        "iid".
    split_seed : int
        Seed of the split.
    workers : int, optional
        Instead of clients: M workers that draw from all rows.
    participation, batch, weighting
        As in `simulate`.
    wire : str or several
        Wire formats of messages; every method is tuned for each.
    link : Link or str
        Gives the seconds of a round.
    target : float, optional
        Target suboptimality. If omitted, methods are tuned for and ranked by suboptimality within
        the budget.
    budget : str, optional
        "100 rounds", "2MB" or "60s". Default: the whole run with a target; otherwise the time of
        the shortest run.
    loss, l2, intercept
        Loss by name, regularization strength, and whether to append a column of ones.
    tries : int
        Settings tried for each method, K and wire: step sizes and, where a method has them, server
        steps, momentum and mu.
    seed : int
        First tuning seed; the next `repeats` seeds are the fresh ones.
    repeats : int
        Number of fresh seeds on which the best settings are repeated.
    out : str or Path, optional
        Folder that keeps all runs, so that an interrupted comparison can resume. No tables are
        written to it.
    jobs : int, optional
        As in `fedac.experiments.sweep.run`.
    on_progress : callable
        Called with the progress of each stage.

    Returns
    -------
    DataFrame
        A row per method, K and wire, the best first. ``rounds``, ``megabytes`` and ``seconds`` are
        the cost of the target, NaN if not all seeds reached it. ``suboptimality`` is the mean of
        the last records within the budget, ``smallest`` the smallest record. Columns ending in
        ``_low`` and ``_high`` are 90% prediction intervals for the mean of another `repeats` seeds.
        ``ratio`` is the cost relative to the first row, seed by seed; rows are ``level`` if its
        interval contains 1.

    Examples
    --------
    >>> found = compare("synthetic", ["fedavg", "fedac-i"], K=8, rounds=20, clients=10, l2=1e-2,
    ...                 target=0.05, tries=6, repeats=2)
    >>> found[["method", "K", "reached"]].to_dict("records")[0]
    {'method': 'fedac-i', 'K': 8, 'reached': True}
    """
    if not isinstance(dataset, str | Path | Dataset):
        kind = type(dataset).__name__
        raise InputError(f"dataset must be a name, a path or fedac.Dataset(name, X, y), not {kind}")
    methods = _several(methods)
    if not all(isinstance(name, str) for name in methods):
        raise InputError(f"methods must be names, or 'module:name' for yours; got {methods!r:.60}")
    data = dataset if isinstance(dataset, Dataset) else None
    given = {
        "dataset": data.name if data else str(dataset), "loss": loss, "l2": l2,
        "intercept": intercept, "methods": methods, "K": _several(K), "rounds": rounds,
        "clients": clients, "split": split, "split_seed": split_seed, "workers": workers,
        "participation": participation, "batch": batch, "weighting": weighting,
        "wire": _several(wire), "link": link, "target": target, "budget": budget, "tries": tries,
        "seed": seed, "repeats": repeats,
    }  # fmt: skip
    study = Study(Question.ask(given, KEYWORDS), data)
    with open_store(out) as store:
        return to_frame(study.answer(store, jobs=jobs, on_progress=on_progress))


def _several(values: Any) -> Any:
    return values if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
