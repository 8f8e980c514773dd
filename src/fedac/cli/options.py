"""Values of options: lists, names and paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedac.algorithms import ALGORITHMS, split_names
from fedac.errors import InputError
from fedac.paths import require_writable

if TYPE_CHECKING:
    from fedac.data import Clients, Dataset

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

ALGORITHM_NAMES = f"{', '.join(ALGORITHMS)}, any other that 'fedac algorithms' lists"
# Those of fedac.objectives.LOSSES, which is slow to import.
LOSS_NAMES = "logistic, least-squares, squared-hinge"
JOBS = (
    "Groups of runs side by side, in processes that share the cores; the best number unless given."
)
RAY_ADDRESS = "The cluster of --on ray; $RAY_ADDRESS, else a Ray on this machine, unless given."
WAN = "wan"
LINK = (
    "What a round costs in seconds: datacenter, wan, home, phone, or numbers such as "
    "'latency=50ms up=20Mbit down=100Mbit gradient=2ms row=20us stragglers=lognormal(0.5)'."
)
MEGABYTES = "MB: sent and received by a client that is present in every round."
BAND = (
    "How several seeds are shown: range or quartiles, around their median; or confidence, the 95% "
    "confidence interval of their mean."
)


def listed(read: Callable[[str], T], what: str, text: str, *, option: str) -> list[T]:
    """Read a comma-separated list; commas in parentheses separate nothing.

    Examples
    --------
    >>> numbers("0.1,0.2", option="--eta")
    [0.1, 0.2]
    >>> names("fedac-i, fedavg+nesterov(1,0.9)", option="--algorithms")
    ['fedac-i', 'fedavg+nesterov(1,0.9)']
    >>> whole_numbers("4,8.5", option="--workers")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --workers takes whole numbers separated by commas, got '4,8.5'
    >>> numbers("0.1,0.10", option="--eta")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --eta: 0.1 is listed twice
    """
    parts = split_names(text)
    try:
        values = [read(part) for part in parts if part]
    except ValueError:
        values = []
    if len(values) < len(parts):
        raise InputError(f"{option} takes {what} separated by commas, got '{text}'")
    for value in values:
        if values.count(value) > 1:
            raise InputError(f"{option}: {value} is listed twice")
    return values


numbers = partial(listed, float, "numbers")
whole_numbers = partial(listed, int, "whole numbers")
names = partial(listed, str, "names")


def nonempty_path(text: str) -> Path:
    """Read a path; an empty one, as from an unset variable, would mean the current folder."""
    if not text:
        raise click.BadParameter("the path is empty; the current folder is '.'")
    return Path(text)


class Argument(click.Argument):
    """A positional argument with a help text, which Click has since version 8.5."""

    def __init__(self, declarations: Sequence[str], **settings: Any) -> None:
        text: str = settings.pop("help")
        super().__init__(declarations, **settings)
        self.help = text


def argument(name: str, **settings: Any) -> Callable[[F], F]:
    """Declare a positional argument of a command, with a `help`."""
    return click.argument(name, cls=Argument, **settings)


class Command(click.Command):
    """A command that lists its arguments before its options."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first paragraph of the help whole, however long it is."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Leave it to `format_options`, which also works with older versions of Click."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments and the options."""
        arguments = [
            (each.make_metavar(ctx), (each.help or "") + ("  [required]" if each.required else ""))
            for each in self.get_params(ctx)
            if isinstance(each, Argument)
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        super().format_options(ctx, formatter)


class Group(click.Group):
    """Commands in the order in which they are listed, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; suggest the nearest name, as Click does since version 8.5."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


def output_folder(path: Path, *, option: str) -> Path:
    """Return a folder that exists or can be created, so that a command fails before it computes.

    It is not created here: a command that fails for another reason leaves nothing behind. Parents
    that are missing are created with it.

    Examples
    --------
    >>> output_folder(Path(os.devnull), option="--out")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --out takes a writable folder; '...' is a file
    """
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise InputError(f"{option} takes a writable folder; '{nearest}' is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{option} takes a writable folder; '{nearest}' is not writable")
    return path


def output_file(path: Path, *, option: str) -> Path:
    """Return the path of a file that can be written, so that a command fails before it computes.

    Its folder must exist: a missing one is more likely a typo. "-" is the standard output.

    Examples
    --------
    >>> output_file(Path("gone/figure.png"), option="--figure")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --figure: cannot write 'gone/figure.png': there is no folder 'gone'
    """
    if not path.parent.is_dir():
        raise InputError(f"{option}: cannot write '{path}': there is no folder '{path.parent}'")
    if str(path) != "-" and (path.is_file() or path.is_dir() or not path.exists()):
        require_writable(path)
    return path


# --- The options of `fedac run` and `fedac sweep` that say who takes part and what they hold.

WORKERS = 256
SPLIT = (
    "How rows are split among clients: iid, label, dirichlet(a), power(a), or a file with a "
    "client name per line; iid unless given."
)
PARTICIPATION = (
    "The share of clients that takes part in a round, rounded to whole clients; above 1, how many."
)
BATCH = "Rows per local step, or full: all rows of the client."
WEIGHTING = "How much clients count: examples, by their rows; or uniform, all the same."
WIRE = "How messages travel: float32, bfloat16 or int8, the difference to the broadcast rounded."
DECAY = "How step sizes fall over rounds: 1/r, 1/sqrt(r), inverse(c) or halve(c)."
TEST = "Also evaluate on this data set or LIBSVM file, or hold out a share of the rows, as 0.2."


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """What was given to `fedac run`: workers that draw from all rows, or clients."""

    workers: int | None
    clients: int | None
    split: str  # of the rows among clients; empty for workers
    split_seed: int
    participation: float
    batch: int | str
    weighting: str
    decay: str | None
    wire: str

    @property
    def M(self) -> int | None:
        """How many there are; None if only a file of clients says so."""
        if self.split:
            return self.clients
        return WORKERS if self.workers is None else self.workers

    def check(self) -> None:
        """Refuse what cannot be, whatever the data."""
        from fedac.data.splits import check_clients, is_split
        from fedac.federation.averaging import require_weighting
        from fedac.federation.compression import require_wire
        from fedac.federation.federation import require_batch, taking_part
        from fedac.validate import require_count

        if self.split and self.workers is not None:
            raise InputError("--workers draw from all rows, clients hold their own: give one")
        if is_split(self.split) and self.clients is None:
            raise InputError(f"--split {self.split} needs --clients: how many clients there are")
        if self.split:
            check_clients(self.clients, self.split, self.split_seed)
        if self.M is not None:
            taking_part(self.participation, require_count("M (workers)", self.M))
        if self.split_seed and not is_split(self.split):
            raise InputError("--split-seed needs a split that is drawn, such as --split iid")
        require_batch(self.batch)
        require_wire(self.wire)
        require_weighting(self.weighting)
        if self.weighting != "examples" and not self.split:
            raise InputError("--weighting needs --clients: workers all count the same")

    def load(self, data: Dataset) -> Clients | None:
        """Return the clients, None for workers."""
        from fedac.data.splits import load_clients

        if not self.split:
            return None
        return load_clients(data, self.clients, self.split, self.split_seed)


def batch_size(text: str) -> int | str:
    """Read a number of rows; other text stays as it is.

    Examples
    --------
    >>> batch_size("4"), batch_size("full")
    (4, 'full')
    """
    try:
        return int(text)
    except ValueError:
        return text
