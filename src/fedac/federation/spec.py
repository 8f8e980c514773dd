# SPDX-License-Identifier: Apache-2.0
"""The Spec: every option of a run, a sweep or a comparison, declared once.

The options of `fedac run`, `fedac sweep` and `fedac compare` with their help, the keys of a TOML
file, the checks, the columns of an export and the key of a stored run all follow from the fields
below. To add an option, add a field here and the code that uses it.

- An `OptionSet` is what one command, TOML file or Python function accepts: some of the fields,
  under its own names, with several values of some::

      SWEEP = OptionSet(several=("algorithm", "eta", ...), names={"algorithm": "algorithms"})
      spec = check_spec(SWEEP, {"algorithms": ["fedavg"], "eta": [0.1, 0.5]})

- A Spec whose fields hold tuples is a *grid*: ``spec.expand()`` lists its runs, each a Spec
  without tuples; ``spec.several("eta")`` is a tuple in any case.
- A `RunSpec` is a run with the hashes of what was loaded. Its `key` identifies it in a store.

This module does not import NumPy, so that commands start fast. `spec_checks` has the checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from itertools import product
from typing import Any, Self

# A larger count is more likely a typo than a simulation.
LARGEST_COUNT = 10**8
# The rows of a step are listed in memory; for larger batches use "full".
LARGEST_BATCH = 10**6
FULL = "full"
WEIGHTINGS = ("examples", "uniform")
FLOAT32 = "float32"


@dataclass(frozen=True, kw_only=True)
class Option:
    """What commands, checks and the store need to know about a field."""

    help: str
    short: str = ""
    grid: bool = False  # whether a list of values makes a grid
    kind: tuple[type, ...] = (str,)
    above: float | None = None
    least: int | None = None
    most: int | None = None
    words: tuple[str, ...] = ()  # valid words: instead of a number, or the only valid values
    column: str = ""  # its name in the store and the export, if different from the field's
    stored: bool = True
    in_key: bool = True
    json: bool = True  # whether `fedac run --json` prints it
    # A key, a stored run and a federation's name leave out values that equal `absent`. It must
    # never change, or stored runs are not found; the default of a field may.
    absent: Any = ...


def _option(default: Any, help: str, *kind: type, **settings: Any) -> Any:  # noqa: A002
    option = Option(help=help, kind=kind or (str,), **settings)
    return field(default=default, metadata={"option": option})


def _count(default: int | None, help: str, **settings: Any) -> Any:  # noqa: A002
    return _option(default, help, int, **{"least": 1, "most": LARGEST_COUNT, **settings})


@dataclass(frozen=True, kw_only=True)
class ProblemOptions:
    """Problem."""

    dataset: str = _option(
        "synthetic", "A registered name, or a file: CSV, TSV, Parquet, NPZ or LIBSVM."
    )
    label: str | None = _option(
        None,
        "The column of the targets (default: the one named target, label, class or y, else the "
        "last).",
        stored=False, json=False,
    )  # fmt: skip
    standardize: bool = _option(
        False, "Scale number columns to mean 0 and variance 1.", bool, stored=False, json=False
    )
    model: str | None = _option(
        None,
        "Train a network instead of a linear model: softmax, mlp(128), cnn, char_gpt(2,64,64), or "
        "your own function as module:name. Needs PyTorch.",
        absent="", in_key=False, json=False,
    )  # fmt: skip
    loss: str | None = _option(
        None,
        "logistic, softmax, least-squares, huber, poisson, squared-hinge, or your own class as "
        "module:name (default: follows from the targets).",
        column="objective", absent="logistic", in_key=False,
    )  # fmt: skip
    l2: float = _option(1e-3, "Regularization strength.", float, least=0)
    intercept: bool = _option(
        False, "Append a column of ones.", bool, absent=False, in_key=False, json=False
    )
    mu: float | None = _option(
        None, "Strong-convexity estimate (default: l2).", float, above=0, absent=None, json=False
    )
    precision: str = _option(
        "float32",
        "Precision of local states: float32 or float64; of networks also bfloat16 autocast.",
        words=("float32", "float64", "bfloat16"),
        json=False,
    )
    backend: str | None = _option(
        None,
        "Gradients of a network: batched, all clients at once, or loop, one by one (default: the "
        "faster).",
        words=("batched", "loop"), absent="", in_key=False, json=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """Clients."""

    workers: int | None = _count(
        None, "Workers, M, that all draw from all rows.", short="-M", grid=True, stored=False
    )
    clients: int | None = _count(
        None, "Instead of workers: clients that hold their own rows.", grid=True, stored=False
    )
    split: str | None = _option(
        None,
        "Split of the rows among clients: iid, label, dirichlet(a), power(a), or a file with one "
        "client name per line (default: iid).",
        grid=True, absent="",
    )  # fmt: skip
    client: str | None = _option(
        None,
        "Instead of a split: the column that names the client of each row, or an NPY file.",
        stored=False, json=False,
    )  # fmt: skip
    split_seed: int = _count(
        0, "Seed of the split.", least=0, most=2**63 - 1, absent=0, in_key=False
    )
    participation: float = _option(
        1.0, "Share of the clients in a round, rounded to whole clients; above 1, their number.",
        float, grid=True, above=0, absent=1.0,
    )  # fmt: skip
    batch: int | str = _option(
        1, "Rows per local step, or full: all rows of the client.", int, str, grid=True,
        least=1, most=LARGEST_BATCH, words=(FULL,), absent=1,
    )  # fmt: skip
    weighting: str = _option(
        "examples", "Weights of the clients: examples, by their number of rows; or uniform.",
        words=WEIGHTINGS, absent="examples",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TimeOptions:
    """Slow and absent clients."""

    mode: str = _option(
        "rounds",
        "How the server waits: rounds, for all clients of a round; until(10s), likewise, with as "
        "many local steps as fit; deadline(30s); or buffer(10), asynchronously, for any ten "
        "messages.",
        grid=True, absent="rounds", json=False,
    )  # fmt: skip
    availability: str = _option(
        "always",
        "When clients are available: always, share(p), share(p, period), diurnal(hours, width), or "
        "a CSV file of client, from and to in seconds. Work of a client that goes away is lost.",
        absent="always", json=False,
    )  # fmt: skip
    oversample: float = _option(
        1.0, "With a deadline: clients started, relative to those wanted.", float, absent=1.0,
        json=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """Method."""

    algorithm: str = _option(
        "fedac-i",
        "{algorithms}, any other that 'fedac methods' lists, or your own Algorithm as "
        "module:name. Several values of a number are separated by |, as in "
        "'fedavg+nesterov(0.7|1, 0.9)'.",
        grid=True,
    )
    local_steps: int = _count(16, "Steps per round, K.", short="-K", grid=True, column="K")
    epochs: int | None = _count(
        None,
        "Instead of local steps: passes of a client through its rows in a round.",
        grid=True, absent=0, json=False,
    )  # fmt: skip
    eta: float = _option(0.5, "Step size.", float, grid=True, above=0)
    decay: str | None = _option(
        None,
        "Decay of the step size over rounds: 1/r, 1/sqrt(r), inverse(c) or halve(c) (default: "
        "none).",
        absent="",
    )
    wire: str = _option(
        FLOAT32, "Format of messages to the server: float32, or rounded to bfloat16 or int8.",
        grid=True, absent=FLOAT32,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """Length, seed and records."""

    steps: int | None = _count(None, "Steps per worker, T.", short="-T", column="T")
    rounds: int | None = _count(None, "Rounds of every run.", stored=False)
    seed: int = _count(1, "Seed of the random draws.", grid=True, least=0, most=2**64 - 1)
    test: float | str | None = _option(
        None,
        "Also evaluate on this data set or file, or hold out a share of the rows, as 0.2.",
        float, str, absent="", in_key=False,
    )  # fmt: skip
    test_clients: float | None = _option(
        None, "Evaluate on a share of the clients instead, as 0.2: they are not trained on.",
        float, above=0, stored=False, json=False,
    )  # fmt: skip
    record_every: int = _count(512, "Record the loss every N steps.", most=None, json=False)


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Costs."""

    link: str = _option(
        "wan",
        "What a round costs in seconds: datacenter, wan, home, phone, or numbers such as "
        "'latency=50ms up=20Mbit down=100Mbit gradient=2ms row=20us stragglers=lognormal(0.5)'. "
        "Clients of different speed: speeds=lognormal(1), or speeds=[1,1,4], a factor per client.",
        stored=False,
    )


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """Tuning and ranking."""

    target: float | str | None = _option(
        None,
        "Target suboptimality (for networks: training loss), or with a test set a target metric, "
        "such as 'accuracy 0.85' (also "
        "auc, log-loss, r2 or mae). If omitted, methods are tuned for and ranked by the "
        "suboptimality within the budget.",
        float, str, above=0, stored=False,
    )  # fmt: skip
    budget: str | None = _option(
        None,
        "'100 rounds', '2MB' or '60s'. Default: the whole run with --target, otherwise the time of "
        "the shortest run. With --target it ranks only methods that did not reach it. MB: sent "
        "and received by a client that is present in every round.",
        stored=False,
    )
    tries: int = _count(
        20, "Settings tried for each method, K and wire; at least 4.", least=4, stored=False
    )
    # An interval needs two seeds.
    repeats: int = _count(
        5, "Fresh seeds on which the best settings are repeated.", least=2, stored=False
    )


