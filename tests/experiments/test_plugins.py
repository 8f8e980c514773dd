# SPDX-License-Identifier: Apache-2.0
"""Algorithms and losses of the user's own, given as ``module:name``."""

from __future__ import annotations

import sys

import pytest

from fedac.algorithms import FEDAVG
from fedac.algorithms.parsing import find_algorithm
from fedac.errors import InputError
from fedac.experiments.grid import make_grid
from fedac.objectives import LogisticRegression
from fedac.objectives.losses import find_loss, make_objective

MODULE = """
from dataclasses import replace
from fedac.algorithms import FEDAC_I, FEDAVG
from fedac.objectives import LeastSquares

mine = replace(FEDAVG, name="mine")
impostor = replace(FEDAC_I, name="fedavg")
uncoupled = replace(FEDAVG, name="uncoupled", couple=lambda eta: eta)
number = 3
class Loss(LeastSquares): pass
class Broken(LeastSquares):
    def __init__(self, X, y, *, l2, intercept): raise KeyError("rows")
class Raises(LeastSquares):
    def loss(self, z, y): raise ValueError("boo")
class WrongSlope(LeastSquares):
    def derivative(self, z, y): return 3 * (z - y)
class Concave(LeastSquares):
    curvature = -9.0
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Make a folder with the module `own_things` the current one."""
    (tmp_path / "own_things.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    # As the command `fedac` has it, which unlike `python -m` does not look here.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    for name in ("own_things", "own_broken"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("here")
def test_found_in_the_current_folder():
    assert find_algorithm("own_things:mine").name == "mine"
    assert find_algorithm("own_things:mine+cv+step(2)").name == "mine+cv+step(2)"
    assert find_loss("own_things:Loss").__name__ == "Loss"
    assert make_objective("own_things:Loss", [[2.0]], [1.0], l2=1.0, intercept=True).dim == 2


def test_built_in_names():
    assert find_algorithm("fedavg") is find_algorithm("fedac.algorithms:FEDAVG") is FEDAVG
    assert find_loss("logistic") is LogisticRegression
    with pytest.raises(InputError, match="unknown algorithm 'fedag'; did you mean 'fedavg'"):
        find_algorithm("fedag")
    with pytest.raises(InputError, match="unknown loss 'logistics'; did you mean 'logistic'"):
        find_loss("logistics")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone:mine", "cannot import the module of 'gone:mine' .* No module named 'gone'"),
        (":mine", "cannot import the module of ':mine' .*Empty module name"),
        ("own_broken:mine", "which fails in own_broken.py, line 1: ZeroDivisionError: division"),
        ("own_things.py:mine", "name the module without .py, as in 'own_things:mine'"),
        (
            "own_things:mime",
            "unknown algorithm in module own_things, 'mime'; did you mean 'mine'",
        ),
        ("own_things:number", "'own_things:number' must be an Algorithm, not int"),
        ("own_things:impostor", "has the name of a built-in algorithm, 'fedavg'; rename it"),
    ],
)
def test_algorithms_that_cannot_be_used(name, message):
    with pytest.raises(InputError, match=message):
        find_algorithm(name)


@pytest.mark.usefixtures("here")
def test_a_grid_explains_what_is_wrong_with_a_record():
    values = {"name": "own", "dataset": "tiny", "l2": 1e-3, "algorithms": ("own_things:uncoupled",),
              "workers": (4,), "local_steps": (1,), "eta": (0.1,)}  # fmt: skip
    with pytest.raises(InputError, match="algorithm 'uncoupled': couple"):
        make_grid(**values)


@pytest.mark.usefixtures("here")
def test_losses_that_cannot_be_used():
    for name in ("own_things:mine", "own_things:number", "pathlib:Path"):
        with pytest.raises(InputError, match=r"must be a subclass of fedac\.objectives\.Objective"):
            find_loss(name)
    with pytest.raises(InputError, match=r"own_things:Broken\(X, y, .*\) failed: KeyError: 'rows'"):
        make_objective("own_things:Broken", [[2.0]], [1.0], l2=1.0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Raises", "failed: ValueError: boo"),
        ("WrongSlope", "the gradient is not the slope of the value"),
        ("Concave", "smoothness must be above 0"),
    ],
)
def test_a_wrong_loss_is_refused_before_it_runs(here, name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        make_objective(f"own_things:{name}", [[2.0], [1.0]], [1.0, 2.0], l2=0.1)
