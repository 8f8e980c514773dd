# SPDX-License-Identifier: Apache-2.0
"""`fedac compare`: the best method and K for your data and network, and what they cost."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedac.cli import console, options
from fedac.cli.run import METHOD, METRIC_FORMATS, RUN
from fedac.errors import InputError
from fedac.federation.spec import COMPARE, FLOAT32, command_option

if TYPE_CHECKING:
    from fedac.experiments.comparison import Comparison, Question, Study
    from fedac.experiments.comparison.study import Forecast
    from fedac.experiments.comparison.table import Row
    from fedac.experiments.store import Store
    from fedac.experiments.summary import Band


# Well-known methods, tuned roughly.
QUICK = {
    "methods": ["fedavg", "fedavgm", "fedadam", "scaffold", "fedac-i"], "local_steps": (8,),
    "rounds": 50, "tries": 6, "repeats": 2,
}  # fmt: skip
SOONER = "--quick, fewer --methods or --rounds are faster; --dry-run only predicts the time"
QUICKER = "fewer --methods or --rounds are faster"


@click.command("compare", cls=options.Command)
@options.spec_options(COMPARE)
@options.folder_option("Folder for the runs, figure, tables and report; created if missing.")
@options.jobs_option
@options.option(
    "--quick",
    is_flag=True,
    help="A first answer: five methods, K = 8, 6 tries, 2 seeds, at most 50 rounds.",
    heading=options.LENGTH,
)
@options.option(
    "--dry-run",
    is_flag=True,
    help="Only print what would be run, and predict the time.",
    heading=options.LENGTH,
)
@options.on_ray_options()
@options.json_option("Print one JSON object; nulls where the target was not reached.")
@click.pass_context
def compare_command(
    ctx: click.Context,
    /,
    *,
    out: Path | None,
    as_json: bool,
    quick: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Find the best method for your data and network.

    Every method gets the same tuning budget: a coarse grid of step sizes, then the neighbours of
    the best setting. The best settings run on three seeds, and the winners again on fresh seeds.
    With --out, an interrupted comparison resumes where it stopped, and new --methods are added to
    the table of the folder.
    """
    from fedac.experiments.comparison import Question, Study, open_store
    from fedac.experiments.comparison.table import proposed_target
    from fedac.experiments.sweep import require_where
    from fedac.experiments.workload import load_data, with_own_clients

    where = {name: given.pop(name) for name in ("jobs", "on", "ray_address")}
    require_where(**where)
    if dry_run and where["on"] is not None:
        raise InputError("--dry-run predicts the time on this machine only: omit --on")
    spelled = replace(COMPARE, spell=command_option)
    values = options.read_values(COMPARE, given)
    given_rounds = values.keys() & {"rounds"}
    if quick:
        roughly = {n: v for n, v in QUICK.items() if n != "local_steps" or "epochs" not in values}
        values = roughly | values
    question = Question.ask(values, spelled)
    with console.download_bar(question.spec.dataset) as show:
        data, test = load_data(question.spec, show)
    question = Question.ask(with_own_clients(values, data), spelled).on(data)
    if out is not None:
        from fedac.experiments.comparison.report import with_earlier_methods

        question, added = with_earlier_methods(question, out)
        if added:
            console.notice(f"'{out}' already compares {', '.join(added)}: they stay in the table")
    study = Study(question, data, test)
    if quick and not given_rounds and study.task.objective.is_network:
        from fedac.experiments.comparison.quick import shortened
        from fedac.processes import usable_cores

        question = shortened(study, where["jobs"] or usable_cores(), None if dry_run else out)
        if question.rough:
            console.notice(_left_out(question, study.question))
        study = Study(question, data, test)
    linear = question.spec.model is None
    console.notice_targets(data, study.task.loss, intercept=question.spec.intercept or not linear)
    seconds = 0.0
    if dry_run or where["on"] is None:  # on a cluster, this machine's speed tells nothing
        forecast = study.forecast(where["jobs"], measured=True)
        seconds = forecast.seconds
        if dry_run:
            _print_forecast(study.question, forecast, as_json=as_json)
            return
        console.notice_long(seconds, QUICKER if quick else SOONER)
    with open_store(out) as store, console.stoppable("compare", store if out else None):
        found = answer_with_bars(study, store, long=seconds > console.LONG, **where)
    console.notice_disguised(found.disguised, found.runs)
    if out is not None:
        from fedac.experiments.comparison.report import write_files

        write_files(found, out)
    if as_json:
        from fedac.experiments.comparison.table import to_json

        print(json.dumps(to_json(found), allow_nan=False))
        return
    _print_comparison(found)
    if linear and (best := _best_to_run(found)) is not None:
        print(f"To run it: {_run_command(ctx, found, best)}")
    proposed = proposed_target(found)
    if proposed is not None:
        print(f"To see what that costs: {options.typed_command(ctx)} --target {proposed:g}")
    if out is not None:
        print(f"Figure, tables and report are in '{out}'.")


