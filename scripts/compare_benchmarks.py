# SPDX-License-Identifier: Apache-2.0
"""Compare two outputs of `benchmarks/bench.py --json`, line by line, as a Markdown table.

    python scripts/compare_benchmarks.py stored.json measured.json

Ends with 1 if a ratio became worse by more than a third: less is noise on a shared machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WORSE = 4 / 3


def read(path: str) -> dict[str, dict[str, Any]]:
    """Return the lines of a benchmark by their names."""
    lines = json.loads(Path(path).read_text(encoding="utf-8"))["lines"]
    return {line["what"]: line for line in lines}


def slowdown(before: dict[str, Any], now: dict[str, Any]) -> float:
    """Return how many times worse a line is; some ratios should be small, some large."""
    factor: float = now["ratio"] / before["ratio"]
    return factor if now["at_most"] else 1 / factor


def main(stored: str, measured: str) -> int:
    """Print the table; return the exit code."""
    before, now = read(stored), read(measured)
    print("| what | stored | measured | times worse |\n|---|--:|--:|--:|")
    worst = 0.0
    for what in (what for what in before if what in now):
        times = slowdown(before[what], now[what])
        worst = max(worst, times)
        cells = f"{before[what]['ratio']:.3g} | {now[what]['ratio']:.3g} | {times:.2f}"
        print(f"| {what} | {cells}{' **worse**' if times > WORSE else ''} |")
    for name, lines in (
        ("stored", before.keys() - now.keys()),
        ("new", now.keys() - before.keys()),
    ):
        print("".join(f"\nOnly {name}: {what}" for what in sorted(lines)))
    return int(worst > WORSE)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
