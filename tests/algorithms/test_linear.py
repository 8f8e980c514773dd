"""The coefficients of a step say what the algorithm's own functions say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedac.algorithms import ALGORITHMS, FEDAC_I, FEDAVG, fedac
from fedac.algorithms.hyperparameters import FedAcHyperparameters
from fedac.algorithms.linear import linear_form
from fedac.errors import InputError

LOCAL = [algorithm for algorithm in ALGORITHMS.values() if not algorithm.minibatch]
numbers = st.floats(-1e6, 1e6)


@pytest.mark.parametrize("algorithm", LOCAL, ids=lambda algorithm: algorithm.name)
@given(
    values=st.lists(numbers, min_size=4, max_size=4),
    eta=st.floats(1e-4, 0.9),
    mu=st.floats(1e-4, 1.0),
    K=st.integers(1, 64),
)
def test_combinations_equal_the_step(algorithm, values, eta, mu, K) -> None:
    hp = algorithm.couple(eta=eta, mu=mu, K=K)
    form = linear_form(algorithm, hp)
    S = len(algorithm.sequences)
    state, (w_md, g) = tuple(values[:S]), values[2:]
    size = 1e6 * max(1.0, *np.abs(form.update).flat)
    assert np.dot(form.query, state) == pytest.approx(algorithm.query(state, hp), abs=1e-12 * size)
    after = np.array(form.update) @ [*state, w_md, g]
    assert after == pytest.approx(algorithm.update(state, w_md, g, hp), abs=1e-12 * size)


def test_sequences_may_depend_on_each_other() -> None:
    crossed = replace(FEDAC_I, update=lambda state, w_md, g, hp: (state[1] - g, state[0] + w_md))
    hp = FEDAC_I.couple(eta=0.5, mu=0.5, K=4)
    assert linear_form(crossed, hp).update == ((0, 1, 0, -1), (1, 0, 1, 0))


def clipped(state, w_md, g, hp):
    return (w_md - hp.eta * np.clip(g, -100.0, 100.0),)


def shifted(state, w_md, g, hp):
    return (w_md - hp.eta * g + 1,)


def too_many(state, w_md, g, hp):
    return state[0] - g, g


def failing(state, w_md, g, hp):
    raise KeyError("gradient")


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (clipped, "'mine' is not linear in its state and gradient"),
        (shifted, "'mine' is not linear in its state and gradient"),
        (too_many, "'mine': update must return a tuple of 1"),
        (failing, "'mine': update.* fails.*KeyError: 'gradient'"),
    ],
)
def test_what_is_not_linear_is_refused(update, reason: str) -> None:
    algorithm = replace(FEDAVG, name="mine", update=update)
    with pytest.raises(InputError, match=reason):
        linear_form(algorithm, FEDAVG.couple(eta=0.5, mu=1.0, K=1))


def test_a_query_that_is_not_linear_is_refused() -> None:
    algorithm = replace(FEDAVG, query=lambda state, hp: abs(state[0]))
    with pytest.raises(InputError, match="not linear"):
        linear_form(algorithm, FEDAVG.couple(eta=0.5, mu=1.0, K=1))


def test_the_same_numbers_are_worked_out_once() -> None:
    algorithm = fedac(gamma=0.5, alpha=2.0, beta=3.0)
    hp = FedAcHyperparameters(eta=0.1, gamma=0.5, alpha=2.0, beta=3.0)
    assert linear_form(algorithm, hp) is linear_form(algorithm, hp)


def test_functions_that_work_in_place_are_read_right() -> None:
    def in_place(state, w_md, g, hp):
        w_md -= hp.eta * g
        return (w_md,)

    algorithm = replace(FEDAVG, name="mine", update=in_place)
    hp = FEDAVG.couple(eta=0.5, mu=1.0, K=1)
    assert linear_form(algorithm, hp) == linear_form(FEDAVG, hp)


def test_a_sequence_may_stay_zero() -> None:
    algorithm = replace(FEDAC_I, update=lambda state, w_md, g, hp: (w_md - g, 0.0))
    hp = FEDAC_I.couple(eta=0.5, mu=0.5, K=4)
    assert linear_form(algorithm, hp).update == ((0, 0, 1, -1), (0, 0, 0, 0))