@dataclass(frozen=True, kw_only=True)
class Spec(
    TuningOptions,
    CostOptions,
    LengthOptions,
    MethodOptions,
    TimeOptions,
    FederationOptions,
    ProblemOptions,
):
    """All options of a run or, where fields hold tuples, of a grid of runs.

    Examples
    --------
    >>> grid = Spec(eta=(0.1, 0.5), workers=4)
    >>> [(one.eta, one.workers) for one in grid.expand()]
    [(0.1, 4), (0.5, 4)]
    """

    name: str = _option("sweep", "Title in progress bars and figures.", stored=False, json=False)

    @property
    def length(self) -> int:
        """The number of steps of a run, whether given as steps or as rounds."""
        return self.steps or (self.rounds or 0) * self.local_steps

    def several(self, name: str) -> tuple[Any, ...]:
        """Return the values of a field as a tuple, empty for None."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            return value
        return () if value is None else (value,)

    def expand(self) -> list[Self]:
        """Return a Spec for every combination of values: seeds, K, methods and step sizes last."""
        lists = [name for name in options_of() if isinstance(getattr(self, name), tuple)]
        last = ("seed", "local_steps", "algorithm", "eta")
        lists.sort(key=lambda name: last.index(name) if name in last else -1)
        combinations = product(*(getattr(self, name) for name in lists))
        return [replace(self, **dict(zip(lists, values, strict=True))) for values in combinations]


@dataclass(frozen=True, kw_only=True)
class RunSpec(Spec):
    """One run, with the hashes of its loaded data.

    ``dataset``, ``split`` and ``test`` are the names of what was loaded.
    """

    M: int = _option(1, "Number of workers or clients.", int)
    data_hash: str = _option("", "Hash of the objective: rows, loss, l2 and intercept.")
    rows_hash: str = _option("", "Hash of the rows alone.", absent="", in_key=False)
    split_hash: str = _option("", "Hash of the clients' rows.", absent="")
    test_hash: str = _option("", "Hash of the test rows.", absent="")
    fingerprint: str = _option("", "Hash of the algorithm.", absent="")
    timing: str = _option("", "The link, where it decides whose messages count.", absent="")

    @property
    def K(self) -> int:
        """The local steps of a round."""
        return self.local_steps

    @property
    def T(self) -> int:
        """The steps of the run."""
        return self.length

    def stored(self, *, in_key: bool = False) -> dict[str, Any]:
        """Return the stored values of the run, or only those in its key, by column."""
        return {
            option.column or name: float(value) if option.kind == (float,) else value
            for name, option in stored_options().items()
            if (value := getattr(self, name)) not in (option.absent, None)
            and (option.in_key or not in_key)
        }

    @cached_property
    def key(self) -> str:
        """The hash that identifies the run: change anything that matters and it is another run."""
        import hashlib  # not at the top: it loads OpenSSL, and the command starts without

        values = self.stored(in_key=True)
        if self.mu == self.l2:  # the usual value, whether set or left out
            values.pop("mu", None)
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


@cache
def options_of(spec: type = Spec) -> dict[str, Option]:
    """Return the options of a class by the names of its fields."""
    return {each.name: each.metadata["option"] for each in fields(spec)}


@cache
def stored_options() -> dict[str, Option]:
    """Return the fields that a store keeps."""
    return {name: option for name, option in options_of(RunSpec).items() if option.stored}


def federation_name(run: Any) -> str:
    """Name the options of federation and method that are not at their usual values.

    `run` is a Spec, or a row of a table with its columns.

    >>> federation_name(Spec(split="label", participation=0.1, batch=4)), federation_name(Spec())
    ('split label, participation 0.1, batch 4', '')
    """
    parts = []
    groups = (FederationOptions, TimeOptions, MethodOptions)
    for name, option in ((k, v) for group in groups for k, v in options_of(group).items()):
        if option.absent is not ...:
            value = getattr(run, name, option.absent)
            usual = value is None or value == option.absent or str(value) == str(option.absent)
            text = f"{value:g}" if isinstance(value, float) else str(value)
            parts += [] if usual else [f"{name.replace('_', ' ')} {text}"]
    return ", ".join(parts)


def group_of(name: str) -> str:
    """Return the heading of a field in the help: the docstring of the class that declares it."""
    group = next(each for each in Spec.__mro__ if name in vars(each))
    return (group.__doc__ or "").rstrip(".")


@dataclass(frozen=True, kw_only=True)
class OptionSet:
    """The options that one command, TOML file or Python function accepts."""

    without: tuple[str, ...] = ()  # fields that it does not have
    several: tuple[str, ...] = ()  # fields that take several values
    names: Mapping[str, str] = field(default_factory=dict)  # its own names for some fields
    defaults: Mapping[str, Any] = field(default_factory=dict)  # where they differ from the Spec's
    needed: tuple[str, ...] = ()  # fields without a default
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of an Option
    spell: Callable[[str], str] = str  # how messages write a name: --local-steps
    locate: Callable[[str], str] = lambda name: ""  # the start of messages: file and line

    def fields(self) -> dict[str, Option]:
        """Return the accepted options by the names of the fields."""
        return {
            name: replace(option, **self.overrides.get(name, {}))
            for name, option in options_of().items()
            if name not in self.without
        }

    def default(self, name: str) -> Any:
        """Return the value of a field that is not given."""
        return self.defaults.get(name, getattr(Spec, name))

    def name_of(self, name: str) -> str:
        """Return what users call a field."""
        return self.names.get(name, name)

    def spelled(self, name: str) -> str:
        """Return the name of a field as messages write it."""
        return self.spell(self.name_of(name))


def command_option(name: str) -> str:
    """Spell a name as an option of a command: ``--local-steps``."""
    return f"--{name.replace('_', '-')}"


LARGEST_STORED = 2**63 - 1  # whole numbers in tables have 64 bits and a sign
# F* needs l2 > 0; a network has none.
L2 = {"above": 0, "help": "Regularization strength, above 0; of networks 0 by default."}
SWEEP = OptionSet(
    without=("link", "target", "budget", "tries", "repeats", "mode", "availability", "oversample"),
    several=tuple(name for name, option in options_of().items() if option.grid),
    names={"algorithm": "algorithms", "seed": "seeds"},
    defaults={"steps": 4096},
    needed=("dataset", "l2", "algorithm", "local_steps", "eta"),
    overrides={
        "l2": L2,
        "seed": {"most": LARGEST_STORED},
    },
)  # fmt: skip
# Defaults for networks, where a step costs a thousand times as much as one of a linear model.
FOR_NETWORKS = {"l2": 0.0, "batch": 16, "local_steps": (8, 32), "rounds": 100}
# Step sizes, mu and the length of a run follow from the tuning.
COMPARE = OptionSet(
    without=("name", "mu", "precision", "eta", "decay", "steps", "record_every"),
    several=("algorithm", "local_steps", "wire", "mode"),
    names={"algorithm": "methods"},
    defaults={"algorithm": None, "clients": 100, "local_steps": (8, 32, 128), "rounds": 200},
    overrides={
        "l2": L2,
        "algorithm": {
            "help": "Methods to compare: {algorithms}, any other that 'fedac methods' lists, "
            "the baselines lbfgs and agd, or your own Algorithm as module:name (default: a "
            "built-in list).",
        },
        "workers": {"help": "Instead of clients: workers, M, that draw from all rows."},
        "clients": {"help": "Number of clients, each with its own rows."},
        "seed": {
            "most": LARGEST_STORED,
            "help": "First tuning seed; the seeds after it are used too.",
        },
    },
)  # fmt: skip
