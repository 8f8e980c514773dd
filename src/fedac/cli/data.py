"""`fedac data`: which data sets there are, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from fedac.cli.progress import download_bar
from fedac.cli.streams import new_table, print_table
from fedac.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(help="List, fetch and find data sets.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the registered data sets and where they are found."""
    from rich.markup import escape

    from fedac.data.registry import describe

    headings = ("name", "rows", "columns", "where", "note")
    table = new_table(*headings, words={"name", "where", "note"})
    for entry in describe():
        table.add_row(
            entry.name,
            f"{entry.n_samples:,}",
            f"{entry.n_features:,}",
            escape(entry.where or "not here"),
            entry.note,
        )
    print_table(table)


@app.command()
def fetch(name: str = typer.Argument(help="A registered name.")) -> None:
    """Download a data set unless it is here already; print its path."""
    from fedac.data import registry

    with download_bar(name) as show:
        print(_file(lambda name: registry.fetch(name, show), name))


@app.command()
def path(name: str = typer.Argument(help="A registered name.")) -> None:
    """Print where a data set is, without downloading it."""
    from fedac.data import registry

    print(_file(registry.find, name))


def _file(look_up: Callable[[str], Path], name: str) -> Path:
    from fedac.data.registry import GENERATED

    if name in GENERATED:
        raise InputError(f"{name} has no file: it is generated; use it as --dataset {name}")
    return look_up(name)
