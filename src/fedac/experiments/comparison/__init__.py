"""Which method, in rounds, megabytes and seconds: by measurement, every method tuned equally."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fedac.data import Dataset
from fedac.errors import InputError
from fedac.experiments.comparison.question import TRIES, Budget, Question
from fedac.experiments.comparison.study import Comparison, answer
from fedac.experiments.comparison.table import to_frame
from fedac.experiments.store import Store
from fedac.federation.link import Link, as_link

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Budget", "Comparison", "Question", "answer", "compare", "open_store"]

# What `compare` calls the values of a grid.
ARGUMENTS = {"algorithms": "methods", "local_steps": "K", "seeds": "seed"}


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
    tries: int = TRIES,
    seed: int = 1,
    repeats: int = 5,
    out: str | Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[Any], object] = lambda progress: None,
) -> pd.DataFrame:
    """Tune methods equally and compare them on fresh seeds, in rounds, megabytes and seconds.

    Parameters
    ----------
    dataset : str or Path or Dataset
        A registered name, a LIBSVM file, or data: ``fedac.Dataset("mine", X, y)``.
    methods : str or several, optional
        Names of any composition, and of the baselines ``"lbfgs"`` and ``"agd"``. Default: the
        methods of docs/compare.md.
    K : int or several
        Local steps per round.
    rounds : int
        Of every run.
    clients : int, optional
        How many clients hold rows of their own; 100 unless given, or as many as a file names.
    split : str, optional
        How rows are split among them, as in `fedac.split`, or a file of client names; "iid" unless
        given.
    split_seed : int
        The seed of the split.
    workers : int, optional
        In place of clients: M workers that draw from all rows.
    participation : float
        As in `simulate`.
    batch : int or "full"
        As in `simulate`.
    weighting : "examples" or "uniform"
        As in `simulate`.
    wire : str or several
        How messages travel; every method is tuned for each.
    link : Link or str
        What a round costs in seconds.
    target : float, optional
        Target suboptimality. If omitted, methods are tuned for and ranked by the suboptimality
        within the budget.
    budget : str, optional
        "100 rounds", "2MB" or "60s". Default: the whole run with a target; without, the time in
        which every run ends.
    loss : str
        The loss of the objective, by name.
    l2 : float
        The strength of its l2 term.
    intercept : bool
        Whether to append a column of ones to the rows.
    tries : int
        Settings that are tried for each method, K and wire: step sizes and, where a method has
        them, server steps, momentum and mu.
    seed : int
        The first seed of the tuning; the next `repeats` ones are the fresh seeds.
    repeats : int
        On how many fresh seeds the best settings are repeated.
    out : str or Path, optional
        A folder to keep all runs in, from which a comparison that was stopped continues. It
        returns a table and does not write one.
    jobs : int, optional
        As in `fedac.experiments.sweep.run`.
    on_progress : callable
        Called with the progress of each stage.

    Returns
    -------
    DataFrame
        A row per method, K and wire, the best first. ``rounds``, ``megabytes`` and ``seconds`` are
        what the target cost, NaN if not all seeds reached it; ``suboptimality`` is the mean of the
        last records within the budget, ``smallest`` the smallest. Columns ending in ``_low`` and
        ``_high`` are 90% prediction intervals for the mean of as many further seeds. ``ratio`` is
        what a row took, times the first row, seed by seed; rows are ``level`` if its interval
        contains 1.

    Examples
    --------
    >>> found = compare("synthetic", ["fedavg", "fedac-i"], K=8, rounds=20, clients=10, l2=1e-2,
    ...                 target=0.05, tries=6, repeats=2)
    >>> found[["method", "K", "reached"]].to_dict("records")[0]
    {'method': 'fedac-i', 'K': 8, 'reached': True}
    """
    if not isinstance(dataset, str | Path | Dataset):
        kind = type(dataset).__name__
        raise InputError(f"dataset is a name, a path or fedac.Dataset(name, X, y), not {kind}")
    methods = _several(methods)
    for method in methods:
        if not isinstance(method, str):
            raise InputError(f"methods are names, your own 'module:name'; got {method!r:.60}")
    data = dataset if isinstance(dataset, Dataset) else None
    values: dict[str, Any] = {
        "dataset": data.name if data else str(dataset), "loss": loss, "l2": l2,
        "intercept": intercept, "algorithms": methods, "local_steps": _several(K),
        "participation": (participation,), "batch": (batch,), "weighting": weighting,
        "wire": _several(wire), "seeds": (seed,), "split_seed": split_seed,
    }  # fmt: skip
    given = {"workers": workers, "clients": clients, "split": split}
    values |= {name: (value,) for name, value in given.items() if value is not None}
    question = Question.ask(
        values, lambda key: ARGUMENTS.get(key, key), rounds=rounds, link=as_link(link),
        target=target, tries=tries, repeats=repeats,
        budget=None if budget is None else Budget.parse(budget),
    )  # fmt: skip
    with open_store(out) as store:
        found = answer(question, store, data=data, jobs=jobs, on_progress=on_progress)
    return to_frame(found)


@contextmanager
def open_store(out: str | Path | None) -> Iterator[Store]:
    """Open a store in a folder, or one that is gone afterwards."""
    if out is not None:
        with Store(out, create=True) as store:
            yield store
        return
    with TemporaryDirectory() as folder, Store(folder, create=True) as store:
        yield store


def _several(values: Any) -> tuple[Any, ...]:
    several = isinstance(values, Iterable) and not isinstance(values, str)
    return tuple(values) if several else (values,)
