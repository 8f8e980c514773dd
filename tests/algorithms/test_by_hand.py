# SPDX-License-Identifier: Apache-2.0
"""One step and one round of every algorithm, computed by hand.

The data set has two rows, both x = 1, with targets 0 and 4: the gradient at w is w for
row 0 and w - 4 for row 1. In the round worker 0 draws row 0, then row 1; worker 1 draws
row 1 twice.
"""

import numpy as np
import pytest

from fedac.algorithms import ALGORITHMS, Algorithm, fedac, get
from fedac.federation import federation
from fedac.federation.schedule import Span
from fedac.objectives import LeastSquares
from fedac.simulation.engines import reference
from fedac.simulation.problem import Lane

GENERAL = fedac(gamma=1 / 4, alpha=2, beta=4)
DRAWS = {0: [0, 1], 1: [1, 1]}  # step -> row of each worker

# algorithm, eta, mu, K, state, w_md, g, next state
STEPS = {
    # gamma = max(sqrt((1/4)/(1/2 * 2)), 1/4) = 1/2, alpha = 4, beta = 5
    # w_md = 4/5 + 4/5 * 8 = 36/5; v_ag = 36/5 - 9/5 = 27/5
    # v = 3/4 * 4 + 1/4 * 36/5 - 1/2 * 36/5 = 3 + 9/5 - 18/5 = 6/5
    "fedac-i": ("fedac-i", 1 / 4, 1 / 2, 2, (8, 4), 36 / 5, 36 / 5, (27 / 5, 6 / 5)),
    # gamma = max(sqrt((3/5)/2), 3/5) = 3/5, alpha = 5/2 - 1/2 = 2, beta = 7/1
    # w_md = 1/7 + 6/7 * 8 = 7; v_ag = 7 - 21/5 = 14/5; v = 1/2 + 7/2 - 21/5 = -1/5
    "fedac-ii": ("fedac-ii", 3 / 5, 1, 2, (8, 1), 7, 7, (14 / 5, -1 / 5)),
    # gamma = sqrt((1/2)/(1/2)) = 1, alpha = 2, beta = 3
    # w_md = 4/3 + 2/3 * 8 = 20/3; v_ag = 20/3 - 10/3; v = 2 + 10/3 - 20/3 = -4/3
    "fedac-vanilla": (
        "fedac-vanilla", 1 / 2, 1 / 2, 2, (8, 4), 20 / 3, 20 / 3, (10 / 3, -4 / 3),
    ),
    # v = 8 - 4
    "fedavg": ("fedavg", 1 / 2, 1, 2, (8,), 8, 8, (4,)),
    # rho = 1 - 1/4 = 3/4; p = 3/4 * 4 + 8 = 11
    "fedavg-weighted": ("fedavg-weighted", 1 / 2, 1, 2, (8, 4), 8, 8, (4, 11)),
    "mb-sgd": ("mb-sgd", 1 / 2, 1, 2, (8,), 8, 5, (11 / 2,)),
    # as vanilla; v_ag = 20/3 - 1 = 17/3; v = 2 + 10/3 - 2 = 10/3
    "mb-ac-sgd": ("mb-ac-sgd", 1 / 2, 1 / 2, 2, (8, 4), 20 / 3, 2, (17 / 3, 10 / 3)),
    # w_md = 1 + 6 = 7; v_ag = 7 - 7/2 = 7/2; v = 2 + 7/2 - 7/4 = 15/4
    "general": (GENERAL, 1 / 2, 1, 2, (8, 4), 7, 7, (7 / 2, 15 / 4)),
}  # fmt: skip

