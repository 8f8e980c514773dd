"""`fedac split`: the rows of every client, as a table and a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedac.cli.console import download_bar
from fedac.cli.options import Command, nonempty_path, output_file
from fedac.errors import InputError

if TYPE_CHECKING:
    from fedac.data import Clients

FORMATS = (".png", ".pdf", ".svg")


@click.command("split", cls=Command)
@click.option("--dataset", default="synthetic", help="A registered name or a LIBSVM file.")
@click.option(
    "--clients", type=int, help="Number of clients; a file of client names makes it unnecessary."
)
@click.option(
    "--split",
    "by",
    default="iid",
    help="iid, label, dirichlet(a), power(a), or a file with one client name per line.",
)
@click.option("--split-seed", type=int, default=0, help="Seed of the split.")
@click.option(
    "--figure", type=nonempty_path, metavar="FILE", help="Draw a figure: .png, .pdf or .svg."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: rows and labels of every client.",
)
def command(
    *,
    dataset: str,
    clients: int | None,
    by: str,
    split_seed: int,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Show how a split divides the rows of a data set among clients."""
    from fedac.data import load
    from fedac.data.splits import check_clients, load_clients

    check_clients(clients, by, split_seed)
    if figure is not None:
        if figure.suffix.lower() not in FORMATS:
            raise InputError(f"--figure takes a file that ends in {', '.join(FORMATS)}: '{figure}'")
        output_file(figure, option="--figure")
    with download_bar(dataset) as show:
        data = load(dataset, show)
    found = load_clients(data, clients, by, split_seed)
    if figure is not None:
        _draw(found, figure)
    if as_json:
        shape = {"n_samples": data.n_samples, "n_features": data.n_features}
        options = {"split": by, "split_seed": split_seed, "figure": figure and str(figure)}
        answer = {"dataset": {"name": data.name, **shape}, **options, **_as_json(found)}
        print(json.dumps(answer, allow_nan=False))
        return
    print(found)
    if figure is not None:
        print(f"\nFigure: {figure}")


def _as_json(clients: Clients) -> dict[str, Any]:
    """Return the rows of every client, all and by label, in the order of the names."""
    return {
        "clients": len(clients),
        "names": clients.names,
        "sizes": clients.sizes.tolist(),
        "labels": {label: rows.tolist() for label, rows in clients.count_labels().items()},
    }


def _draw(clients: Clients, path: Path) -> None:
    from matplotlib.figure import Figure

    from fedac.paths import write_atomically

    drawing = Figure(figsize=(7, 3.8), layout="constrained")
    clients.plot(drawing.subplots())
    kind = path.suffix.lower().removeprefix(".")
    write_atomically(path, lambda file: drawing.savefig(file, format=kind, dpi=200))
