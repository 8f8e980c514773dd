"""`fedac instability`: two runs of AGD that start close together separate exponentially."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedac.cli.console import new_table, print_table
from fedac.cli.options import Command, nonempty_path, output_folder, whole_numbers
from fedac.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedac.theory.instability import Instance, Separation

# More columns do not fit on a terminal, and a longer interval is a typo.
MOST_INTERVALS, LONGEST_INTERVAL = 4, 10**8
ROWS = 10
SEQUENCES = {"w": "|w - u| / eps", "w_ag": "|w_ag - u_ag| / eps"}
LEGEND = """\
Distance between two runs, in units of their initial distance eps. A block is three steps.
AGD: measured. exact: from the formula. proven >=: the lower bound of the proof. FedAc-I: with its
hyperparameters for K and the same curvatures, which are chosen to separate AGD."""


@click.command("instability", cls=Command)
@click.option("--kappa", type=float, default=100.0, help="Condition number L/mu, at least 25.")
@click.option(
    "--blocks", type=int, default=20, help="Number of blocks of three steps, from 1 to 100."
)
@click.option(
    "--local-steps",
    "-K",
    default="4,16,64",
    help="Synchronization intervals of FedAc-I to compare, separated by commas.",
)
@click.option(
    "--out",
    type=nonempty_path,
    metavar="DIR",
    help="Folder for the figure as PNG and PDF; created if missing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *, kappa: float, blocks: int, local_steps: str, out: Path | None, as_json: bool
) -> None:
    """Show how fast two nearby runs of AGD separate, and how FedAc-I limits it."""
    intervals = whole_numbers(local_steps, option="--local-steps")
    if len(intervals) > MOST_INTERVALS or not all(1 <= K <= LONGEST_INTERVAL for K in intervals):
        raise InputError(
            f"--local-steps takes up to {MOST_INTERVALS} numbers from 1 to {LONGEST_INTERVAL}, got "
            f"{local_steps:.60}"
        )
    from mpmath import mp

    from fedac.theory.instability import construct, fedac_separation

    folder = None if out is None else output_folder(out, option="--out")
    before = time.perf_counter()
    instance = construct(kappa, blocks)
    measured = instance.separation()
    fedac_i = {K: fedac_separation(kappa, blocks, K=K) for K in intervals}
    seconds = time.perf_counter() - before
    figures = []
    if folder is not None:
        from fedac.experiments.reproduction.instability import draw
        from fedac.plotting import save_figure

        folder.mkdir(parents=True, exist_ok=True)
        figures = save_figure(draw(instance, measured, fedac_i), folder, "instability")
    answer = _answer(instance, measured, fedac_i)
    if as_json:
        answer |= {"figures": [str(path) for path in figures], "seconds": seconds}
        print(json.dumps(answer, allow_nan=False))
        return
    _print_tables(answer)
    for path in figures:
        print(f"Figure: {path}")
    print(
        f"{seconds:.2f} s at {instance.bits} bits: eps = {mp.nstr(instance.eps, 3)}; "
        f"measured and exact agree to {answer['largest_relative_error']:.0e}",
        file=sys.stderr,
    )


def _answer(
    instance: Instance,
    measured: Sequence[Separation],
    fedac_i: Mapping[int, Sequence[Separation]],
) -> dict[str, Any]:
    """Return the numbers of the tables and of the JSON output."""
    from mpmath import mp

    from fedac.theory.instability import predicted_separation, proven_bound

    rows, errors = [], []
    for k in range(1, instance.blocks + 1):
        exact = predicted_separation(instance.kappa, k)
        errors += [abs(ours / one - 1) for ours, one in zip(measured[k], exact, strict=True)]
        rows.append(
            {
                "block": k,
                "measured": measured[k]._asdict(),
                "exact": exact._asdict(),
                "bound": proven_bound(k)._asdict(),
                "fedac_i": {str(K): apart[k]._asdict() for K, apart in fedac_i.items()},
            }
        )
    return {
        "kappa": instance.kappa,
        "blocks": instance.blocks,
        "bits": instance.bits,
        # Logarithms, because the numbers themselves may be too small for a double.
        "log10_delta": float(mp.log10(instance.delta)),
        "log10_eps": float(mp.log10(instance.eps)),
        "separation": rows,
        "largest_relative_error": max(errors),
    }


def _print_tables(answer: Mapping[str, Any]) -> None:
    """Print one table for w and one for w_ag."""
    every = -(-answer["blocks"] // ROWS)
    rows = [
        row
        for row in answer["separation"]
        if row["block"] in (1, answer["blocks"]) or row["block"] % every == 0
    ]
    intervals = rows[0]["fedac_i"]
    for sequence, name in SEQUENCES.items():
        table = new_table(
            *("block", "AGD", "exact", "proven >=", *(f"FedAc-I K={K}" for K in intervals)),
            title=f"{name}, kappa={answer['kappa']:g}",
        )
        for row in rows:
            apart = (row["measured"], row["exact"], row["bound"], *row["fedac_i"].values())
            table.add_row(str(row["block"]), *(f"{abs(one[sequence]):.3g}" for one in apart))
        print_table(table)
    print(LEGEND)
