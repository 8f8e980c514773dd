import dataclasses

import pytest

from fedac.algorithms import ALGORITHMS, FEDAC_I, fedac, get
from fedac.errors import InputError
from fedac.federation.compression import bytes_up


def test_names_are_those_of_the_command() -> None:
    assert sorted(ALGORITHMS) == [
        "fedac-i",
        "fedac-ii",
        "fedac-vanilla",
        "fedavg",
        "fedavg-weighted",
        "mb-ac-sgd",
        "mb-sgd",
    ]
    assert all(get(name).name == name for name in ALGORITHMS)


def test_an_algorithm_passes_through() -> None:
    assert get(FEDAC_I) is FEDAC_I


@pytest.mark.parametrize(
    ("typed", "meant"), [("fedac-1", "fedac-i"), ("fedacii", "fedac-ii"), ("mbsgd", "mb-sgd")]
)
def test_an_unknown_name_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"unknown algorithm '{typed}'; did you mean '{meant}'"):
        get(typed)


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(
        InputError, match=r"unknown algorithm 'qqq'; known: diloco, fedac-i, .*mb-sgd"
    ):
        get("qqq")


def test_megabytes() -> None:
    # A vector of 250,000 numbers is a megabyte.
    assert {name: bytes_up(a, 250_000) / 1e6 for name, a in ALGORITHMS.items()} == {
        "fedac-i": 2,
        "fedac-ii": 2,
        "fedac-vanilla": 2,
        "fedavg": 1,
        "fedavg-weighted": 2,
        "mb-sgd": 1,
        "mb-ac-sgd": 1,
    }


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FEDAC_I.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["gamma", "alpha", "beta"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_general_fedac_refuses_impossible_values_at_once(name: str, value: float) -> None:
    good = {"gamma": 1.0, "alpha": 2.0, "beta": 3.0}
    with pytest.raises(InputError, match=rf"{name} must be a finite number above 0"):
        fedac(**(good | {name: value}))
