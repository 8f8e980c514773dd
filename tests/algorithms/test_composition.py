# SPDX-License-Identifier: Apache-2.0
"""Names of methods, and what they are made of."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest

from fedac.algorithms import (
    ALGORITHMS,
    FEDAC_I,
    Algorithm,
    RoundInfo,
    compose,
    expand,
    fedac,
    get,
    split_names,
)
from fedac.algorithms.catalog import LOCAL_RULES, SERVER_RULES, WELL_KNOWN
from fedac.algorithms.checks import check_functions, fingerprint
from fedac.algorithms.linear import boundary_form, linear_form
from fedac.algorithms.server import Nesterov, ServerRule
from fedac.errors import InputError
from fedac.federation.compression import bytes_up

NUMBERS = {"prox": "(0.1)", "gpa": "(0.9, 0.8)", "step": "(1.5)"}
RULES = [name + NUMBERS.get(name, "") for name in LOCAL_RULES]
SERVERS = [name + NUMBERS.get(name, "") for name in SERVER_RULES]
TWO_SEQUENCES = ("fedac-i", "fedac-ii", "fedac-vanilla", "momentum", "gpa(0.9, 0.8)")


def compositions(rule: str) -> list[str]:
    """Name every composition of a local rule."""
    of_state = {"adamw": ("reset", "average")} | dict.fromkeys(TWO_SEQUENCES, ("local", "reset"))
    if rule == "dualavg":  # in the dual space, with the server step of its paper
        return [rule]
    memories = [[], ["cv"]]
    if rule == "fedavg":
        memories += [["fedcm"], ["fedcm", "cv"], ["fednova"], ["fednova", "cv"]]
    memories += [[word, *cv] for word in of_state.get(rule, []) for cv in ([], ["cv"])]
    return [
        "+".join([rule, *memory, *server])
        for memory in memories
        for server in [[], *([server] for server in SERVERS)]
    ]


EVERYTHING = {
    "scaffnew": ["scaffnew"],
    "feddyn": ["feddyn", "feddyn(0.5)", "prox(0.1)+feddyn"],
} | {rule: compositions(rule) for rule in RULES}


@pytest.mark.parametrize("rule", EVERYTHING)
def test_every_composition_keeps_the_contract(rule: str) -> None:
    for name in EVERYTHING[rule]:
        method = get(name)
        for K in (1, 4):
            hp = method.couple(eta=0.01, mu=0.1, K=K)
            check_functions(method, hp, np.array([1.0, -2.0]), lambda w: np.stack([w, w]))
            if rule not in (
                "adamw",
                "dualavg",
            ):  # not linear: the reference and network engines run it
                linear_form(method, hp)
                boundary_form(method, hp, K)
        assert get(method.name) is method
        assert pickle.loads(pickle.dumps(method)) is method
        assert copy.deepcopy(method) is method


def test_all_compositions_compute_different_things() -> None:
    names = {get(name).name for names in EVERYTHING.values() for name in names}
    assert len({fingerprint(get(name)) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("typed", "name", "label"),
    [
        (
            "fedac-i+cv+nesterov(1,0.3)",
            "fedac-i+cv+nesterov(1,0.3)",
            "FedAc-I + cv + nesterov(1, 0.3)",
        ),
        (" fedac-i + nesterov( gamma = 1 , beta=.30 ) + CV", "fedac-i+cv+nesterov(1,0.3)", None),
        ("fedac-i+cv+local", "fedac-i+local+cv", None),
        ("sgd", "fedavg", "FedAvg"),
        ("fedavg+nesterov", "fedavg+nesterov(0.7,0.9)", None),
        ("diloco", "diloco", "DiLoCo"),
        ("diloco(0.7, 0.9)", "diloco", "DiLoCo"),
        ("diloco(beta=0.5)", "diloco(0.7,0.5)", "DiLoCo(0.7, 0.5)"),
        ("fedprox(1e-2)", "fedprox(0.01)", "FedProx(0.01)"),
        ("scaffold+step(2)", "fedavg+cv+step(2)", None),
        ("scaffold-m(0.3)", "scaffold-m(0.3)", "SCAFFOLD-M(0.3)"),
        ("scaffold-m+exp", "fedavg+fedcm(0.1)+cv+exp(0.001)", None),
        ("fedcm(a=.5)", "fedcm(0.5)", "FedCM(0.5)"),
    ],
)
def test_names(typed: str, name: str, label: str | None) -> None:
    method = get(typed)
    assert method.name == name
    assert label in (None, method.label)


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_well_known_names_are_their_pieces(name: str) -> None:
    numbers = "(0.1)" if name == "fedprox" else ""
    pieces = "+".join(WELL_KNOWN[name].pieces) + numbers
    assert fingerprint(get(name + numbers)) == fingerprint(get(pieces))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fedac-i+cvv", r"unknown memory or server rule 'cvv'; did you mean 'cv'\? known: .*yogi"),
        ("fedac-i+cv+cv", "'cv' is given twice"),
        ("fedac-i+mimelite(0.5)", "'mimelite' is a local rule; a method has one, and it comes fi"),
        ("fedavg+sgd", "'sgd' is a local rule; a method has one, and it comes first"),
        ("fedac-i+scaffold", r"'scaffold' is a method of its own, fedavg \+ cv; add a piece"),
        ("fedac-i+scaffnew", "only with the local rule fedavg"),
        ("scaffnew+step(2)", "needs the plain average"),
        ("fedavg+local", "has only one; use fedac-i"),
        ("fednova+fedcm", "use only one of 'fednova' and 'fedcm'"),
        ("fedac-i+fednova", "'fednova' needs the local rule fedavg, not 'fedac-i'"),
        ("momentum+feddyn", "'feddyn' needs a local rule with one sequence"),
        ("feddyn+cv", "'feddyn' has its own server rule and its own correction"),
        ("dualavg+nesterov", "'dualavg.*' cannot have a server rule"),
        ("fedavg+reset", r"'reset' needs a local rule with state, such as adamw"),
        ("fedac-i+average", "'fedac-i' averages its state already"),
        ("adamw+average+reset", "only one of 'local', 'reset' and 'average'"),
        ("mb-sgd+cv", "'mb-sgd' cannot be composed; local rules: fedavg"),
        ("fedavg+step(1)+adam", r"one server rule, got step\(1\) and adam"),
        ("fedavg+nesterov(1,2)", "beta must be a number at least 0 and below 1, got 2"),
        ("fedavg+nesterov(1,0.9,3)", r"it is written nesterov\(gamma=0.7, beta=0.9\)"),
        ("fedavg+nesterov(g=1)", r"it is written nesterov\(gamma=0.7, beta=0.9\)"),
        ("fedavg+nesterov(gamma=1,gamma=2)", "gives gamma twice"),
        ("fedavg+nesterov(gamma=1,2)", "by position come before"),
        ("fedavg+nesterov(1", "open parenthesis"),
        ("fedavg+", r"'fedavg\+' has an empty piece"),
        ("", "has an empty piece"),
        ("cv+fedavg", r"'cv' is a memory; a local rule comes first: fedavg\+cv"),
        ("adam(1)", r"'adam' is a server rule; a local rule comes first: fedavg\+adam\(1\)"),
        ("fedprox", r"it is written prox\(mu\)"),
        ("prox(a)", "'a' is not a number"),
        ("fedavg+cv(2)", "it is written cv"),
        ("fedavg+step(1|2)", "several algorithms"),
        ("prox(-1)", "mu must be a finite number, at least 0"),
        ("fedavg+adam(tau=0)", "tau must be a finite number above 0"),
    ],
)
def test_impossible_names(name: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        get(name)


def test_vectors_have_names_of_their_own() -> None:
    with pytest.raises(InputError, match="two vectors called 'c'"):
        compose(compose("fedavg", "cv"), "cv")


def test_a_server_rule_that_works_in_place_is_noticed() -> None:
    @dataclass(frozen=True)
    class InPlace(ServerRule):
        def step(self, x, delta, kept, hp, this):
            x -= delta
            return x, kept

    method = compose("fedac-i", InPlace())
    with pytest.raises(InputError, match="serve"):
        check_functions(method, method.couple(eta=0.1, mu=0.1, K=2), np.ones(2))


def test_several_values() -> None:
    assert expand("fedac-i") == ["fedac-i"]
    assert expand("prox(1e-3|1)+step(gamma=1|2)") == [
        "prox(1e-3)+step(gamma=1)",
        "prox(1e-3)+step(gamma=2)",
        "prox(1)+step(gamma=1)",
        "prox(1)+step(gamma=2)",
    ]


def test_lists_of_names() -> None:
    assert split_names("fedavg+nesterov(1,0.9),fedac-i") == ["fedavg+nesterov(1,0.9)", "fedac-i"]


def test_objects_and_names_are_the_same() -> None:
    by_object = compose("fedac-i", "cv", Nesterov(gamma=1.0, beta=0.3))
    assert by_object.name == "fedac-i+cv+nesterov(1,0.3)"
    assert fingerprint(by_object) == fingerprint(get(by_object.name))


def test_a_server_rule_of_your_own() -> None:
    @dataclass(frozen=True)
    class Signed(ServerRule):
        rate: float

        def step(self, x, delta, kept, hp, this):
            return x - self.rate * (1.0 * (delta > 0) - 1.0 * (delta < 0)), kept

    method = compose("fedac-i", "local", Signed(0.5))
    assert method.name == "fedac-i+local+signed(0.5)"
    assert method.serve((3.0,), (1.0,), (), None, RoundInfo()) == ((1.5,), ())


def test_a_local_rule_of_your_own() -> None:
    mine = Algorithm(**{**FEDAC_I.__dict__, "name": "mine", "label": "mine"})
    assert compose(mine, "local", "cv", "step(2)").name == "mine+local+cv+step(2)"


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
        InputError,
        match=r"unknown algorithm 'qqq'; known: adamw, diloco, dualavg, fedac-i, .*mb-sgd",
    ):
        get("qqq")


def test_megabytes() -> None:
    # A vector of 250,000 numbers is a megabyte.
    methods = [*ALGORITHMS, "fedac-i+local", "fedac-i+cv", "scaffnew"]
    assert {name: bytes_up(get(name), 250_000) / 1e6 for name in methods} == {
        "fedac-i": 2,
        "fedac-ii": 2,
        "fedac-vanilla": 2,
        "fedavg": 1,
        "fedavg-weighted": 2,
        "mb-sgd": 1,
        "mb-ac-sgd": 1,
        "fedac-i+local": 1,
        "fedac-i+cv": 3,
        "scaffnew": 1,
    }


def test_records_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        FEDAC_I.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["gamma", "alpha", "beta"])
def test_general_fedac_refuses_impossible_values_at_once(name: str) -> None:
    good = {"gamma": 1.0, "alpha": 2.0, "beta": 3.0}
    for value in (0.0, math.nan, math.inf):
        with pytest.raises(InputError, match=rf"{name} must be a finite number above 0"):
            fedac(**(good | {name: value}))
