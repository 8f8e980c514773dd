# SPDX-License-Identifier: Apache-2.0
"""Two rounds of every piece, with numbers computed by hand.

Two clients with one row each: F_A = w^2/2 and F_B = (w - 4)^2/2, so their gradients are w and
w - 4. Unless a test says otherwise both start at 1 and take two steps with eta = 1/2. Then SGD
takes A from x to x/4 and B from x to 3 + x/4.
"""

from __future__ import annotations

from typing import Any

import pytest
import two_clients

from fedac import Network
from fedac.algorithms import Algorithm, RoundInfo, compose, fedac, get
from fedac.objectives import LeastSquares
from fedac.simulation import Schedule, simulate

F = LeastSquares([[1.0], [1.0]], [0.0, 4.0])


def after(method: str | Algorithm, *, rounds: int = 2, K: int = 2, **more) -> dict[str, float]:
    """Return all that the server holds after some rounds, and the output."""
    run = simulate(
        F, method, clients=[0, 1], batch="full", K=K, T=rounds * K, eta=0.5, mu=1.0, start=[1.0],
        engine="reference", **more,
    ).best  # fmt: skip
    return {name: vector.item() for name, vector in run.state.items()} | {"output": run.w.item()}


def test_the_mean() -> None:
    assert after("fedavg", rounds=1) == {"w": 1.75, "output": 1.75}
    assert after("fedavg") == {"w": 1.9375, "output": 1.9375}


def test_momentum_on_the_clients() -> None:
    # A: (w, u) = (1, 0), (.5, 1), (0, 1); B: (1, 0), (2.5, -3), (4, -3); means (2, -1).
    # A: (2, -1), (1.25, 1.5), (.25, 2); B: (2, -1), (3.25, -2.5), (4.25, -2).
    assert after("momentum(0.5)") == {"w": 2.25, "u": 0.0, "output": 2.25}


def test_prox() -> None:
    # The spring stops both clients after their first step: A at .5, B at 2.5; then .75 and 2.75.
    assert after("prox(1)", rounds=1) == {"w": 1.5, "output": 1.5}
    assert after("prox(1)") == {"w": 1.75, "output": 1.75}


def test_gpa() -> None:
    # A: g = 1, .625; B: g = -3, -1.875.
    assert after("gpa(0.5, 0.5)", rounds=1) == {"x": 1.53125, "z": 1.8125, "output": 1.53125}


def test_momentum_at_home() -> None:
    # One step: A (w_ag, w) = (.5, 0), B (2.5, 4). Then A enters with w = 1.5 - .5, B with 3.
    method = compose(fedac(gamma=1.0, alpha=2.0, beta=2.0), "local")
    assert after(method, rounds=1, K=1) == {"w_ag": 1.5, "output": 1.5}
    # A: w_md = 1.25, w_ag = .625; B: w_md = 2.25, w_ag = 3.125.
    assert after(method, K=1) == {"w_ag": 1.875, "output": 1.875}


def test_the_velocity_at_home() -> None:
    # First as above: A keeps u = 1, B keeps -3. From w = 2,
    # A: u = 2.5, w = .75; u = 2, w = -.25. B: u = -3.5, w = 3.75; u = -2, w = 4.75.
    assert after("momentum(0.5)+local") == {"w": 2.25, "output": 2.25}


def test_the_velocity_reset() -> None:
    # First as above; then both begin with u = 0. From w = 2,
    # A: u = 2, w = 1; u = 2, w = 0. B: u = -2, w = 3; u = -2, w = 4.
    assert after("momentum(0.5)+reset", rounds=1) == {"w": 2.0, "output": 2.0}
    assert after("momentum(0.5)+reset") == {"w": 2.0, "output": 2.0}


