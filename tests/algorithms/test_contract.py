# SPDX-License-Identifier: Apache-2.0
"""The contract of a user's own record: what is refused, and in which words."""

import math
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import pytest

from fedac.algorithms import ALGORITHMS, FEDAC_I, FEDAVG, fedac
from fedac.errors import InputError, NotLinearWarning
from fedac.objectives import LogisticRegression, NoisyQuadratic
from fedac.simulation import simulate
from fedac.testing import check_algorithm


@pytest.mark.parametrize("algorithm", [*ALGORITHMS.values(), fedac(gamma=0.1, alpha=2.0, beta=3.0)])
def test_our_own_algorithms_keep_the_contract(algorithm) -> None:
    check_algorithm(algorithm)


@dataclass
class NotFrozen:
    eta: float


def _step_in_place(state, w_md, g, hp):
    g *= hp.eta
    return (w_md - g,)


def _sort_in_place(state, hp, t):
    if np.ndim(state[0]):
        state[0][..., 0] = 0
    return state[0]


# What is changed in FedAvg, or in FedAc-I, and what the error says.
MISTAKES = {
    "update without a tuple": (
        FEDAVG, {"update": lambda state, w_md, g, hp: w_md - hp.eta * g},
        r"update must return a tuple of 1, one for each sequence \(w\), not ",
    ),
    "update with too many": (
        FEDAVG, {"update": lambda state, w_md, g, hp: (w_md - hp.eta * g, g)},
        r"update must return a tuple of 1, one for each sequence \(w\), not of 2",
    ),
    "update with too few": (
        FEDAC_I, {"update": lambda state, w_md, g, hp: (w_md - hp.eta * g,)},
        r"update must return a tuple of 2, one for each sequence \(w_ag, w\), not of 1",
    ),
    "update with a list": (
        FEDAVG, {"update": lambda state, w_md, g, hp: [w_md - hp.eta * g]},
        r"update must return a tuple of 1, one for each sequence \(w\), not list",
    ),
    "complex numbers": (
        FEDAVG, {"update": lambda state, w_md, g, hp: (w_md - 1j * g,)},
        r"update must return vectors like those it gets, .*not .*complex",
    ),
    "start with too few": (
        FEDAC_I, {"start": lambda w_0: (w_0,)},
        r"start must return a tuple of 2.*not of 1",
    ),
    "query of the whole state": (
        FEDAVG, {"query": lambda state, hp: state},
        r"query must return vectors like those it gets, .*, not a tuple of",
    ),
    "output of a number": (
        FEDAVG, {"output": lambda state, hp, t: None},
        r"output must return vectors like those it gets, .*, not NoneType",
    ),
    "a step without g": (
        FEDAVG, {"update": lambda state, w_md, hp: (w_md,)},
        r"update\(state, w_md, g, hp\) fails.*TypeError",
    ),
    "a hyperparameter it lacks": (
        FEDAVG, {"update": lambda state, w_md, g, hp: (w_md - hp.gamma * g,)},
        r"update\(state, w_md, g, hp\) fails.*no attribute 'gamma'",
    ),
    "couple without K": (
        FEDAVG, {"couple": lambda eta, mu: None},
        r"couple\(eta=, mu=, K=\) fails.*'K'",
    ),
    "couple with a number": (
        FEDAVG, {"couple": lambda *, eta, mu, K: eta},
        r"couple must return a frozen dataclass with a field eta.*not 0\.01",
    ),
    "couple that is not frozen": (
        FEDAVG, {"couple": lambda *, eta, mu, K: NotFrozen(eta)},
        r"couple must return a frozen dataclass",
    ),
}  # fmt: skip


