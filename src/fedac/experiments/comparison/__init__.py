# SPDX-License-Identifier: Apache-2.0
"""Compare methods by measurement, in rounds, megabytes and seconds, with equal tuning.

A `Question` goes to a `Study`. Its tuner proposes settings, the sweep runs them, and the curves of
the winners on fresh seeds become the rows of a `Comparison` (`table`), from which verdict, figure
and report are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import numpy as np

from fedac.data import Clients, Dataset
from fedac.data.registry import load_with_test
from fedac.data.splits import are_drawn
from fedac.errors import InputError
from fedac.experiments.comparison.question import Budget, Question
from fedac.experiments.comparison.study import Study
from fedac.experiments.comparison.table import Comparison
from fedac.experiments.store import open_store
from fedac.experiments.workload import split_of, with_own_clients
from fedac.federation.availability import Availability
from fedac.federation.link import Link
from fedac.federation.spec import COMPARE
from fedac.simulation import simulator
from fedac.validate import refuse_keywords

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Budget", "Comparison", "Question", "Study", "compare", "open_store"]

# Keywords of other libraries, and ours.
TUNED = "step sizes are tuned, up to tries of them for every method"
INSTEAD = {
    **simulator.INSTEAD, "lr": TUNED, "learning_rate": TUNED, "step_size": TUNED, "eta": TUNED,
    "T": "rounds", "steps": "rounds", "iterations": "rounds", "num_steps": "rounds",
    "M": "workers", "n_workers": "workers", "num_workers": "workers", "algorithm": "methods",
    "algorithms": "methods", "optimizer": "methods", "seeds": "repeats",
}  # fmt: skip
KEYWORDS = replace(COMPARE, names={"algorithm": "methods", "local_steps": "K"})


def compare(
    dataset: Any,
    methods: str | Iterable[str] = (),
    *,
    model: str | None = None,
    label: Any = None,
    client: Any = None,
    standardize: bool = False,
    K: int | Iterable[int] | None = None,
    epochs: int | None = None,
    rounds: int | None = None,
    clients: Clients | npt.ArrayLike | str | None = None,
    split: str | None = None,
    split_seed: int = 0,
    workers: int | None = None,
    participation: float = 1.0,
    batch: int | str | None = None,
    weighting: str = "examples",
    wire: str | Iterable[str] = "float32",
    test: Any = None,
    test_clients: float | None = None,
    link: Link | str = "wan",
    mode: str | Iterable[str] = "rounds",
    availability: Any = "always",
    oversample: float = 1.0,
    target: float | str | None = None,
    budget: str | None = None,
    loss: str | None = None,
    backend: str | None = None,
    l2: float | None = None,
    intercept: bool = False,
    tries: int = 20,
    seed: int = 1,
    repeats: int = 5,
    out: str | Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[Any], object] = lambda progress: None,
    **others: Never,
) -> Comparison:
    """Compare methods on fresh seeds after equal tuning, in rounds, megabytes and seconds.

    Parameters
    ----------
    dataset : data or Network
        Anything that `fedac.load` takes: a registered name, a file, a table, a pair (X, y), a
        `Dataset`. Or a `Network`, which has its own data and test rows.
    model : str, optional
        Train a network instead of a linear model: ``"mlp(128)"``, ``"cnn"`` or another of
        `fedac.models`, or your own function as ``"module:name"``.
    label : str or array, optional
        The column of the targets, or the targets themselves, as ``target`` of `fedac.load`.
    client : str or array, optional
        The column that names the client of each row, or these names. It is not a feature.
    standardize : bool
        Scale number columns to mean 0 and variance 1.
    methods : str or several, optional
        Any composition, and the baselines ``"lbfgs"`` and ``"agd"``. Default: the methods of
        docs/compare.md.
    K : int or several
        Local steps per round. Default: 8, 32 and 128; for networks 8 and 32.
    epochs : int, optional
        For networks, instead of `K`: passes of every client through its own rows in a round. K is
        then the mean number of steps.
    rounds : int
        Rounds of every run. Default: 200; for networks 100.
    clients : int, str, Clients or array, optional
        Number of clients, each with its own rows; or, as in `simulate`, the clients themselves,
        their names, a column, a file or a split. Default: the data's own clients, if it has
        any, else 100.
    split : str, optional
        Split of the rows among clients, as in `fedac.split`, or a file of client names. Default:
        "iid".
    split_seed : int
        Seed of the split.
    workers : int, optional
        Instead of clients: M workers that draw from all rows.
    participation, batch, weighting
        As in `simulate`. Default of `batch`: 1; for networks 16.
    wire : str or several
        Wire formats of messages; every method is tuned for each.
    link : Link or str
        Gives the seconds of a round.
    mode : str or several
        How the server waits, as in `simulate`: "rounds", "until(10s)", "deadline(30s)",
        "buffer(10)". Every method is tuned in each mode, with as much work of the clients, and
        ranked by its seconds.
    availability, oversample
        As in `simulate`.
    test : float, str or Dataset, optional
        Rows on which the results are evaluated too: a share of the rows, such as 0.2, which is held
        out, a file, or data.
    test_clients : float, optional
        Instead of `test`: a share of the clients, which is held out.
    target : float or str, optional
        Target suboptimality (for networks: training loss), or a metric on the test set and its
        value: ``"accuracy 0.85"``, also auc, log-loss, r2 and mae, or a function among the
        metrics of a `Network`, of which larger values count as better. If omitted, methods are
        tuned for and ranked by suboptimality within the budget.
    budget : str, optional
        "100 rounds", "2MB" or "60s". Default: the whole run with a target; otherwise the time of
        the shortest run.
    loss : str, optional
        Loss by name. Default: follows from the targets.
    backend : "batched" or "loop", optional
        As in `simulate`. Default: the faster, chosen once for all runs.
    l2, intercept
        Regularization strength, and whether to append a column of ones. Default of `l2`: 0.001; for
        networks 0.
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
    Comparison
        Prints its table and verdict. ``table`` has the most important columns of each method at its
        best K, ``frame`` all columns and a row per method, K and wire, both the best first.
        ``verdict`` says in words who won, ``plot()`` draws the curves.

        Columns: ``rounds``, ``megabytes`` and ``seconds`` are the cost of the target, NaN if not
        all seeds reached it. ``suboptimality`` is the mean of the last records within the budget,
        ``smallest`` the smallest record; for networks, whose optimum is not known, the first is
        ``training_loss`` instead. Columns ending in ``_low`` and ``_high`` are 90%
        prediction intervals for the mean of another `repeats` seeds. ``ratio`` is the cost relative
        to the first row, seed by seed; rows are ``level`` if its interval contains 1. With a test
        set, ``test_loss`` and the metrics that fit its targets, such as ``test_accuracy``, are
        means over the seeds, of the last records within the budget.

    Examples
    --------
    >>> found = compare("synthetic", ["fedavg", "fedac-i"], K=8, rounds=20, clients=10, l2=1e-2,
    ...                 target=0.05, tries=6, repeats=2)
    >>> found.frame[["method", "K", "reached"]].to_dict("records")[0]
    {'method': 'fedac-i', 'K': 8, 'reached': True}
    >>> ax = found.plot(against="seconds")
    """
    refuse_keywords("compare", others, INSTEAD)
    methods = _several(methods)
    if not all(isinstance(name, str) for name in methods):
        raise InputError(f"methods must be names, or 'module:name' for yours; got {methods!r:.60}")
    if not isinstance(availability, str):
        availability = Availability.parse(availability)
    named = None
    if client is not None and clients is not None:
        raise InputError("client names the clients already: omit clients")
    if clients is not None and not are_drawn(clients):
        named, clients, client = clients, None, "given"
    elif isinstance(clients, str):
        if split is not None:
            raise InputError(f"clients={clients!r} is a split already: omit split")
        split, clients, workers = clients, workers, None
    network = dataset if getattr(dataset, "is_network", False) else None
    if network is not None:
        if test_clients is not None:
            raise InputError(
                "test_clients needs data: pass the rows of some clients to the Network, as "
                "test=(X, y)"
            )
        if test is not None:
            network = network.tested_on(test)
        model, dataset, test = network, _rows_of(network), None
    called = dataset.name if isinstance(dataset, Dataset) else "data"
    given = {
        "dataset": str(dataset) if isinstance(dataset, str | Path) else called, "loss": loss,
        "model": model, "l2": l2, "intercept": intercept, "methods": methods, "K": _several(K),
        "epochs": epochs, "backend": backend,
        "rounds": rounds, "clients": clients, "split": split,
        "client": client if client is None or isinstance(client, str) else "given",
        "split_seed": split_seed, "workers": workers, "participation": participation,
        "batch": batch, "weighting": weighting, "wire": _several(wire), "link": link,
        "mode": _several(mode), "availability": availability, "oversample": oversample,
        "target": target, "budget": budget, "tries": tries, "seed": seed, "repeats": repeats,
        "test": test, "test_clients": test_clients,
    }  # fmt: skip
    optional = ("K", "rounds", "batch", "l2")
    given = {
        name: value for name, value in given.items() if value is not None or name not in optional
    }
    # Checked before the data is loaded, which may take minutes.
    own = with_own_clients(given, dataset) if isinstance(dataset, Dataset) else given
    spec = Question.ask(own, KEYWORDS).spec
    data, held_out = load_with_test(
        dataset, test, test_clients, clients=split_of(spec) if named is None else named,
        number=spec.clients, seed=split_seed, target=label,
        client=client if named is None else None, standardize=standardize,
    )  # fmt: skip
    study = Study(Question.ask(with_own_clients(given, data), KEYWORDS), data, held_out)
    with open_store(out) as store:
        return study.answer(store, jobs=jobs, on_progress=on_progress)


def _rows_of(network: Any) -> Dataset:
    """Return the targets of a network as a data set, by which its rows are split."""
    labels = network.labels
    y, classes = (
        (labels, ()) if labels.dtype.kind == "f" else (labels, tuple(range(labels.max() + 1)))
    )
    name = type(network.module).__name__
    return Dataset(
        name, np.zeros((len(y), 1)), y.astype(np.float64), classes, clients=network.clients
    )


def _several(values: Any) -> Any:
    return values if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
