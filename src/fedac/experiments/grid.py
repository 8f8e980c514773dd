"""The grid: which runs a sweep consists of, read from a TOML file.

A run is identified by the hash of its whole configuration, `Config.key`: change anything and it is
another run.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from fedac.algorithms import Algorithm, expand
from fedac.algorithms.checks import check_decay, couple
from fedac.data.holdout import check_test
from fedac.data.splits import check_clients, is_split
from fedac.errors import InputError, look_up, unknown_name
from fedac.experiments.run_key import key_fingerprint
from fedac.federation.compression import FLOAT32, require_wire
from fedac.federation.federation import require_batch, taking_part
from fedac.federation.schedule import Decay, Schedule
from fedac.plugins import find_algorithm, find_loss

# In an installed package, and at the root of a checkout.
SHIPPED = (Path(__file__).parents[1] / "sweeps", Path(__file__).parents[3] / "sweeps")

T = TypeVar("T")
Text = Annotated[str, Field(min_length=1)]
# Above 10^8 a typo is likelier than a simulation.
Count = Annotated[int, Field(ge=1, le=10**8)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
LARGEST_SEED = 2**63 - 1  # of SQLite's integers
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
# A list from TOML becomes a tuple, but "4" does not become 4.
Several = Annotated[tuple[T, ...], Field(min_length=1, strict=False)]


class Grid(BaseModel):
    """All combinations of algorithms, federations, local steps, step sizes and seeds.

    A federation is M workers that draw from all rows, or clients that hold rows of their own.

    Attributes
    ----------
    name : str
        The title in progress bars and figures.
    dataset : str
        A registered name or the path of a LIBSVM file.
    loss : str
        A key of `fedac.objectives.LOSSES`, or your own as ``module:name``.
    l2 : float
        The strength of the l2 term.
    intercept : bool
        Whether to append a column of ones to the data.
    mu : float or None
        Strong-convexity estimate; the objective's own, l2, unless given.
    algorithms : tuple of str
        Names as of `fedac.algorithms.get`, or your own as ``module:name``.
    steps : int
        T.
    workers : tuple of int
        M.
    split : tuple of str
        Of the rows among clients, as of `fedac.split`, or files.
    clients : tuple of int
        In place of workers.
    split_seed : int
        The seed of the split.
    participation : tuple of float
        Shares of the clients that take part in a round; above 1, numbers of clients.
    batch : tuple of int or "full"
        Rows per local step.
    weighting : "examples" or "uniform"
        How clients count.
    local_steps : tuple of int
        K, which must divide T.
    eta : tuple of float
        Step sizes.
    wire : tuple of str
        How messages travel, as of `fedac.wire`.
    decay : str or None
        How every step size falls over rounds, as of `fedac.Decay`.
    seeds : tuple of int
        Of the draws.
    test : float or str or None
        A share to hold out, a data set or a LIBSVM file.
    record_every : int
        Steps between two records of the loss.
    precision : "float32" or "float64"
        Of the workers' local states.

    Examples
    --------
    >>> grid = Grid(name="tiny", dataset="synthetic", l2=1e-3, algorithms=("fedac-i", "fedavg"),
    ...             workers=(4, 8), local_steps=(1, 16), steps=64, eta=(0.1, 0.5))
    >>> len(groups(grid, dataset="synthetic", data_hash="0" * 64))
    4
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    # In the order of their checks: a check may use the fields before it.
    name: Text
    dataset: Text
    loss: Text = "logistic"
    l2: Positive
    intercept: bool = False
    mu: Positive | None = None
    algorithms: Several[str]
    steps: Count = 4096
    workers: Several[Count] = ()
    split: Several[Text] = ()
    clients: Annotated[tuple[Count, ...], Field(strict=False, validate_default=True)] = ()
    split_seed: Seed = 0
    participation: Several[Positive] = (1.0,)
    batch: Several[int | str] = (1,)
    weighting: Literal["examples", "uniform"] = "examples"
    local_steps: Several[Count]
    eta: Several[Positive]
    wire: Several[Text] = (FLOAT32,)
    decay: Text | None = None
    seeds: Several[Seed] = (1,)
    test: Share | Text | None = None
    record_every: Count = 512
    precision: Literal["float32", "float64"] = "float32"

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read a grid from a file whose keys are the fields of a grid; errors name the line."""
        path = Path(path)
        try:
            if path.is_char_device() or path.is_block_device():  # /dev/zero never ends
                raise InputError(f"cannot read '{path}': it is a device")
            text = path.read_text(encoding="utf-8")
            values = tomllib.loads(text)
        except OSError as error:
            raise InputError(f"cannot read '{path}': {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not TOML: {error}") from None

        def place(key: str) -> str:
            # The line that sets the key or begins a table of that name; tomllib does not say.
            start = re.compile(rf"\s*\[*\s*([\"']?){re.escape(key)}\1\s*[=.\]]")
            for number, line in enumerate(text.splitlines(), start=1):
                if start.match(line):
                    return f"{path}, line {number}: {key}"
            return f"{path}: {key}"

        return cls.checked(values, place)

    @classmethod
    def checked(cls, values: Mapping[str, Any], place: Callable[[str], str]) -> Self:
        """Build a grid, or explain in one line what is wrong.

        `place` returns where the user set a parameter: its option, or file and line.

        Examples
        --------
        >>> Grid.checked({"name": "tiny", "l1": 1e-3}, lambda key: f"--{key}")
        Traceback (most recent call last):
        ...
        fedac.errors.InputError: --l1: unknown key 'l1'; did you mean 'l2'? known: algorithms, ...
        """
        unknown = next((key for key in values if key not in cls.model_fields), None)
        if unknown is not None:
            raise InputError(f"{place(unknown)}: {unknown_name('key', unknown, cls.model_fields)}")
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            where = place(str(first["loc"][0]))
            if first["type"] == "missing":
                raise InputError(f"{where} is missing") from None
            if first["type"] == "value_error":
                raise InputError(f"{where}: {first['ctx']['error']}") from None
            # Pydantic's messages are about Python; files have lists.
            why = first["msg"].replace("Input ", "").replace("Tuple ", "").replace("tuple", "list")
            why = why.replace(" after validation", "")
            raise InputError(f"{where} {why}, got {first['input']!r:.60}") from None

    @field_validator(
        "algorithms", "workers", "split", "clients", "participation", "batch", "local_steps", "eta",
        "wire", "seeds",
    )  # fmt: skip
    @classmethod
    def _different(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise InputError(f"{twice[0]} is listed twice")
        return values

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, name: str) -> str:
        find_loss(name)
        return name

    @field_validator("algorithms")
    @classmethod
    def _known_algorithms(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        each = tuple(one for name in names for one in expand(name))
        cls._different(tuple(find_algorithm(name).name for name in each))
        return each

    @field_validator("split")
    @classmethod
    def _known_splits(cls, splits: tuple[str, ...]) -> tuple[str, ...]:
        for split in splits:
            check_clients(1, split)
        return splits

    @field_validator("clients")
    @classmethod
    def _workers_or_clients(cls, values: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        workers, splits = info.data.get("workers"), info.data.get("split")
        if workers is None or splits is None:  # refused already
            return values
        if workers and (values or splits):
            raise InputError("workers draw from all rows, clients have their own: give one of them")
        if not (workers or values or splits):
            raise InputError("give workers, or clients: how many there are")
        for split, N in product(splits, values or (None,)):
            check_clients(N, split)
        return values

    @field_validator("split_seed")
    @classmethod
    def _seed_of_a_draw(cls, seed: int, info: ValidationInfo) -> int:
        splits = info.data.get("split") or ("iid",)
        if seed and (info.data.get("workers") or not any(map(is_split, splits))):
            raise InputError("needs a split that is drawn, such as iid")
        return seed

    @field_validator("participation")
    @classmethod
    def _enough_clients(cls, values: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        sizes = info.data.get("workers") or info.data.get("clients") or ()
        for participation, M in product(values, sizes):
            some = taking_part(participation, M) is not None
            for name in info.data.get("algorithms", ()):
                find_algorithm(name).require_all(some=some)
        return values

    @field_validator("batch")
    @classmethod
    def _whole_batches(cls, values: tuple[int | str, ...]) -> tuple[int | str, ...]:
        for batch in values:
            require_batch(batch)
        return values

    @field_validator("weighting")
    @classmethod
    def _clients_to_weigh(cls, weighting: str, info: ValidationInfo) -> str:
        if weighting != "examples" and info.data.get("workers"):
            raise InputError("workers count the same: only clients have a weighting")
        return weighting

    @field_validator("local_steps")
    @classmethod
    def _whole_rounds(cls, values: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        for K in values if "steps" in info.data else ():
            Schedule.every(K, steps=info.data["steps"])
        return values

    @field_validator("eta")
    @classmethod
    def _coupled(cls, values: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        for name, eta, how in product(info.data.get("algorithms", ()), values, _couplings(info)):
            couple(find_algorithm(name), eta=eta, **how)
        return values

    @field_validator("wire")
    @classmethod
    def _known_wires(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for wire in values:
            require_wire(wire)
        return values

    @field_validator("decay")
    @classmethod
    def _known_decay(cls, decay: str | None, info: ValidationInfo) -> str | None:
        etas = info.data.get("eta", ()) if decay else ()
        for name, eta, how in product(info.data.get("algorithms", ()), etas, _couplings(info)):
            check_decay(find_algorithm(name), eta=Decay(eta, str(decay)).start, **how)
        return decay

    @field_validator("test")
    @classmethod
    def _test_rows(cls, test: float | str | None, info: ValidationInfo) -> float | str | None:
        for split in info.data.get("split", ()):
            check_test(test, split)
        return test

    def records(self) -> dict[str, Algorithm]:
        """Return the algorithms by the names that their records have."""
        return {record.name: record for record in map(find_algorithm, self.algorithms)}


def _couplings(info: ValidationInfo) -> list[dict[str, Any]]:
    """Return what step sizes are coupled with; nothing if that was refused already."""
    before = info.data
    if not {"l2", "mu", "local_steps"} <= set(before):
        return []
    return [{"mu": before["mu"] or before["l2"], "K": K} for K in before["local_steps"]]


class Split(NamedTuple):
    """M workers that draw from all rows or, with a name and a hash, M clients."""

    M: int
    name: str = ""
    hash: str = ""


def values_of(record: Any) -> dict[str, Any]:
    """Return the fields of a flat record: `asdict`, which copies what is in them, takes longer."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