@pytest.mark.parametrize("names", [["w_ag", "w"], "w", (), (1, 2)])
def test_sequences_must_be_a_tuple_of_names(names: object) -> None:
    with pytest.raises(InputError, match=r"sequences must be a tuple of names, such as \('w',\)"):
        replace(FEDAC_I, name="mine", sequences=names)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake: str) -> None:
    good, changes, message = MISTAKES[mistake]
    mine = replace(good, name="mine", **changes)
    with pytest.raises(InputError, match="algorithm 'mine': " + message):
        check_algorithm(mine)
    with pytest.raises(InputError, match="algorithm 'mine': " + message):
        simulate(NoisyQuadratic([1.0, 0.5]), mine, M=2, K=2, T=4, eta=0.01, mu=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update": _step_in_place}, "update changes its arguments in place"),
        ({"output": _sort_in_place}, "output changes its arguments in place"),
        (
            {"update": lambda state, w_md, g, hp: (w_md - math.copysign(hp.eta, g),)},
            r"update\(state, w_md, g, hp\) fails, given a tuple of ndarray of shape",
        ),
        pytest.param(
            {"query": lambda state, hp: np.asarray(state[0]) + 0.0},
            r"query must return vectors like those it gets",
            marks=pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch"),
        ),
    ],
)
def test_what_only_the_full_check_finds(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_algorithm(replace(FEDAVG, name="mine", **changes))


def _signs(state, w_md, g, hp):
    return (w_md - hp.eta * g / abs(g),)  # 0/0 where we try g = 0: no warning of NumPy's


def _shorter(local, sequences, memory, hp, done):
    (w,), (sent,) = local, sequences
    return (sent + (w - sent) / (1 + (w - sent) * (w - sent)),), memory


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"update": _signs},
            "'mine' is not linear in its state and gradient .*; only the reference and network "
            "engines of simulate can run it, not the fast one, PyTorch or Flower$",
        ),
        (
            {"leave": _shorter},
            "'mine' does not enter and leave a round linearly; only PyTorch and the reference "
            "engine of simulate can run it, not the fast one or Flower$",
        ),
    ],
)
def test_a_warning_says_which_runtimes_refuse_a_record(changes: dict, message: str) -> None:
    mine = replace(FEDAVG, name="mine", **changes)
    with pytest.warns(NotLinearWarning, match=message) as caught:
        check_algorithm(mine)
    assert [warning.filename for warning in caught] == [__file__]
    # It is as the warning says.
    F = LogisticRegression(np.eye(2), np.array([1.0, -1.0]), l2=0.1)
    settings = {"M": 2, "K": 2, "T": 4, "eta": 0.01}
    assert simulate(F, mine, engine="reference", **settings).runs[0].status == "ok"
    with pytest.raises(InputError, match=message.removesuffix("$")):
        simulate(F, mine, engine="fast", **settings)


@pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch")
def test_pytorch_takes_what_only_leaves_a_round_in_another_way() -> None:
    import torch

    from fedac.torch import LocalOptimizer

    how = {"lr": 0.1, "mu": 0.1, "local_steps": 2}
    w = torch.nn.Parameter(torch.ones(2))
    LocalOptimizer([w], replace(FEDAVG, name="mine", leave=_shorter), **how)
    with pytest.raises(InputError, match="only the reference and network engines"):
        LocalOptimizer([w], replace(FEDAVG, name="mine", update=_signs), **how)


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_named(factor: float) -> None:
    mine = replace(FEDAVG, update=lambda state, w_md, g, hp: (w_md - factor * g,))
    with pytest.raises(InputError, match="a step with gradient 1 must give finite numbers"):
        check_algorithm(mine)


def test_only_records_are_checked() -> None:
    with pytest.raises(InputError, match=r"needs a fedac\.Algorithm, got 'fedavg'"):
        check_algorithm("fedavg")


def test_refusals_of_the_coupling_pass_through() -> None:
    with pytest.raises(InputError, match="FedAc-II needs alpha > 1"):
        check_algorithm(ALGORITHMS["fedac-ii"], eta=100.0, mu=1.0)


def test_what_works_on_rows_of_workers_runs() -> None:
    # Not elementwise, but right for arrays with a row per worker: simulate may run it.
    def update(state, w_md, g, hp):
        return (w_md - hp.eta * g / np.linalg.norm(g, axis=-1, keepdims=True),)

    mine = replace(FEDAVG, name="normalized", update=update)
    result = simulate(NoisyQuadratic([1.0, 0.5]), mine, M=2, K=2, T=4, eta=0.01)
    assert result.runs[0].status == "ok"
