"""Leaving a round after another number of steps than the coefficients are for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedac.algorithms import ClientWork, get
from fedac.algorithms.linear import boundary_form
from fedac.errors import InputError

K = 4


@pytest.mark.parametrize(
    "name", ["scaffold", "scaffnew", "fedac-i+cv", "fedac-i+local", "fedac-i+local+cv"]
)
@pytest.mark.parametrize("steps", [1, 3, 10, 1000])
def test_leaving_after_other_steps_is_the_records_own(name, steps):
    algorithm = get(name)
    hp = algorithm.couple(eta=0.3, mu=0.05, K=K)
    rng = np.random.default_rng(0)
    local, sent, memory = (
        tuple(rng.normal(size=(len(names), 3)))
        for names in (algorithm.local_sequences, algorithm.sequences, algorithm.memory)
    )
    mine = boundary_form(algorithm, hp, K).after(steps).leave_round(local, sent, memory)
    wanted = algorithm.leave(local, sent, memory, hp, ClientWork(steps=steps))
    for one, other in zip(mine, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


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