def _left_out(quick: Question, usual: Question) -> str:
    from fedac.experiments.comparison.question import MOST_ROUGH_RECORDS

    return (
        f"to answer sooner, {_rounds_left(quick, usual)}about "
        f"{MOST_ROUGH_RECORDS} records of a run, and settings tried on one seed instead of "
        f"{len(usual.tuning_seeds)}; "
        f"--rounds {usual.spec.rounds} turns this off"
    )


def _rounds_left(quick: Question, usual: Question) -> str:
    few, all_of_them = quick.spec.rounds, usual.spec.rounds
    return "" if few == all_of_them else f"{few} of {all_of_them} rounds, "


def _print_forecast(question: Question, forecast: Forecast, *, as_json: bool) -> None:
    """Print what a comparison would run, and how long that takes."""
    spec = question.spec
    found: dict[str, Any] = {
        "methods": question.methods, "local_steps": spec.several("local_steps"),
        "modes": question.modes, "wire": spec.several("wire"), "rounds": spec.rounds,
        "runs": forecast.runs, "seconds": forecast.seconds,
    }  # fmt: skip
    if as_json:
        print(json.dumps(found))
        return
    for name in ("methods", "local_steps", "modes", "wire"):
        print(f"{name.replace('_', ' ')}: {', '.join(map(str, found[name]))}")
    print(f"runs: {forecast.runs}, of {spec.rounds} rounds each")
    print(
        f"expected time: {console.duration(forecast.seconds)}, plus up to a minute to compile the "
        "first time"
    )


def answer_with_bars(study: Study, store: Store, *, long: bool = False, **where: Any) -> Comparison:
    """Run a study, with a progress bar for each stage."""
    from fedac.experiments.sweep import SweepInterrupted

    with console.stage_bars(long=long) as (on_stage, on_progress):
        try:
            return study.answer(
                store, on_stage=on_stage, on_progress=on_progress,
                on_compile=cache(console.notice_compiling), **where,
            )  # fmt: skip
        except SweepInterrupted:  # its message would count the runs of one stage only
            raise KeyboardInterrupt from None


def _best_to_run(found: Comparison) -> Row | None:
    """Return the best row that `fedac run` can run: not a baseline, and not diverged."""
    from fedac.experiments.comparison.baselines import BASELINES

    ranked = (row for row in found.rows if row.method not in BASELINES and not row.diverged)
    return next(ranked, None)


def _run_command(ctx: click.Context, found: Comparison, row: Row) -> str:
    """Return the command that runs a row of a linear model."""
    shared = [name for name in RUN.fields() if name not in (*METHOD, "mode", "wire")]
    words = [options.typed_command(ctx, "run", shared)]
    spec = found.spec
    # The default of `fedac run` is workers.
    if spec.client is None and not any(ctx.params[name] for name in ("workers", "clients")):
        words.append(f"--clients {spec.clients}")
    name = row.method if ":" in row.method else row.algorithm
    words.append(f"--algorithm {shlex.quote(name)} -K {row.K} --eta {row.eta:.4g}")
    words += [] if row.mu is None else [f"--mu {row.mu:.4g}"]
    words.append(f"--rounds {found.question.rounds_of(row.K, row.mode)}")
    words += [] if row.mode == "rounds" else [f"--mode {shlex.quote(row.mode)}"]
    words += [] if row.wire == FLOAT32 else [f"--wire {row.wire}"]
    return " ".join(words)