def test_the_moments_of_adamw() -> None:
    # One step from 1. A: g = 1, m = .5, v = .5, without bias 1 and 1: w = 1 - .5 * 1/2 = .75.
    # B: g = -3, m = -1.5, v = 4.5, without bias -3 and 9: w = 1 + .5 * 3/4 = 1.375.
    method = "adamw(0.5, 0.5, 1, 0)"
    first = {"w": 1.0625, "output": 1.0625}
    assert after(method, rounds=1, K=1) == first
    assert after(f"{method}+reset", rounds=1, K=1) == first
    assert after(f"{method}+average", rounds=1, K=1) == first | {"m": -0.5, "v": 2.5}
    # Again from 1.0625: A has g = x, B has g = x - 4.
    x = 1.0625

    def step(g: float, m: float, v: float, unbiased: float) -> float:
        m, v = m / 2 + g / 2, v / 2 + g * g / 2
        return x - 0.5 * (m / unbiased) / ((v / unbiased) ** 0.5 + 1)

    kept = (step(x, 0.5, 0.5, 0.75) + step(x - 4, -1.5, 4.5, 0.75)) / 2
    averaged = (step(x, -0.5, 2.5, 0.75) + step(x - 4, -0.5, 2.5, 0.75)) / 2
    fresh = (step(x, 0, 0, 0.5) + step(x - 4, 0, 0, 0.5)) / 2
    assert after(method, K=1)["w"] == pytest.approx(kept, rel=1e-14)
    assert after(f"{method}+average", K=1)["w"] == pytest.approx(averaged, rel=1e-14)
    assert after(f"{method}+reset", K=1)["w"] == pytest.approx(fresh, rel=1e-14)


def test_control_variates() -> None:
    # A: g = 1, .5, so c_A = .75; B: g = -3, -1.5, so c_B = -2.25.
    assert after("scaffold", rounds=1) == {"w": 1.75, "c": -0.75, "output": 1.75}
    # Corrections: -1.5, 1.5. A: g = 1.75, 1.625, w = 1.5625; B: g = -2.25, -1.875, w = 2.3125.
    assert after("scaffold") == {"w": 1.9375, "c": -0.1875, "output": 1.9375}


def test_control_variates_of_those_who_take_part() -> None:
    # Only one of the two takes part: the server's c moves by half of what the client's moved.
    held = after("scaffold", rounds=1, participation=1, weighting="uniform")
    both = after("scaffold", rounds=1, participation=0.5, weighting="uniform")
    assert held["c"] == -0.75
    assert (both["w"], both["c"]) in [(0.25, 0.375), (3.25, -1.125)]


def test_scaffnew() -> None:
    # h_A = (1.75 - .25)/(2 * .5) = 1.5, h_B = -1.5: here the corrections of SCAFFOLD.
    assert after("scaffnew", rounds=1) == {"w": 1.75, "output": 1.75}
    assert after("scaffnew") == {"w": 1.9375, "output": 1.9375}


# In the first round delta = 1 - 1.75 = -.75; from x it is .75 x - 1.5.
@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        ("step(2)", {"w": 2.5}, {"w": 1.75}),
        ("momentum(1, 0.5)", {"w": 1.75, "w_u": -0.75}, {"w": 2.3125, "w_u": -0.5625}),
        ("nesterov(1, 0.5)", {"w": 2.125, "w_u": -0.75}, {"w": 2.171875, "w_u": -0.28125}),
        # In units of eta the momentum is twice as large.
        ("slowmo(2, 0.5)", {"w": 2.5, "w_u": -1.5}, {"w": 2.5, "w_u": 0.0}),
        # tau = 2/3, then 1/2; the output is u.
        (
            "accelerated(1)",
            {"w": 1.5, "w_u": 1.75, "w_z": 1.375, "output": 1.75},
            {"w": 1.8125, "w_u": 1.875, "w_z": 1.75, "output": 1.875},
        ),
    ],
)
def test_server_rules(rule: str, first: dict[str, float], second: dict[str, float]) -> None:
    for rounds, expected in ((1, first), (2, second)):
        expected = {"output": expected["w"]} | expected
        assert after(f"fedavg+{rule}", rounds=rounds) == pytest.approx(expected, rel=1e-15)


# With b1 = 1/2 and tau = 1: m = .375, v starts at 1 and delta^2 = .5625.
@pytest.mark.parametrize(
    ("rule", "v"),
    [
        ("adam(2, 0.5, 0.75, 1)", 0.75 * 1 + 0.25 * 0.5625),
        ("yogi(2, 0.5, 0.75, 1)", 1 - 0.25 * 0.5625),  # v is above delta^2
        ("adagrad(2, 0.5, 1)", 1 + 0.5625),  # 1.5625, whose root is 1.25
    ],
)
def test_adaptive_server_rules(rule: str, v: float) -> None:
    x = 1 + 2 * 0.375 / (v**0.5 + 1)
    expected = {"w": x, "w_m": 0.375, "w_v": v, "output": x}
    assert after(f"fedavg+{rule}", rounds=1) == pytest.approx(expected, rel=1e-15)
    # Second round: delta = .75 x - 1.5.
    delta = 0.75 * x - 1.5
    m = 0.5 * 0.375 - 0.5 * delta
    squares = {"adam": 0.75 * v + 0.25 * delta**2, "yogi": v - 0.25 * delta**2}
    v = squares.get(rule.split("(")[0], v + delta**2)
    x = x + 2 * m / (v**0.5 + 1)
    expected = {"w": x, "w_m": m, "w_v": v, "output": x}
    assert after(f"fedavg+{rule}") == pytest.approx(expected, rel=1e-15)


