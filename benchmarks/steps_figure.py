# SPDX-License-Identifier: Apache-2.0
"""What FedAc does between synchronizations: a small run, step by step, as an animated picture.

Writes docs/images/fedac-steps.svg in a second: python benchmarks/steps_figure.py

The picture has no script. It takes its text colours from the reader's colour scheme, and stands
still, with all steps of both rounds, for readers who prefer reduced motion.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedac.algorithms import FEDAC_I
from fedac.algorithms.hyperparameters import FedAcHyperparameters
from fedac.federation.federation import Federation
from fedac.federation.schedule import Schedule
from fedac.objectives import LeastSquares, optimum
from fedac.plotting import LABEL_COLOURS
from fedac.simulation.engines.reference import run_round
from fedac.simulation.problem import Lane

OUT = Path(__file__).parents[1] / "docs" / "images" / "fedac-steps.svg"
M, K, ROUNDS = 3, 5, 2
START, SEED, BATCH = (-5.0, 1.9), 5, 2
COLOURS = tuple(LABEL_COLOURS[i] for i in (0, 5, 2))  # visible on white and on black

WIDTH, HEIGHT, UNIT = 640, 430, 78  # pixels per unit of w
CENTRE = (528, 205)  # where the optimum is
LEVELS = (0.1, 0.4, 1.0, 2.0)
LINES = (HEIGHT - 42, HEIGHT - 16)  # of the words below
CROSS = "m-4-4l8 8m0-8l-8 8"

# Time passes in slots. A step has one to look at w_md and one to move, an average one to move and
# two to look at it.
SLOT = 0.7  # seconds
ROUND_SLOTS = 2 * K + 3
SLOTS = ROUND_SLOTS * ROUNDS + 2


@dataclass(frozen=True)
class Round:
    """Every worker's (w_ag, w) after 0 to K local steps, arrays of shape (M, 2), and the mean."""

    path: list[tuple[np.ndarray, ...]]
    mean: tuple[np.ndarray, ...]