def _print_comparison(found: Comparison) -> None:
    """Print the best row of every method, then the verdict."""
    from fedac.experiments.comparison.table import LAST, sentences, written
    from fedac.experiments.summary import Band
    from fedac.objectives.metrics import TITLES

    spec, target, rows = found.spec, found.question.target, found.best_rows
    names = [name for name in METRIC_FORMATS if name != "loss"]
    tested = [name for name in names if any(name in row.metrics for row in rows)]
    some, what = spec.participation != 1, "F - F*" if spec.model is None else "training loss"
    best_at = "K and mode" if len(found.question.modes) > 1 else "K"
    each = "K in each mode" if len(found.question.modes) > 1 else "K"
    notes = [
        f"Each method at its best {best_at}, after {spec.tries} tries for each {each}. "
        f"Geometric mean of "
        f"{spec.repeats} fresh seeds; brackets: 90% prediction interval for the mean of "
        f"another {spec.repeats}. {what[0].upper()}{what[1:]}: mean of the last {LAST:.0%} of the "
        "records."
    ]
    has_server = any(row.server_step is not None for row in rows)
    has_mu = any(row.mu is not None for row in rows)
    notes += ["Server: its step and momentum."] if has_server else []
    notes += [f"Test set: {found.test}; mean of the same records and seeds."] if tested else []
    notes += ["Smallest: the smallest record." if target is None else options.MEGABYTES]
    table = []
    for row in rows:
        cells = {"method": row.method + " with all clients" * (row.all_clients and some)}
        if len(spec.several("wire")) > 1:
            cells["wire"] = row.wire
        if found.question.modes != ("rounds",):
            cells["mode"] = row.mode
        cells |= {"K": str(row.K), "eta": "diverged" * row.diverged}
        if row.eta is not None:
            cells["eta"] = f"{row.eta:.3g}" + "*" * bool(row.edge)
        if has_server:
            cells["server"] = _server(row)
        if has_mu:
            cells["mu"] = "" if row.mu is None else f"{row.mu:.3g}"
        if target is not None:
            some_seeds = f", except on {row.seeds_reached} of {spec.repeats} seeds"
            missed = "not reached" + some_seeds * bool(row.seeds_reached)
            cells["rounds"] = written(row.rounds) if row.reached else missed
            cells["MB"] = written(row.megabytes) if row.reached else "-"
            cells["seconds"] = written(row.seconds) if row.reached else "-"
        cells[f"{what} within {found.budget}"] = scientific(row.suboptimality)
        for name in tested:
            value = row.metrics.get(name)
            written_as = "-" if value is None else f"{value:{METRIC_FORMATS[name]}}"
            cells[f"test {TITLES.get(name, name)}"] = written_as
        if target is None:
            cells["smallest"] = scientific(Band(*[row.smallest.middle] * 3))
        table.append(cells)
    console.print_table(
        table,
        words={"method", "wire", "mode"},
        bands={"rounds", "MB", "seconds", f"{what} within {found.budget}"},
        title=found.title + (f", target {target}" if target is not None else ""),
        caption=" ".join([*notes, f"Link: {found.question.link}."]),
        bold=[number for number, row in enumerate(rows) if number == 0 or row.level],
    )
    if any(row.edge or row.server_edge for row in rows):
        print("* the smallest or largest one tried: a better one may lie beyond it.")
    say = print if spec.model else console.results_console().print  # code must not be wrapped
    for sentence in sentences(found):
        say(sentence)


def _server(row: Row) -> str:
    step = "" if row.server_step is None else f"{row.server_step:.3g}{'*' * bool(row.server_edge)}"
    return step + ("" if row.momentum is None else f", {row.momentum:g}")


def scientific(band: Band) -> str:
    """Write a band with three digits, or a dash if it does not exist."""
    from fedac.experiments.summary import band_text

    return "-" if not math.isfinite(band.middle) else band_text(band, "{:.2e}".format)