def test_adagrad_has_no_momentum_by_default() -> None:
    # Reddi et al. set b1 = 0 for FedAdagrad. v starts at tau^2 = 1e-6.
    rule = get("fedadagrad")
    first = 1 - 0.1 * 3 / (9.000001**0.5 + 0.001)  # the clients move by -3, then by +4
    second = first + 0.1 * 4 / (25.000001**0.5 + 0.001)
    (x,), server = rule.serve((-2.0,), (1.0,), rule.start(1.0)[1:], None, RoundInfo())
    assert x == pytest.approx(first, rel=1e-14)
    (x,), server = rule.serve((x + 4,), (x,), server, None, RoundInfo(number=1))
    assert x == pytest.approx(second, rel=1e-14)
    # Where the clients stay, so does the server; momentum would carry it on.
    assert rule.serve((x,), (x,), server, None, RoundInfo(number=2))[0] == (x,)


def test_yogi_below_and_at_the_square() -> None:
    rule = get("fedavg+yogi(1, 0.5, 0.75, 1)")
    # delta = x - mean = 2, so its square is 4: above v = 3, v grows; at v = 4 it stays.
    assert rule.serve((1.0,), (3.0,), (0.0, 3.0), None, RoundInfo())[1] == (-1.0, 4.0)
    assert rule.serve((1.0,), (3.0,), (0.0, 4.0), None, RoundInfo())[1] == (-1.0, 4.0)


def test_every_travelling_sequence_has_a_momentum_of_its_own() -> None:
    # One step of FedAc: means w_ag = 1.5, w = 2, so delta = -.5, -1; it goes 1.5 times as far.
    method = compose(fedac(gamma=1.0, alpha=2.0, beta=2.0), "nesterov(1, 0.5)")
    expected = {"w_ag": 1.75, "w": 2.5, "w_ag_u": -0.5, "w_u": -1.0, "output": 1.75}
    assert after(method, rounds=1, K=1) == expected


def test_the_server_rule_leaves_control_variates_alone() -> None:
    expected = {"w": 2.125, "c": -0.75, "w_u": -0.75, "output": 2.125}
    assert after("scaffold+nesterov(1, 0.5)", rounds=1) == expected


def test_rounds_of_different_lengths() -> None:
    # One step, A: g = 1, B: g = -3, so w = 1.5, c = -1 and the corrections are -2 and 2.
    run = simulate(
        F, "scaffold", clients=[0, 1], batch="full", K=Schedule.at([1, 3]), eta=0.5, mu=1.0,
        start=[1.0], engine="reference",
    ).best  # fmt: skip
    # Two steps, A: g = 1.5, 1.75; B: g = -2.5, -2.25; both end at 1.875.
    assert (run.w.item(), run.state["c"].item()) == (1.875, (1.625 - 2.375) / 2)


@pytest.mark.parametrize("engine", ["reference", "fast", "network"])
@pytest.mark.parametrize("by_hand", two_clients.BY_HAND, ids=two_clients.name_of)
def test_the_wider_family(by_hand: two_clients.Rounds, engine: str) -> None:
    problem: Any = F
    if engine == "network":
        problem = half_squares()
    elif engine == "fast" and by_hand.method in two_clients.NOT_LINEAR:
        pytest.skip("not linear")
    for rounds, expected in enumerate(by_hand.states, start=1):
        run = simulate(
            problem, by_hand.method, clients=[0, 1], batch="full", K=list(by_hand.steps),
            rounds=rounds, eta=two_clients.ETA, mu=1.0, engine=engine, precision="float64",
            start=None if engine == "network" else [two_clients.START],
        ).best  # fmt: skip
        found = {name: vector.item() for name, vector in run.state.items()}
        assert found == pytest.approx(expected, rel=1e-14)
        assert run.w.item() == found.get("w", 1.375)  # dualavg outputs the sparse point


def half_squares() -> Any:
    """Return both clients' rows for the network engine."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(module.weight, two_clients.START)
    y = torch.tensor(two_clients.TARGETS, dtype=torch.float64)[:, None]
    return Network(module, torch.ones_like(y), y, loss=lambda w, y: ((w - y) ** 2).mean() / 2)
