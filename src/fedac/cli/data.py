"""`fedac data`: which data sets there are, and where."""

from __future__ import annotations

import typer

app = typer.Typer(help="List, fetch and find data sets.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the registered data sets and where they are found."""
    from rich.console import Console
    from rich.table import Table

    from fedac.data.registry import describe

    table = Table("name", "rows", "columns", "where", "note")
    for entry in describe():
        table.add_row(
            entry.name,
            f"{entry.n_samples:,}",
            f"{entry.n_features:,}",
            entry.where or "not here",
            entry.note,
        )
    Console().print(table)


@app.command()
def fetch(name: str = typer.Argument(help="A registered name.")) -> None:
    """Download a data set unless it is here already; print its path."""
    from fedac.data.registry import fetch as fetch_file

    print(fetch_file(name))


@app.command()
def path(name: str = typer.Argument(help="A registered name.")) -> None:
    """Print where a data set is, without downloading it."""
    from fedac.data.registry import find

    print(find(name))
