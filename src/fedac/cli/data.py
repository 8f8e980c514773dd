"""`fedac data`: list, download and locate data sets."""

from __future__ import annotations

import click

from fedac.cli.console import download_bar, new_table, print_table
from fedac.cli.options import Command, Group, argument
from fedac.errors import InputError


@click.group("data", cls=Group, no_args_is_help=True)
def command() -> None:
    """List, download and locate data sets."""


@command.command("list", cls=Command)
def list_sets() -> None:
    """List the registered data sets and their locations."""
    from rich.markup import escape

    from fedac.data.registry import describe

    headings = ("name", "rows", "columns", "where", "note")
    caption = "Downloads are verified by their checksum if one is published, else by their shape."
    table = new_table(*headings, words={"name", "where", "note"}, caption=caption)
    for source, where in describe():
        shape = (f"{source.n_samples:,}", f"{source.n_features:,}")
        table.add_row(source.name, *shape, escape(where), source.note)
    print_table(table)


@command.command("fetch", cls=Command)
@argument("name", help="A registered name; 'fedac data list' shows them.")
def fetch(name: str) -> None:
    """Download a data set unless it is already here; print its path."""
    from fedac.data import registry

    _require_file(name)
    with download_bar(name) as show:
        path = registry.fetch(name, show)
    print(path)


@command.command("path", cls=Command)
@argument("name", help="A registered name; 'fedac data list' shows them.")
def path(name: str) -> None:
    """Print the path of a data set without downloading it."""
    from fedac.data import registry

    _require_file(name)
    print(registry.find(name))


def _require_file(name: str) -> None:
    from fedac.data.registry import GENERATED

    if name in GENERATED:
        raise InputError(f"{name} has no file: it is generated; use it as --dataset {name}")
