"""Algorithms and losses by name: built in, or user-defined as ``module:name``."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any, cast

from fedac.algorithms import Algorithm, compose, get
from fedac.algorithms.checks import fingerprint
from fedac.algorithms.parsing import split_pieces
from fedac.errors import InputError
from fedac.objectives import LOSSES, ConvexObjective, Objective
from fedac.testing import check_objective
from fedac.validate import look_up, unknown_name


def find_algorithm(name: str) -> Algorithm:
    """Return a built-in algorithm, or import a user-defined one; both can be composed.

    Examples
    --------
    >>> find_algorithm("fedavg").label
    'FedAvg'
    >>> find_algorithm("fedac.algorithms:FEDAVG").label
    'FedAvg'
    >>> find_algorithm("fedac.algorithms:FEDAVG+cv").name
    'fedavg+cv'
    >>> find_algorithm("math:pi")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: 'math:pi' must be an Algorithm record, not float
    """
    if ":" not in name:
        return get(name)
    own, *others = split_pieces(name)
    found = _import(own)
    if not isinstance(found, Algorithm):
        raise InputError(f"'{own}' must be an Algorithm record, not {type(found).__name__}")
    if _has_taken_name(found):
        raise InputError(f"'{own}' has the name of a built-in algorithm, '{found.name}'; rename it")
    return compose(found, *others) if others else found


def _has_taken_name(own: Algorithm) -> bool:
    """Return whether a built-in algorithm has the same name and computes something else."""
    try:
        ours = get(own.name)
    except InputError:
        return False
    return own is not ours and fingerprint(own) != fingerprint(ours)


def find_loss(name: str) -> type[ConvexObjective]:
    """Return the class of a built-in objective, or import a user-defined one.

    The user's class must take ``(X, y, l2=..., intercept=...)``, as `LinearModel` does.

    Examples
    --------
    >>> find_loss("logistic").__name__
    'LogisticRegression'
    """
    if ":" not in name:
        return look_up("loss", name, LOSSES)
    found = _import(name)
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise InputError(f"'{name}' must be a subclass of fedac.objectives.Objective")
    return cast(type[ConvexObjective], found)


def make_objective(
    loss: str, X: Any, y: Any, *, l2: float, intercept: bool = False
) -> ConvexObjective:
    """Build an objective with a built-in or a user-defined loss.

    Examples
    --------
    >>> make_objective("fedac:LeastSquares", [[1.0], [2.0]], [1.0, 3.0], l2=0.5).smoothness
    3.0
    """
    kind: Any = find_loss(loss)
    try:
        objective: ConvexObjective = kind(X, y, l2=l2, intercept=intercept)
        if ":" in loss:
            check_objective(objective)
    except InputError:
        raise
    except Exception as error:  # a user's class may fail in any way
        call = f"{loss}(X, y, l2={l2:g}, intercept={intercept})"
        raise InputError(f"{call} failed: {type(error).__name__}: {error}") from error
    return objective


def _is_plugin(value: Any) -> bool:
    return isinstance(value, Algorithm) or (
        isinstance(value, type)
        and issubclass(value, Objective)
        and value not in (Objective, ConvexObjective)
    )


def _import(spec: str) -> Any:
    """Import ``module:name``, from the current folder too."""
    module_name, _, name = spec.partition(":")
    if module_name.endswith(".py"):
        right = f"{module_name.removesuffix('.py')}:{name}"
        raise InputError(f"'{spec}': name the module without .py, as in '{right}'")
    here = str(Path.cwd())
    if here not in sys.path:  # `python -m fedac` has it, the command `fedac` does not
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            where = "from this folder or the installed packages"
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"which fails in {Path(last.filename).name}, line {last.lineno}"
        raise InputError(f"cannot import the module of '{spec}' {where}: {reason}") from error
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if _is_plugin(value)]
        raise unknown_name(f"algorithm or loss in module {module_name},", name, own)
    return getattr(module, name)
