import numpy as np
import pytest

from fedac.theory.tracing import phi, psi


def test_numbers_by_hand() -> None:
    # ||(3, 5) - (1, 2)||^2 = 4 + 9 = 13
    at = {"w": np.array([3.0, 5.0]), "w_star": np.array([1.0, 2.0]), "mu": 0.5}
    assert psi(suboptimality=1.0, **at) == pytest.approx(1 + 13 / 4, rel=1e-15)
    assert phi(suboptimality=1.0, **at) == pytest.approx(1 + 13 / 12, rel=1e-15)


def test_both_are_the_suboptimality_at_the_optimum() -> None:
    w = np.array([1.0, -1.0])
    assert psi(suboptimality=0.25, w=w, w_star=w, mu=3.0) == 0.25
    assert phi(suboptimality=0.25, w=w, w_star=w, mu=3.0) == 0.25
