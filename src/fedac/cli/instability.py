"""`fedac instability`: two runs of AGD that start side by side separate exponentially fast."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedac.cli.parse import nonempty_path, output_folder, whole_numbers
from fedac.cli.streams import new_table, print_table
from fedac.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedac.theory.instability import Instance
    from fedac.theory.separation import Separation

# More columns do not fit on a terminal, and longer intervals are typos.
MOST_INTERVALS, LONGEST_INTERVAL = 4, 10**8
ROWS = 10
SEQUENCES = {"w": "|w - u| / eps", "w_ag": "|w_ag - u_ag| / eps"}
LEGEND = """\
The distance of two runs, in units of their distance eps at the start. One block is three steps.
AGD: measured. exact: by the formula. proven >=: the lower bound that the proof gives. FedAc-I: with
its coupling for K, under the same curvatures, which are chosen to separate AGD."""


def command(
    kappa: float = typer.Option(100.0, help="Condition number L/mu, at least 25."),
    blocks: int = typer.Option(20, help="Number of blocks of three steps, from 1 to 100."),
    local_steps: str = typer.Option(
        "4,16,64",
        "--local-steps",
        "-K",
        help="Synchronization intervals of FedAc-I to compare, separated by commas.",
    ),
    out: Path | None = typer.Option(
        None, metavar="DIR", parser=nonempty_path, help="Folder for the figure, as PNG and PDF."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Show how AGD separates two nearby runs exponentially fast, and how FedAc-I limits it."""
    intervals = _intervals(local_steps)
    from fedac.theory.instability import construct
    from fedac.theory.separation import fedac_separation

    folder = None if out is None else output_folder(out, option="--out")
    before = time.perf_counter()
    instance = construct(kappa, blocks)
    measured = instance.separation()
    fedac_i = {K: fedac_separation(kappa, blocks, K=K) for K in intervals}
    seconds = time.perf_counter() - before
    figures = [] if folder is None else _draw(folder, instance, measured, fedac_i)
    if as_json:
        print(json.dumps(_as_json(instance, measured, fedac_i, figures, seconds), allow_nan=False))
        return
    _print_tables(instance, measured, fedac_i)
    for path in figures:
        print(f"Figure: {path}")
    print(
        f"{seconds:.2f} s at {instance.bits} bits: eps = {_scientific(instance.eps_0 / 2)}; "
        f"measured and exact agree to {_error(instance, measured):.0e}",
        file=sys.stderr,
    )


def _intervals(text: str) -> list[int]:
    option = "--local-steps"
    intervals = whole_numbers(text, option=option)
    if len(intervals) > MOST_INTERVALS:
        raise InputError(f"{option} takes at most {MOST_INTERVALS} numbers, got {len(intervals)}")
    for K in intervals:
        if not 1 <= K <= LONGEST_INTERVAL:
            raise InputError(f"{option} takes numbers from 1 to {LONGEST_INTERVAL}, got {K}")
    return intervals


def _draw(
    folder: Path,
    instance: Instance,
    measured: Sequence[Separation],
    fedac_i: Mapping[int, Sequence[Separation]],
) -> list[Path]:
    from fedac.experiments.figures import save
    from fedac.experiments.instability import draw

    folder.mkdir(parents=True, exist_ok=True)
    return save(draw(instance, measured, fedac_i), folder, "instability")


def _as_json(
    instance: Instance,
    measured: Sequence[Separation],
    fedac_i: Mapping[int, Sequence[Separation]],
    figures: Sequence[Path],
    seconds: float,
) -> dict[str, Any]:
    from fedac.theory.separation import predicted_separation, proven_bound

    kappa, blocks = instance.kappa, range(1, instance.blocks + 1)
    return {
        "kappa": kappa,
        "blocks": instance.blocks,
        "bits": instance.bits,
        # Logarithms, because the numbers themselves may be too small for a double.
        "log10_delta": _log10(instance.delta),
        "log10_eps": _log10(instance.eps_0 / 2),
        "separation": [
            {
                "block": k,
                "measured": measured[k]._asdict(),
                "exact": predicted_separation(kappa, k)._asdict(),
                "bound": proven_bound(k)._asdict(),
                "fedac_i": {str(K): apart[k]._asdict() for K, apart in fedac_i.items()},
            }
            for k in blocks
        ],
        "largest_relative_error": _error(instance, measured),
        "figures": [str(path) for path in figures],
        "seconds": seconds,
    }


def _print_tables(
    instance: Instance,
    measured: Sequence[Separation],
    fedac_i: Mapping[int, Sequence[Separation]],
) -> None:
    """Print one table for w and one for w_ag."""
    from fedac.theory.separation import predicted_separation, proven_bound

    every = -(-instance.blocks // ROWS)
    rows = sorted({1, *range(every, instance.blocks + 1, every), instance.blocks})
    for sequence, name in SEQUENCES.items():
        table = new_table(
            *("block", "AGD", "exact", "proven >=", *(f"FedAc-I K={K}" for K in fedac_i)),
            title=f"{name}, kappa={instance.kappa:g}",
        )
        for k in rows:
            apart = [measured[k], predicted_separation(instance.kappa, k), proven_bound(k)]
            apart += [separations[k] for separations in fedac_i.values()]
            table.add_row(str(k), *(f"{abs(getattr(one, sequence)):.3g}" for one in apart))
        print_table(table)
    print(LEGEND)


def _error(instance: Instance, measured: Sequence[Separation]) -> float:
    """Return the largest relative difference between measurement and exact formula."""
    from fedac.theory.separation import predicted_separation

    return max(
        abs(ours / exact - 1)
        for k in range(1, len(measured))
        for ours, exact in zip(measured[k], predicted_separation(instance.kappa, k), strict=True)
    )


def _log10(number: Any) -> float:
    from mpmath import mp

    return float(mp.log10(number))


def _scientific(number: Any) -> str:
    from mpmath import mp

    return str(mp.nstr(number, 3))
