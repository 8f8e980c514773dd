# SPDX-License-Identifier: Apache-2.0
"""Rounds of the wider family, computed by hand, for every runtime.

Client A has F_A = w^2/2, client B has F_B = (w - 4)^2/2, so their gradients are w and w - 4. Both
start at 1 and take steps with eta = 1/2, two of them unless `steps` says otherwise. Then SGD takes
A from x to x/4 and B from x to 3 + x/4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ETA, START, TARGETS = 0.5, 1.0, (0.0, 4.0)


class Rounds(NamedTuple):
    """What the server holds after each round."""

    method: str
    states: tuple[dict[str, float], ...]
    steps: tuple[int, int] = (2, 2)


BY_HAND = (
    # Clients stop after their first step: A at .5, B at 2.5. z = .5 moves the mean from 1.5 to 2.
    # Then A has z_m = -.5, B 1.5. A: 2 + 0 - .5, so 1.25, where all three terms cancel. B: 2.25.
    Rounds("feddyn(1)", ({"w": 2.0, "z": 0.5}, {"w": 2.0, "z": 0.25})),
    # A: 1, .75, .5625. B: 1, 1.75, 2.3125. D = (1 - 1.4375)/(2 * .5).
    # A: .5 * 1.4375 - .5 * .4375 = .5, so 1.1875, then 1. B: 2.1875, 2.75.
    Rounds("fedcm(0.5)", ({"w": 1.4375, "D": -0.4375}, {"w": 1.875, "D": -0.4375})),
    # The server step does not change D, which is the clients' mean.
    Rounds("fedcm(0.5)+step(2)", ({"w": 1.875, "D": -0.4375},)),
    # A takes one step, to .5, B two, to 1.75 and 2.3125; 1.5 steps on average.
    Rounds("fedcm(0.5)", ({"w": 1.53125, "D": -0.53125 / 0.75},), (1, 2)),
    # First as without cv; c_A = .875, c_B = -2.625. Then corrections are -1.75 and 1.75.
    # A: 1.625, 1.765625. B: 1.75, 1.984375.
    Rounds(
        "scaffold-m(0.5)",
        ({"w": 1.4375, "D": -0.4375, "c": -0.875}, {"w": 1.875, "D": -0.4375, "c": -0.4375}),
    ),
    # A: .5. B: 3.625, so .875 a step. Twice the mean of -.5 and .875.
    # A: .6875, so -.6875. B: 3.671875, so .765625 a step.
    Rounds("fednova", ({"w": 1.375}, {"w": 1.453125}), (1, 3)),
    # As FedAvg.
    Rounds("fednova", ({"w": 1.75}, {"w": 1.9375})),
    # Moves -.75 and 2.25: mean square 2.8125, square of the mean .5625. 2.8125/3.125 is below 1.
    Rounds("fedexp(1)", ({"w": 1.75},)),
    Rounds("fedexp(0.0625)", ({"w": 2.6875},)),  # 2.25 times as far
    # Both sequences by one factor. Moves of (w, u): (-1, 1) and (3, -3), so 10 and 2.
    Rounds("momentum(0.5)+exp(0.5)", ({"w": 3.0, "u": -2.0},)),
    # As FedCM in the first round; u = .5 * mean(1, -3).
    # A: 1.203125, 1.02734375. B: 2.203125, 2.77734375. u = .5 * mean(1.4375, -2.5625) - .25.
    Rounds("mimelite(0.5)", ({"w": 1.4375, "u": -0.5}, {"w": 1.90234375, "u": -0.53125})),
    # The server rule does not move u.
    Rounds("mimelite(0.5)+step(2)", ({"w": 1.875, "u": -0.5},)),
    # h_A = (1.75 - .25)/(2 * .5) = 1.5, h_B = -1.5.
    Rounds("led", ({"w": 1.75}, {"w": 1.9375})),
    # A: g = 1 at 1, then at .5 - .25. B: g = -3 at 1, then at 2.5 - .25. z = mean(.375, 3.375).
    Rounds("dualavg(0.5)", ({"z": 1.875, "threshold": 0.5},)),
)
NOT_LINEAR = ("dualavg(0.5)",)  # for the reference and network engines


def name_of(value: Any) -> str | None:
    """Return the name of a test of some rounds."""
    if not isinstance(value, Rounds):
        return None
    return value.method + (", own steps" if value.steps != (2, 2) else "")