# algorithm, eta, mu, state, averaged state after the round of K = 2, output after it
ROUNDS = {
    # worker 0: (27/5, 6/5); w_md = 6/25 + 108/25 = 114/25, g = 14/25,
    #           v_ag = 228/50 - 7/50 = 221/50, v = 9/10 + 57/50 - 14/50 = 88/50
    # worker 1: g = 16/5, (32/5, 16/5); w_md = 16/25 + 128/25 = 144/25, g = 44/25,
    #           v_ag = 144/25 - 11/25 = 266/50, v = 12/5 + 36/25 - 22/25 = 148/50
    "fedac-i": ("fedac-i", 1 / 4, 1 / 2, (8, 4), (487 / 100, 236 / 100), 487 / 100),
    # worker 0: (14/5, -1/5); w_md = 14/5 - 3/7 = 83/35, g = -57/35,
    #           v_ag = 83/35 + 171/175 = 586/175, v = -1/10 + 83/70 + 171/175 = 361/175
    # worker 1: g = 3, (26/5, 11/5); w_md = 26/5 - 3/7 = 167/35, g = 27/35,
    #           v_ag = 167/35 - 81/175 = 754/175, v = 11/10 + 167/70 - 81/175 = 529/175
    "fedac-ii": ("fedac-ii", 3 / 5, 1, (8, 1), (134 / 35, 89 / 35), 134 / 35),
    # worker 0: (10/3, -4/3); w_md = -4/9 + 20/9 = 16/9, g = -20/9,
    #           v_ag = 16/9 + 10/9 = 26/9, v = -2/3 + 8/9 + 20/9 = 22/9
    # worker 1: g = 8/3, (16/3, 8/3); w_md = 8/9 + 32/9 = 40/9, g = 4/9,
    #           v_ag = 40/9 - 2/9 = 38/9, v = 4/3 + 20/9 - 4/9 = 28/9
    "fedac-vanilla": ("fedac-vanilla", 1 / 2, 1 / 2, (8, 4), (32 / 9, 25 / 9), 32 / 9),
    # worker 0: 8 - 4 = 4, 4 - 0 = 4; worker 1: 8 - 2 = 6, 6 - 1 = 5
    "fedavg": ("fedavg", 1 / 2, 1, (8,), (9 / 2,), 9 / 2),
    # p of worker 0: 8, then 3/4 * 8 + 4 = 10; of worker 1: 8, then 6 + 6 = 12
    # output 11 / (1 + 3/4) = 44/7
    "fedavg-weighted": ("fedavg-weighted", 1 / 2, 1, (8, 0), (9 / 2, 11), 44 / 7),
    # mean gradient at 8: (8 + 4 + 4 + 4) / 4 = 5
    "mb-sgd": ("mb-sgd", 1 / 2, 1, (8,), (11 / 2,), 11 / 2),
    # w_md = 20/3, mean gradient 20/3 - 3 = 11/3
    # v_ag = 20/3 - 11/6 = 29/6; v = 2 + 10/3 - 11/3 = 5/3
    "mb-ac-sgd": ("mb-ac-sgd", 1 / 2, 1 / 2, (8, 4), (29 / 6, 5 / 3), 29 / 6),
    # worker 0: (7/2, 15/4); w_md = 15/16 + 42/16 = 57/16, g = -7/16,
    #           v_ag = 114/32 + 7/32 = 121/32, v = 15/8 + 57/32 + 7/64 = 241/64
    # worker 1: g = 3, (11/2, 19/4); w_md = 19/16 + 66/16 = 85/16, g = 21/16,
    #           v_ag = 170/32 - 21/32 = 149/32, v = 19/8 + 85/32 - 21/64 = 301/64
    "general": (GENERAL, 1 / 2, 1, (8, 4), (135 / 32, 271 / 64), 135 / 32),
}


def test_every_algorithm_has_its_numbers() -> None:
    assert set(STEPS) == set(ROUNDS) == {*ALGORITHMS, "general"}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_one_step(case: tuple) -> None:
    algorithm, eta, mu, K, state, w_md, g, after = case
    algorithm = get(algorithm)
    hp = algorithm.couple(eta=eta, mu=mu, K=K)
    assert algorithm.query(state, hp) == pytest.approx(w_md, rel=1e-14)
    assert algorithm.update(state, w_md, g, hp) == pytest.approx(after, rel=1e-14)


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_one_step_on_arrays_is_one_step_on_floats(case: tuple) -> None:
    algorithm, eta, mu, K, state, w_md, g, after = case
    algorithm = get(algorithm)
    hp = algorithm.couple(eta=eta, mu=mu, K=K)
    stretch = np.array([1.0, 2.0, -3.0])  # the updates are linear
    arrays = tuple(s * stretch for s in state)
    assert algorithm.query(arrays, hp) == pytest.approx(w_md * stretch, rel=1e-14)
    new = algorithm.update(arrays, w_md * stretch, g * stretch, hp)
    for got, number in zip(new, after, strict=True):
        assert got == pytest.approx(number * stretch, rel=1e-14)


@pytest.mark.parametrize("case", ROUNDS.values(), ids=ROUNDS)
def test_round_of_two_workers(case: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, eta, mu, state, after, output = case
    monkeypatch.setattr(
        federation, "sample_batch", lambda seed, m, t, n, batch: np.array(DRAWS[t])[m][:, None]
    )
    objective = LeastSquares([[1.0], [1.0]], [0.0, 4.0])
    algorithm = get(algorithm)
    lane = Lane(algorithm, algorithm.couple(eta=eta, mu=mu, K=2))
    start = tuple(np.array([float(s)]) for s in state)
    both = federation.Federation(M=2, n=2, seed=0)
    averaged = reference.run_round(objective, lane, start, both, Span(0, t=0, gap=2))
    assert [float(s[0]) for s in averaged] == pytest.approx(list(after), rel=1e-14)
    assert float(lane.output(averaged, 2)[0]) == pytest.approx(output, rel=1e-14)


def test_start_puts_all_sequences_at_w_0_and_the_sum_at_zero() -> None:
    w_0 = np.array([1.0, -2.0])
    for name, algorithm in ALGORITHMS.items():
        state = algorithm.start(w_0)
        assert len(state) == len(algorithm.sequences)
        for sequence, value in zip(algorithm.sequences, state, strict=True):
            expected = [0.0, 0.0] if sequence == "p" else [1.0, -2.0]
            assert value.tolist() == expected, name


def test_output_before_any_step_is_w_0() -> None:
    for algorithm in ALGORITHMS.values():
        hp = algorithm.couple(eta=0.5, mu=0.5, K=2)
        assert algorithm.output(algorithm.start(3.0), hp, 0) == 3.0


def test_general_fedac_is_an_algorithm_with_a_name_of_its_own() -> None:
    mine = fedac(gamma=1.0, alpha=2.0, beta=3.0, name="mine")
    assert isinstance(mine, Algorithm)
    assert mine.name == "mine"
    assert mine.couple(eta=0.5, mu=9.0, K=7) == mine.couple(eta=0.5, mu=1.0, K=1)