def problem() -> tuple[LeastSquares, float]:
    """Return a least-squares problem in the plane, and its true strong convexity."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, 64)
    X = np.column_stack([0.8 * np.cos(angle), 1.4 * np.sin(angle)])
    y = 1.1 * rng.standard_normal(64)
    return LeastSquares(X, y), float(np.linalg.eigvalsh(X.T @ X / 64)[0])


def run(F: LeastSquares, hp: FedAcHyperparameters) -> list[Round]:
    federation = Federation(M=M, n=F.n_samples, seed=SEED, batch=BATCH)
    state, rounds = FEDAC_I.start(np.array(START)), []
    for this_round in Schedule.every(K, steps=K * ROUNDS):
        path = [tuple(np.broadcast_to(sequence, (M, 2)) for sequence in state)]
        state = run_round(
            F,
            Lane(FEDAC_I, hp),
            state,
            federation,
            this_round,
            on_step=lambda _, workers, path=path: path.append(workers),
        )
        rounds.append(Round(path, state))
    return rounds


class Drawing:
    """Shapes, and the CSS that shows and moves them in time."""

    def __init__(self, origin: np.ndarray) -> None:
        self.origin = origin
        self.shapes: list[str] = []
        self.rules: dict[str, str] = {}  # keyframes by the class that plays them

    def at(self, point: np.ndarray) -> str:
        """Return the place of a point, in pixels."""
        x, y = (np.asarray(point) - self.origin) * (UNIT, -UNIT) + CENTRE
        return f"{x:.1f} {y:.1f}"

    def add(self, shape: str) -> None:
        self.shapes.append(shape)

    def shown(self, *windows: tuple[float, float]) -> str:
        """Return a class whose shapes are seen only in these slots, from first to last."""
        stops = [f"{percent(begin)}{{opacity:1}}{percent(end)}{{opacity:0}}"
                 for begin, end in windows]  # fmt: skip
        return self._rule("s", "0%{opacity:0}" + "".join(stops))

    def moving(self, places: Iterable[tuple[float, np.ndarray]]) -> str:
        """Return a class whose shapes are at these points at these times."""
        stops = [
            f"{percent(slot)}{{transform:translate({self.at(point).replace(' ', 'px,')}px)}}"
            for slot, point in places
        ]
        return self._rule("m", "".join(stops))

    def _rule(self, kind: str, keyframes: str) -> str:
        names = {rule: name for name, rule in self.rules.items()}
        name = names.get(keyframes, f"{kind}{len(self.rules)}")
        self.rules[name] = keyframes
        return f"{kind} {name}"


def percent(slot: float) -> str:
    return f"{100 * slot / SLOTS:.4g}%"


def draw_ground(drawing: Drawing, F: LeastSquares) -> None:
    """Draw contours of F, and its minimum."""
    values, axes = np.linalg.eigh(F.X.T @ F.X / F.n_samples)
    tilt = -np.degrees(np.arctan2(axes[1, 0], axes[0, 0]))
    x, y = CENTRE
    for level in LEVELS:
        a, b = np.sqrt(2 * level / values) * UNIT
        drawing.add(
            f'<ellipse class="contour" rx="{a:.1f}" ry="{b:.1f}" '
            f'transform="translate({x} {y}) rotate({tilt:.1f})"/>'
        )
    drawing.add(f'<path class="ink" d="M{x - 7} {y}h14M{x} {y - 7}v14"/>')
    drawing.add(f'<text x="{x + 11}" y="{y + 6}">optimum</text>')


def draw_steps(drawing: Drawing, rounds: list[Round], hp: FedAcHyperparameters) -> None:
    """Draw where every worker was: trails of w_ag and w, and the query points."""
    for r, this in enumerate(rounds):
        for k in range(K):
            begin = r * ROUND_SLOTS + 2 * k
            left = drawing.shown((begin + 2, SLOTS))
            looked = drawing.shown((begin, begin + 2))
            stays = drawing.shown((begin, SLOTS))
            here, there = this.path[k], this.path[k + 1]
            w_md = FEDAC_I.query(here, hp)
            for m, colour in enumerate(COLOURS):
                (ag, w), (next_ag, next_w) = ((s[m] for s in states) for states in (here, there))
                at = drawing.at
                drawing.add(f'<g stroke="{colour}">')
                drawing.add(f'<path class="link {looked}" d="M{at(ag)}L{at(w)}"/>')
                drawing.add(f'<path class="{left}" d="M{at(w)}L{at(next_w)}"/>')
                drawing.add(f'<path class="bold {left}" d="M{at(ag)}L{at(next_ag)}"/>')
                drawing.add(f'<path class="{stays}" d="M{at(w_md[m])}{CROSS}"/></g>')


def draw_workers(drawing: Drawing, rounds: list[Round]) -> None:
    """Draw where every worker is: a disc for w_ag, a ring for w."""
    for m, colour in enumerate(COLOURS):
        for s, look in enumerate(("disc", "ring")):
            places = [(0.0, rounds[0].path[0][s][m])]
            for r, this in enumerate(rounds):
                begin = r * ROUND_SLOTS
                for k in range(K):
                    places.append((begin + 2 * k + 1, this.path[k][s][m]))
                    places.append((begin + 2 * k + 2, this.path[k + 1][s][m]))
                places.append((begin + 2 * K + 1, this.mean[s]))
            places.append((SLOTS, rounds[-1].mean[s]))
            at_end = drawing.at(rounds[-1].mean[s])
            drawing.add(
                f'<circle class="{look} {drawing.moving(places)}" r="6.5" '
                f'style="--hue:{colour}" transform="translate({at_end})"/>'
            )
    for r, this in enumerate(rounds):
        known = drawing.shown((r * ROUND_SLOTS + 2 * K + 1, SLOTS))
        for mean, look in zip(this.mean, ("disc", "ring"), strict=True):
            x, y = drawing.at(mean).split()
            drawing.add(f'<circle class="mean {look} {known}" cx="{x}" cy="{y}" r="9"/>')


def sub(name: str) -> str:
    """Return w with an index, as text of SVG."""
    back = '<tspan dy="-4">\u200b</tspan>'  # a space of no width carries the way up again
    return f'<tspan class="w">w</tspan><tspan dy="4" class="index">{name}</tspan>{back}'


def draw_words(drawing: Drawing) -> None:
    """Draw the legend, and what happens at the moment."""
    w, w_ag, w_md = '<tspan class="w">w</tspan>', sub("ag"), sub("md")
    x = 16
    for m, colour in enumerate(COLOURS):
        drawing.add(f'<path class="bold" stroke="{colour}" d="M{x} 22h22"/>')
        drawing.add(f'<text x="{x + 28}" y="29">worker {m + 1}</text>')
        x += 142
    y = LINES[0]
    for x, words in ((424, w_ag), (500, w), (562, w_md)):
        drawing.add(f'<text x="{x + 13}" y="{y}">{words}</text>')
    drawing.add(f'<circle class="disc" cx="424" cy="{y - 6}" r="6.5"/>')
    drawing.add(f'<circle class="ring" cx="500" cy="{y - 6}" r="6.5"/>')
    drawing.add(f'<path class="ink" d="M562 {y - 6}{CROSS}"/>')

    starts = [r * ROUND_SLOTS for r in range(ROUNDS)]
    for r, begin in enumerate(starts):
        for k in range(K):
            window = (begin + 2 * k, begin + 2 * k + 2)
            say(drawing, 0, f"Round {r + 1}, step {k + 1} of {K}", window)
        end = SLOTS if r + 1 == ROUNDS else begin + ROUND_SLOTS
        say(drawing, 0, f"Round {r + 1}, communication", (begin + 2 * K, end))
    looks = [(begin + 2 * k, begin + 2 * k + 1) for begin in starts for k in range(K)]
    say(drawing, 1, f"Gradients are taken at {w_md}, between {w_ag} and {w}.", *looks)
    moves = [(begin + 1, end + 1) for begin, end in looks]
    say(drawing, 1, f"{w_ag} becomes {w_md} plus a short step; {w} takes a long step.", *moves)
    averages = [(b + 2 * K, b + ROUND_SLOTS) for b in starts]
    averages[-1] = (averages[-1][0], SLOTS)
    say(drawing, 1, f"All {w} become their average, and so do all {w_ag}.", *averages)
    for line, words in enumerate((
        f"{ROUNDS} rounds of {K} steps,",
        f"each ended by the average of all {w}, and of all {w_ag}.",
    )):  # fmt: skip
        drawing.add(f'<text class="still" x="16" y="{LINES[line]}">{words}</text>')


def say(drawing: Drawing, line: int, words: str, *windows: tuple[float, float]) -> None:
    look = "live strong" if line == 0 else "live"
    shown = drawing.shown(*windows)
    drawing.add(f'<text class="{look} {shown}" x="16" y="{LINES[line]}">{words}</text>')


STYLE = """
svg{--ink:#1f2328;--faint:#c9ced4;--page:#fff}
@media (prefers-color-scheme:dark){svg{--ink:#e6e9ee;--faint:#4a515c;--page:#1e2129}}
text{font:20px system-ui,sans-serif;fill:var(--ink)}
.w{font-style:italic}.index{font-size:14px}.strong{font-weight:600}
path{fill:none;stroke-width:1.5;stroke-linecap:round}
.ink{stroke:var(--ink)}.bold{stroke-width:3}.link{stroke-dasharray:3 4}
.contour{fill:none;stroke:var(--faint)}
.disc{fill:var(--hue,var(--ink));stroke:var(--page)}
.ring{fill:var(--page);stroke:var(--hue,var(--ink));stroke-width:2.5}
.live,.link{display:none}
@media (prefers-reduced-motion:no-preference){
.live,.link{display:inline}.still{display:none}
"""
TITLE = "What FedAc does between synchronizations"
DESCRIPTION = (
    f"{M} workers minimize a function of two variables with FedAc-I. Each takes {K} steps on its "
    "own. In a step it takes a gradient at w_md, a point between w_ag and w and close to w_ag. "
    "Then w_ag becomes w_md plus a short step, and w takes a long step. So w runs ahead, and the "
    "workers drift apart. Then they communicate: all w become their average, and so do all w_ag. "
    "A second round starts from the two averages and ends closer to the optimum."
)


def picture() -> str:
    """Return the picture as SVG."""
    F, mu = problem()
    hp = FEDAC_I.couple(eta=0.2 / F.smoothness, mu=mu, K=K)
    rounds = run(F, hp)
    drawing = Drawing(optimum(F).w)
    draw_ground(drawing, F)
    draw_steps(drawing, rounds, hp)
    draw_workers(drawing, rounds)
    draw_words(drawing)
    time = f"{SLOT * SLOTS:g}s infinite"
    play = f".s{{animation:{time} step-end}}.m{{animation:{time} ease-in-out}}"
    plays = "".join(f".{name}{{animation-name:{name}}}" for name in drawing.rules)
    frames = "\n".join(f"@keyframes {name}{{{rule}}}" for name, rule in drawing.rules.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="t d">\n'
        f'<title id="t">{TITLE}</title>\n<desc id="d">{DESCRIPTION}</desc>\n'
        f"<style>{STYLE}{play}\n{plays}\n}}\n{frames}\n</style>\n"
        + "\n".join(drawing.shapes)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    OUT.write_text(picture(), encoding="utf-8")
    print(OUT)
