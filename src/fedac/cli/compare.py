"""`fedac compare`: the best method and K for your data and network, and what they cost."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedac.cli import console, options
from fedac.federation.spec import COMPARE, command_option

if TYPE_CHECKING:
    from fedac.experiments.comparison import Comparison, Study
    from fedac.experiments.comparison.table import Row
    from fedac.experiments.store import Store
    from fedac.experiments.summary import Band


@click.command("compare", cls=options.Command)
@options.spec_options(COMPARE)
@options.folder_option("Keep all runs here, and write figure, tables and report.")
@options.jobs_option
@options.on_ray_options()
@options.json_option("Print one JSON object; nulls where the target was not reached.")
@click.pass_context
def compare_command(
    ctx: click.Context, /, *, out: Path | None, as_json: bool, **given: Any
) -> None:
    """Find the best method for your data and network.

    Every method gets the same tuning budget: a coarse grid of step sizes, then the neighbours of
    the best setting. The best settings run on three seeds, and the winners again on fresh seeds.
    With --out, an interrupted comparison resumes where it stopped, and new --methods are added to
    the table of the folder.
    """
    from fedac.data import load
    from fedac.experiments.comparison import Question, Study, open_store
    from fedac.experiments.comparison.table import proposed_target
    from fedac.experiments.sweep import require_where

    where = {name: given.pop(name) for name in ("jobs", "on", "ray_address")}
    require_where(**where)
    spelled = replace(COMPARE, spell=command_option)
    question = Question.ask(options.read_values(COMPARE, given), spelled)
    if out is not None:
        from fedac.experiments.comparison.report import with_earlier_methods

        question, added = with_earlier_methods(question, out)
        if added:
            console.notice(f"'{out}' already compares {', '.join(added)}: they stay in the table")
    with console.download_bar(question.spec.dataset) as show:
        study = Study(question, load(question.spec.dataset, show))
    with open_store(out) as store, console.stoppable("compare", store if out else None):
        found = answer_with_bars(study, store, **where)
    console.notice_disguised(found.disguised, found.runs)
    if out is not None:
        from fedac.experiments.comparison.report import write_files

        write_files(found, out)
    if as_json:
        from fedac.experiments.comparison.table import to_json

        print(json.dumps(to_json(found), allow_nan=False))
        return
    _print_comparison(found)
    proposed = proposed_target(found)
    if proposed is not None:
        print(f"To see what that costs: {_typed_command(ctx)} --target {proposed:g}")
    if out is not None:
        print(f"Figure, tables and report are in '{out}'.")


def answer_with_bars(study: Study, store: Store, **where: Any) -> Comparison:
    """Answer the question of a study, with a progress bar for each stage."""
    from fedac.experiments.sweep import SweepInterrupted

    with console.stage_bars() as (on_stage, on_progress):
        try:
            return study.answer(
                store, on_stage=on_stage, on_progress=on_progress,
                on_compile=cache(console.notice_compiling), **where,
            )  # fmt: skip
        except SweepInterrupted:  # its message would count the runs of one stage only
            raise KeyboardInterrupt from None


def _typed_command(ctx: click.Context) -> str:
    """Return the command line with the options that the user typed."""
    words = ["fedac", "compare"]
    for option in ctx.command.params:
        if option.name and options.is_typed(ctx, option.name):
            value = ctx.params[option.name]
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return shlex.join(words)


def _print_comparison(found: Comparison) -> None:
    """Print the best row of every method, then the verdict."""
    from fedac.experiments.comparison.report import title
    from fedac.experiments.comparison.table import LAST, verdict
    from fedac.experiments.summary import Band

    spec, target, rows = found.spec, found.spec.target, found.best_rows
    some = spec.participation != 1
    columns: dict[str, Callable[[Row], str]] = {
        "method": lambda row: row.method + " with all clients" * (row.all_clients and some)
    }
    if len(spec.several("wire")) > 1:
        columns["wire"] = lambda row: row.wire
    columns |= {"K": lambda row: str(row.K), "eta": _eta}
    notes = [
        f"Each method at its best K, after {spec.tries} tries for each K. Geometric mean of "
        f"{spec.repeats} fresh seeds; brackets: 90% prediction interval for the mean of "
        f"another {spec.repeats}. F - F*: mean of the last {LAST:.0%} of the records."
    ]
    if any(row.server_step is not None for row in rows):
        columns["server"] = _server
        notes.append("Server: its step and momentum.")
    if any(row.mu is not None for row in rows):
        columns["mu"] = lambda row: "" if row.mu is None else f"{row.mu:.3g}"
    if target is not None:
        columns["rounds"] = lambda row: _rounds(row, spec.repeats)
        columns["MB"] = lambda row: _cost(row, row.megabytes)
        columns["seconds"] = lambda row: _cost(row, row.seconds)
        notes.append(options.MEGABYTES)
    columns[f"F - F* within {found.budget}"] = lambda row: scientific(row.suboptimality)
    if target is None:
        columns["smallest"] = lambda row: scientific(Band(*[row.smallest.middle] * 3))
        notes.append("Smallest: the smallest record.")
    console.print_table(
        columns,
        [[write(row) for write in columns.values()] for row in rows],
        words={"method", "wire"},
        title=title(found) + (f", target {target:g}" if target is not None else ""),
        caption=" ".join([*notes, f"Link: {found.question.link}."]),
        bold=[number for number, row in enumerate(rows) if number == 0 or row.level],
    )
    if any(row.edge or row.server_edge for row in rows):
        print("* the smallest or largest one tried: a better one may lie beyond it.")
    for sentence in verdict(found):
        print(sentence)


def _eta(row: Row) -> str:
    if row.eta is None:
        return "diverged" if row.diverged else ""
    return f"{row.eta:.3g}{'*' * bool(row.edge)}"


def _server(row: Row) -> str:
    step = "" if row.server_step is None else f"{row.server_step:.3g}{'*' * bool(row.server_edge)}"
    return step + ("" if row.momentum is None else f", {row.momentum:g}")


def _rounds(row: Row, seeds: int) -> str:
    some = f", except on {row.seeds_reached} of {seeds} seeds" if row.seeds_reached else ""
    return _cost(row, row.rounds) if row.reached else f"not reached{some}"


def _cost(row: Row, band: Band) -> str:
    from fedac.experiments.comparison.table import written

    return written(band) if row.reached else "-"


def scientific(band: Band) -> str:
    """Write a band with three digits, or a dash if it does not exist."""
    from fedac.experiments.summary import band_text

    return "-" if not math.isfinite(band.middle) else band_text(band, "{:.2e}".format)
