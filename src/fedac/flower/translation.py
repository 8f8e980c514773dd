"""Options that Flower's strategies call by other names: the error gives ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedac.errors import InputError, unknown_name

# Flower's name: what to write here.
OURS = {
    "fraction_train": "sample={value}, a share of the nodes (or a number of them)",
    "fraction_evaluate": "evaluate_sample={value} (or evaluate_every=0 for no evaluation)",
    "min_train_nodes": "quorum={value}, the good replies that a round needs",
    "min_evaluate_nodes": "evaluate_sample={value}, a number of nodes (or a share of them)",
    "min_available_nodes": "min_nodes={value}",
    "weighted_by_key": (
        "weighting='examples' to count clients by their 'num-examples', or 'uniform', the default"
    ),
    "arrayrecord_key": "nothing: the key is 'arrays'",
    "configrecord_key": "nothing: the key is 'config'",
    "server_learning_rate": "it with the algorithm, 'fedavg+step(1.0)' say",
    "server_momentum": "it with the algorithm, 'fedavgm(1, 0.9)' say",
    "proximal_mu": "it with the algorithm, 'fedprox(0.1)' say",
    "initial_parameters": "initial_arrays in strategy.start",
    "fraction_fit": "sample={value}, a share of the nodes (or a number of them)",
    "lr": "eta={value}",
    "K": "local_steps={value}",
}
# What belongs to `start`.
LATER = (
    "grid",
    "initial_arrays",
    "num_rounds",
    "timeout",
    "train_config",
    "evaluate_config",
    "evaluate_fn",
    "on_round",
    "wrapper",
)


def refuse_unknown(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse options that are not ours; those of Flower are translated.

    Examples
    --------
    >>> refuse_unknown({"fraction_train": 0.5}, ["sample"])
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: there is no option 'fraction_train'; write sample=0.5, a share of the \
nodes (or a number of them)
    """
    for name, value in options.items():
        if name in LATER:
            raise InputError(f"there is no option '{name}'; it belongs to strategy.start")
        if name == "fraction_evaluate" and value == 0:
            raise InputError("there is no option 'fraction_evaluate'; write evaluate_every=0")
        if name not in OURS:
            raise unknown_name("option", name, known)
        ours = OURS[name].format(value=repr(value))
        raise InputError(f"there is no option '{name}'; write {ours}")
