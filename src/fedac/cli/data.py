# SPDX-License-Identifier: Apache-2.0
"""`fedac data` and `fedac split`: data sets, and the rows of every client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fedac.cli import console, options
from fedac.errors import InputError
from fedac.federation.spec import OptionSet, options_of

FORMATS = (".png", ".pdf", ".svg")
SHOWN = ("dataset", "label", "client", "clients", "split", "split_seed")
SPLIT = OptionSet(
    without=tuple(name for name in options_of() if name not in SHOWN),
    overrides={
        "clients": {"help": "Number of clients; a file of client names makes it unnecessary."}
    },
)


@click.group("data", cls=options.Group, no_args_is_help=True)
def data_command() -> None:
    """List, download and locate data sets."""


name_argument = options.argument("name", help="A registered name; 'fedac data list' shows them.")


@data_command.command("list", cls=options.Command)
def list_sets() -> None:
    """List the registered data sets and their locations."""
    from fedac.data.registry import describe

    console.print_table(
        [
            {"name": source.name, "rows": f"{source.n_samples:,}",
             "columns": f"{source.n_features:,}", "where": where, "note": source.note}
            for source, where in describe()
        ],
        words={"name", "where", "note"},
        caption="Downloads are verified by their checksum if one is published, else by their "
        "shape. Your own data: --dataset FILE (CSV, TSV, Parquet, NPZ or LIBSVM).",
    )  # fmt: skip


@data_command.command("fetch", cls=options.Command)
@name_argument
def fetch(name: str) -> None:
    """Download a data set unless it is already here; print its path."""
    from fedac.data import registry

    _require_file(name)
    with console.download_bar(name) as show:
        path = registry.fetch(name, show)
    print(path)


@data_command.command("path", cls=options.Command)
@name_argument
def print_path(name: str) -> None:
    """Print the path of a data set without downloading it."""
    from fedac.data import registry

    _require_file(name)
    print(registry.find(name))


def _require_file(name: str) -> None:
    from fedac.data.generated import GENERATED

    if name in GENERATED:
        raise InputError(f"{name} has no file: it is generated; use it as --dataset {name}")


@click.command("split", cls=options.Command)
@options.spec_options(SPLIT)
@options.file_option("--figure", "Draw a figure: .png, .pdf or .svg.")
@options.json_option("Print one JSON object: rows and labels of every client.")
@click.pass_context
def split_command(
    context: click.Context, /, *, figure: Path | None, as_json: bool, **given: Any
) -> None:
    """Show how a split divides the rows of a data set among clients."""
    spec = options.read_spec(SPLIT, given)
    from fedac.data import load
    from fedac.data.splits import as_clients, check_clients

    by = spec.split or "iid"
    if spec.client is None:
        check_clients(spec.clients, by, spec.split_seed)
    elif spec.clients is not None or spec.split is not None:
        other = "--split" if spec.clients is None else "--clients"
        raise InputError(f"--client names the clients already: omit {other}")
    if figure is not None and figure.suffix.lower() not in FORMATS:
        raise InputError(f"--figure takes a file that ends in {', '.join(FORMATS)}: '{figure}'")
    with console.download_bar(spec.dataset) as show:
        data = load(spec.dataset, spec.label, spec.client, on_progress=show)
    found = data.clients
    if found is None or spec.client is None:
        found = as_clients(by, data, spec.clients, spec.split_seed)
    if figure is not None:
        from matplotlib.figure import Figure

        from fedac.paths import write_atomically

        drawing = Figure(figsize=(7, 3.8), layout="constrained")
        found.plot(drawing.subplots())
        kind = figure.suffix.lower().removeprefix(".")
        write_atomically(figure, lambda file: drawing.savefig(file, format=kind, dpi=200))
    if as_json:
        shape = {"n_samples": data.n_samples, "n_features": data.n_features}
        answer = {
            "dataset": {"name": data.name, **shape},
            "split": by if spec.client is None else found.how,
            "split_seed": spec.split_seed,
            "figure": figure and str(figure),
            "clients": len(found),
            "names": found.names,
            "sizes": found.sizes.tolist(),
            "labels": {label: rows.tolist() for label, rows in found.count_labels().items()},
        }
        print(json.dumps(answer, allow_nan=False))
        return
    print(found)
    if figure is not None:
        print(f"\nFigure: {figure}")
    compare = options.typed_command(context, "compare --quick", SHOWN)
    console.say_next(f"which method suits these clients: {compare}")
