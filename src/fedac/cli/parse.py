"""Values of options: lists, names and paths."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import typer

from fedac.algorithms import ALGORITHMS, split_names
from fedac.errors import InputError
from fedac.files import require_writable

T = TypeVar("T")

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
    """Read a path; refuse an empty one, as from an unset variable: it means the current folder."""
    if not text:
        raise typer.BadParameter("the path is empty; the current folder is '.'")
    return Path(text)


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