@dataclass(frozen=True)
class Config:
    """Everything that determines one run."""

    dataset: str
    data_hash: str  # of the objective: it depends on rows, loss, l2 and intercept
    l2: float
    algorithm: str
    M: int
    K: int
    T: int
    eta: float
    seed: int
    record_every: int
    precision: str
    mu: float | None = None  # l2 unless given
    objective: str = "logistic"  # the name of the loss
    intercept: bool = False
    fingerprint: str = ""  # of the algorithm; empty for those of schema 1
    rows_hash: str = ""  # of the rows alone
    split: str = ""  # of the rows among clients; empty for workers, who draw from all rows
    split_seed: int = 0
    split_hash: str = ""
    participation: float = 1.0
    batch: int | str = 1
    weighting: str = "examples"
    wire: str = FLOAT32
    decay: str = ""  # empty: the step size is constant
    test: str = ""  # the name of the test set
    test_hash: str = ""

    @cached_property
    def key(self) -> str:
        """The hash that identifies the run."""
        values = values_of(self)
        # 1 and 1.0 are the same number.
        values |= {name: float(values[name]) for name in ("l2", "eta", "participation")}
        # The hashes of data, split and test set cover these.
        for name in ("objective", "intercept", "rows_hash", "split_seed", "test"):
            del values[name]
        # What came with schemas 2 to 4: a run that does not use it has the key of schema 1.
        if self.mu in (None, self.l2):
            del values["mu"]
        for name in LATER:
            if values[name] == LATER[name]:
                del values[name]
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


