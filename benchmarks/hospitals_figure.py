# SPDX-License-Identifier: Apache-2.0
"""The hospitals of docs/your-own-data.md, and how fast five methods train on them.

Writes docs/images/hospitals.png: python benchmarks/hospitals_figure.py
Runs the Python of the page up to the comparison, so the figure shows what the page says.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedac.data import Clients

DOCS = Path(__file__).parents[1] / "docs"
PAGE, OUT = DOCS / "your-own-data.md", DOCS / "images" / "hospitals.png"


def main() -> None:
    """Follow the page, then draw its data and its comparison."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        while "found" not in names:
            exec(blocks.pop(0), names)
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    draw_clients(left, names["data"].clients)
    names["found"].plot(right, against="seconds").set(title=None, xlabel="seconds on the link")
    right.legend(*right.get_legend_handles_labels(), frameon=False, fontsize=8)
    figure.savefig(OUT, dpi=150)


def draw_clients(ax: Any, clients: Clients) -> None:
    """Draw the patients of every hospital, by outcome."""
    places, before = np.arange(len(clients)), np.zeros(len(clients))
    for (label, rows), colour in zip(
        clients.count_labels().items(), ("0.8", "#c44e52"), strict=True
    ):
        ax.barh(places, rows, left=before, color=colour, label=label)
        before += rows
    ax.set_yticks(places, clients.names)
    ax.invert_yaxis()
    ax.set_xlabel("patients")
    ax.legend(frameon=False, title="readmitted", loc="upper right")
    ax.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
