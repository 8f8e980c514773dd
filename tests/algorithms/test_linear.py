# SPDX-License-Identifier: Apache-2.0
"""Coefficients say what the algorithm's own functions say, and rebuild it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedac.algorithms import ALGORITHMS, FEDAC_I, FEDAVG, ClientWork, fedac, get
from fedac.algorithms.hyperparameters import FedAcHyperparameters
from fedac.algorithms.linear import boundary_form, from_linear, linear_form, with_boundary
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


K = 4


@pytest.mark.parametrize(
    "name", ["scaffold", "scaffnew", "fedac-i+cv", "fedac-i+local", "fedac-i+local+cv"]
)
@pytest.mark.parametrize("steps", [1, 3, 1000])
def test_a_round_from_coefficients_is_the_algorithms_own(name, steps):
    """Also with another number of steps than the coefficients are for."""
    algorithm = get(name)
    hp = algorithm.couple(eta=0.3, mu=0.05, K=K)
    rng = np.random.default_rng(0)
    local, sent, memory = (
        tuple(rng.normal(size=(len(names), 3)))
        for names in (algorithm.local_sequences, algorithm.sequences, algorithm.memory)
    )
    start = (1.0,) * len(local)
    rule = from_linear("twin", algorithm.local, start, linear_form(algorithm, hp), eta=0.3)
    names = {name: getattr(algorithm, name) for name in ("sequences", "memory", "echoes")}
    twin = with_boundary(rule, boundary_form(algorithm, hp, K), **names)

    def round_of(a):
        entered = a.enter(sent, memory, hp)
        w_md = a.query(local, hp)
        stepped = a.update(local, w_md, w_md + 1, hp)
        message, after = a.leave(local, sent, memory, hp, ClientWork(steps=steps))
        return (*a.begin_memory(sent), *entered, *stepped, *message, *after)

    for mine, wanted in zip(round_of(twin), round_of(algorithm), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-12, atol=1e-14)


def test_with_the_usual_steps_not_a_bit_changes():
    scaffold = get("scaffold")
    form = boundary_form(scaffold, scaffold.couple(eta=0.3, mu=0.05, K=3), 3)
    assert form.after(3) is form


@pytest.mark.parametrize("factor", [lambda steps: 1 / steps**2, lambda steps: 1 / (steps - 2)])
def test_another_dependence_on_the_steps_is_refused(factor):
    scaffold = get("scaffold")

    def leave(local, sequences, memory, hp, done):
        message, kept = scaffold.leave(local, sequences, memory, hp, done)
        return message, tuple(factor(done.steps) * vector for vector in kept)

    mine = replace(scaffold, name="mine", leave=leave)
    form = boundary_form(mine, mine.couple(eta=0.3, mu=0.05, K=K), K)
    assert form.after(K).memory[0][2] == pytest.approx(factor(K) / K)
    with pytest.raises(InputError, match=r"for 4 local steps only, not for 5: .* A \+ B/steps"):
        form.after(5)


ETA = 0.25


def twin_of(algorithm, **options):
    step = linear_form(algorithm, algorithm.couple(eta=ETA, mu=0.1, K=4))
    start = algorithm.start(1.0)
    return from_linear("twin", algorithm.sequences, start, step, eta=ETA, **options)


def state_of(algorithm):
    return tuple(np.random.default_rng(0).normal(size=(len(algorithm.sequences) + 1, 5)))


@pytest.mark.parametrize("name", ["fedavg", "momentum(0.9)", "gpa(0.5, 0.7)"])
@pytest.mark.parametrize("eta", [ETA, ETA / 3, 2 * ETA])
def test_another_step_size_is_the_algorithms_own(name, eta):
    """Here nothing but the step size depends on eta."""
    algorithm = get(name)
    twin, (*state, g) = twin_of(algorithm), state_of(algorithm)
    own, mine = (a.couple(eta=eta, mu=0.1, K=4) for a in (algorithm, twin))
    w_md = algorithm.query(tuple(state), own)
    np.testing.assert_allclose(
        twin.update(tuple(state), w_md, g, mine),
        algorithm.update(tuple(state), w_md, g, own),
        rtol=1e-14,
        atol=1e-15,
    )


def test_both_step_sizes_of_fedac_follow():
    factor = 0.4
    usual, other = (
        fedac(gamma=scale * 0.5, alpha=2.0, beta=4.0, name="mine") for scale in (1, factor)
    )
    twin, (*state, g) = twin_of(usual), state_of(usual)
    hp = other.couple(eta=factor * ETA, mu=0.1, K=4)
    w_md = other.query(tuple(state), hp)
    np.testing.assert_allclose(
        twin.update(tuple(state), w_md, g, twin.couple(eta=factor * ETA, mu=1.0, K=1)),
        other.update(tuple(state), w_md, g, hp),
        rtol=1e-14,
    )


def test_another_step_size_may_be_refused():
    twin = twin_of(get("fedac-i"), scales=False)
    assert twin.couple(eta=ETA, mu=1.0, K=1).eta == ETA
    with pytest.raises(InputError, match=r"'twin' needs .* 0\.25, not 0\.1; .*eta=fedac\.Decay"):
        twin.couple(eta=0.1, mu=1.0, K=1)
