"""Objectives by the name of their loss."""

import pytest

from fedac.errors import InputError
from fedac.objectives import LOSSES, make

X, y = [[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0]


@pytest.mark.parametrize("name", LOSSES)
def test_the_same_as_the_class(name: str) -> None:
    made = make(name, X, y, l2=0.5, intercept=True)
    assert made.fingerprint() == LOSSES[name](X, y, l2=0.5, intercept=True).fingerprint()


def test_an_unknown_name() -> None:
    with pytest.raises(InputError, match="unknown loss 'squares'; did you mean 'least-squares'"):
        make("squares", X, y)
