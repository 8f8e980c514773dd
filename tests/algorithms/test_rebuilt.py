"""Local steps rebuilt from coefficients, also with the step size of a scheduler."""

from __future__ import annotations

import numpy as np
import pytest

from fedac.algorithms import fedac, get
from fedac.algorithms.linear import from_linear, linear_form
from fedac.errors import InputError

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
