"""`fedac compare`: which method, how many local steps, and what that costs."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedac.cli.console import new_table, notice, notice_compiling, print_table, stage_bars
from fedac.cli.options import (
    ALGORITHM_NAMES,
    BATCH,
    JOBS,
    LINK,
    LOSS_NAMES,
    MEGABYTES,
    PARTICIPATION,
    RAY_ADDRESS,
    SPLIT,
    WAN,
    WEIGHTING,
    WIRE,
    Command,
    batch_size,
    names,
    nonempty_path,
    output_folder,
    whole_numbers,
)
from fedac.cli.sweep import load_data, notice_disguised, stoppable

if TYPE_CHECKING:
    from fedac.experiments.comparison import Comparison, Study
    from fedac.experiments.comparison.table import Row
    from fedac.experiments.store import Store
    from fedac.experiments.summary import Band

# The options whose values a grid has under other names.
OPTIONS = {"algorithms": "--methods", "seeds": "--seed", "steps": "--rounds"}


@click.command("compare", cls=Command)
@click.option("--dataset", default="synthetic", help="A registered name or a LIBSVM file.")
@click.option("--loss", default="logistic", help=f"{LOSS_NAMES}, or your own class as module:name.")
@click.option("--l2", type=float, default=1e-3, help="Regularization strength, above 0.")
@click.option("--intercept", is_flag=True, help="Append a column of ones.")
@click.option(
    "--methods",
    help=f"Separated by commas: {ALGORITHM_NAMES}, any composition, or records of your own as "
    "module:name. Default: the built-in list of `fedac.compare`.",
)
@click.option(
    "--clients",
    type=int,
    help="Clients that hold rows of their own; 100 unless given, or those that a file of "
    "--split names.",
)
@click.option("--split", help=SPLIT)
@click.option("--split-seed", type=int, default=0, help="Seed of the split.")
@click.option(
    "--workers", "-M", type=int, help="In place of clients: workers that draw from all rows."
)
@click.option("--participation", type=float, default=1.0, help=PARTICIPATION)
@click.option("--batch", default="1", help=BATCH)
@click.option("--weighting", default="examples", help=WEIGHTING)
@click.option(
    "--local-steps", "-K", default="8,32,128", help="Steps per round, K, separated by commas."
)
@click.option("--rounds", type=int, default=200, help="Of every run.")
@click.option("--wire", default="float32", help=f"{WIRE} Several are separated by commas.")
@click.option("--link", default=WAN, help=LINK)
@click.option(
    "--target",
    type=float,
    help="Target suboptimality. If omitted, methods are tuned for and ranked by the "
    "suboptimality within the budget.",
)
@click.option(
    "--budget",
    help="'100 rounds', '2MB' or '60s'. Default: the whole run with --target; without it, the "
    "time in which every run ends. With --target it ranks only methods that did not reach it. "
    f"{MEGABYTES}",
)
@click.option(
    "--tries", type=int, default=20, help="Settings tried for each method, K and wire; at least 4."
)
@click.option(
    "--seed", type=int, default=1, help="First seed of the tuning; the next ones are used too."
)
@click.option(
    "--repeats", type=int, default=5, help="Fresh seeds on which the best settings are repeated."
)
@click.option(
    "--out",
    type=nonempty_path,
    metavar="DIR",
    help="Keep all runs here, and write figure, tables and report.",
)
@click.option("--jobs", "-j", type=int, help=JOBS)
@click.option(
    "--on", metavar="ray", help="Run on a Ray cluster instead: needs pip install 'fedac[ray]'."
)
@click.option("--ray-address", metavar="HOST:PORT", help=RAY_ADDRESS)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object; nulls where the target was not reached.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    dataset: str,
    loss: str,
    l2: float,
    intercept: bool,
    methods: str | None,
    clients: int | None,
    split: str | None,
    split_seed: int,
    workers: int | None,
    participation: float,
    batch: str,
    weighting: str,
    local_steps: str,
    rounds: int,
    wire: str,
    link: str,
    target: float | None,
    budget: str | None,
    tries: int,
    seed: int,
    repeats: int,
    out: Path | None,
    jobs: int | None,
    on: str | None,
    ray_address: str | None,
    as_json: bool,
) -> None:
    """Find out which method is best on your data and your link.

    Every method gets the same tuning budget: a coarse grid of step sizes, then the neighbours of
    the best setting, the best of them on three seeds. The winners are repeated on fresh seeds. With
    --out, a comparison that was stopped continues where it was, and further --methods are added to
    those that the folder has.
    """
    from fedac.experiments.comparison import Budget, Question, Study, open_store
    from fedac.experiments.comparison.verdict import proposed_target
    from fedac.experiments.sweep import require_where
    from fedac.federation.link import Link

    require_where(jobs, on, ray_address)
    values: dict[str, Any] = {
        "dataset": dataset, "loss": loss, "l2": l2, "intercept": intercept,
        "split_seed": split_seed, "participation": (participation,),
        "batch": (batch_size(batch),), "weighting": weighting, "seeds": (seed,),
        "local_steps": tuple(whole_numbers(local_steps, option="--local-steps")),
        "wire": tuple(names(wire, option="--wire")),
    }  # fmt: skip
    given = {"workers": workers, "clients": clients, "split": split}
    values |= {name: (value,) for name, value in given.items() if value is not None}
    if methods is not None:
        values["algorithms"] = tuple(names(methods, option="--methods"))
    question = Question.ask(
        values,
        lambda key: OPTIONS.get(key, f"--{key.replace('_', '-')}"),
        rounds=rounds,
        link=Link.parse(link),
        target=target,
        budget=None if budget is None else Budget.parse(budget),
        tries=tries,
        repeats=repeats,
    )
    if out is not None:
        from fedac.experiments.comparison.report import with_earlier_methods

        output_folder(out, option="--out")
        question, added = with_earlier_methods(question, out)
        if added:
            notice(f"'{out}' already compares {', '.join(added)}: they stay in the table")
    load_data(question.grid)
    study = Study(question)
    with open_store(out) as store, stoppable("compare", store if out else None):
        found = answer_with_bars(study, store, jobs=jobs, on=on, ray_address=ray_address)
    notice_disguised(found.disguised, found.runs)
    if out is not None:
        from fedac.experiments.comparison.report import write_files

        write_files(found, out)
    if as_json:
        from fedac.experiments.comparison.table import to_json

        print(json.dumps(to_json(found), allow_nan=False))
        return
    print_comparison(found)
    proposed = proposed_target(found)
    if proposed is not None:
        print(f"To see what that costs: {typed_command(ctx)} --target {proposed:g}")
    if out is not None:
        print(f"Figure, tables and report are in '{out}'.")


def answer_with_bars(study: Study, store: Store, **where: Any) -> Comparison:
    """Answer the question of a study, with a progress bar for each stage."""
    from fedac.experiments.sweep import SweepInterrupted

    with stage_bars() as (on_stage, on_progress):
        try:
            return study.answer(
                store, on_stage=on_stage, on_progress=on_progress,
                on_compile=cache(notice_compiling), **where,
            )  # fmt: skip
        except SweepInterrupted:  # its message would count the runs of one stage only
            raise KeyboardInterrupt from None


def typed_command(ctx: click.Context) -> str:
    """Return the command as it was typed, with the options that were given."""
    words = ["fedac", "compare"]
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            value = ctx.params[option.name or ""]
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return shlex.join(words)


def print_comparison(found: Comparison) -> None:
    """Print the best row of every method, then the verdict."""
    from rich.markup import escape

    from fedac.experiments.comparison.report import title
    from fedac.experiments.comparison.table import LAST
    from fedac.experiments.comparison.verdict import sentences
    from fedac.experiments.summary import Band

    question, target, rows = found.question, found.question.target, found.best_rows
    some = question.grid.participation[0] != 1
    columns: dict[str, Callable[[Row], str]] = {
        "method": lambda row: escape(row.method) + " with all clients" * (row.all_clients and some)
    }
    if len(question.grid.wire) > 1:
        columns["wire"] = lambda row: row.wire
    columns |= {"K": lambda row: str(row.K), "eta": _eta}
    notes = [
        f"Each method at its best K, after {question.tries} tries for each K. Geometric mean of "
        f"{question.repeats} fresh seeds; brackets: 90% prediction interval for the mean of "
        f"another {question.repeats}. F - F*: mean of the last {LAST:.0%} of the records."
    ]
    if any(row.server_step is not None for row in rows):
        columns["server"] = _server
        notes.append("Server: its step and momentum.")
    if any(row.mu is not None for row in rows):
        columns["mu"] = lambda row: "" if row.mu is None else f"{row.mu:.3g}"
    if target is not None:
        columns["rounds"] = lambda row: _rounds(row, question.repeats)
        columns["MB"] = lambda row: _cost(row, row.megabytes)
        columns["seconds"] = lambda row: _cost(row, row.seconds)
        notes.append(MEGABYTES)
    columns[f"F - F* within {found.budget}"] = lambda row: scientific(row.suboptimality)
    if target is None:
        columns["smallest"] = lambda row: scientific(Band(*[row.smallest.middle] * 3))
        notes.append("Smallest: the smallest record.")
    table = new_table(
        *columns,
        words={"method", "wire"},
        title=escape(title(found)) + (f", target {target:g}" if target is not None else ""),
        caption=" ".join([*notes, f"Link: {question.link}."]),
    )
    for row in rows:
        bold = row is rows[0] or row.level
        cells = (write(row) for write in columns.values())
        table.add_row(*cells, style="bold" if bold else None)
    print_table(table)
    if any(row.edge or row.server_edge for row in rows):
        print("* the smallest or largest one tried: a better one may lie beyond it.")
    for sentence in sentences(found):
        print(sentence)


def _eta(row: Row) -> str:
    if row.eta is None:
        return "diverged" if row.diverged else ""
    return f"{row.eta:.3g}{'*' if row.edge else ''}"


def _server(row: Row) -> str:
    step = (
        "" if row.server_step is None else f"{row.server_step:.3g}{'*' if row.server_edge else ''}"
    )
    return step + ("" if row.momentum is None else f", {row.momentum:g}")


def _rounds(row: Row, seeds: int) -> str:
    some = f", except on {row.seeds_reached} of {seeds} seeds" if row.seeds_reached else ""
    return _cost(row, row.rounds) if row.reached else f"not reached{some}"


def _cost(row: Row, band: Band) -> str:
    from fedac.experiments.comparison.verdict import written

    return written(band) if row.reached else "-"


def scientific(band: Band) -> str:
    """Write a band with three digits, or a dash if it does not exist."""
    from fedac.experiments.summary import band_text

    return "-" if not math.isfinite(band.middle) else band_text(band, "{:.2e}".format)