# The fields that are in a key only where they are not at their defaults.
LATER = {
    field.name: field.default
    for field in fields(Config)
    if field.name in ("fingerprint", "split", "split_hash", "participation", "batch", "weighting",
                      "wire", "decay", "test_hash")
}  # fmt: skip


def groups(
    grid: Grid,
    *,
    dataset: str,
    data_hash: str,
    rows_hash: str = "",
    mu: float | None = None,
    splits: Sequence[Split] = (),
    test: str = "",
    test_hash: str = "",
) -> list[tuple[Config, ...]]:
    """List the runs of a grid in groups, small ones first.

    A group shares data, federation, K and seed, so draws: one call of `simulate` runs all of it.
    The keywords are those of `Config`; `dataset` is the name of the loaded data, and `splits` are
    those of the clients.
    """
    fingerprints = {name: key_fingerprint(record) for name, record in grid.records().items()}
    federations = [
        (split, share)
        for split in sorted(splits or map(Split, grid.workers), key=lambda split: split.M)
        # Several numbers may all mean everybody.
        for share in dict.fromkeys(_share(each, split.M) for each in grid.participation)
    ]
    return [
        tuple(
            Config(
                dataset=dataset, data_hash=data_hash, l2=grid.l2, algorithm=algorithm, M=split.M,
                K=K, T=grid.steps, eta=eta, seed=seed, record_every=grid.record_every,
                precision=grid.precision, mu=mu, objective=grid.loss, intercept=grid.intercept,
                fingerprint=fingerprints[algorithm], rows_hash=rows_hash, split=split.name,
                split_seed=grid.split_seed if split.name else 0, split_hash=split.hash,
                participation=share, batch=batch, weighting=grid.weighting, wire=wire,
                decay=grid.decay or "", test=test, test_hash=test_hash,
            )
            for algorithm, eta in product(fingerprints, grid.eta)
        )
        for (split, share), batch, wire, seed, K in product(
            federations, grid.batch, grid.wire, grid.seeds, grid.local_steps
        )
    ]  # fmt: skip


def _share(participation: float, M: int) -> float:
    """Return 1 for everybody, however it was written: it is the same run."""
    return 1.0 if taking_part(participation, M) is None else participation


def shipped(name: str) -> Path:
    """Return the file of a sweep that is shipped with fedac.

    Examples
    --------
    >>> shipped("a9a-l2-1e-3").name
    'a9a-l2-1e-3.toml'
    """
    files = {file.stem: file for folder in SHIPPED for file in folder.glob("*.toml")}
    return look_up("sweep", name, files)
