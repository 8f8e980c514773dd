"""What every algorithm record must do, checked by calling it; errors say what would be right."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.record import Algorithm, State, Vector
from fedac.errors import InputError


def couple(algorithm: Algorithm, *, eta: float, mu: float, K: int) -> Hyperparameters:
    """Return the algorithm's hyperparameters, or explain what is wrong with its `couple`."""
    hp = _call(algorithm, "couple", eta=eta, mu=mu, K=K)
    try:
        complete = is_dataclass(hp) and hasattr(hp, "eta") and hash(hp) is not None
    except TypeError:  # not frozen
        complete = False
    if not complete:
        raise _wrong(
            algorithm,
            f"couple must return a frozen dataclass with a field eta, such as "
            f"Hyperparameters(eta=eta), not {hp!r:.60}",
        )
    result: Hyperparameters = hp
    return result


def check_functions(
    algorithm: Algorithm,
    hp: Hyperparameters,
    w_0: Vector,
    on_worker: Callable[[Vector], Vector] = lambda vector: vector,
) -> None:
    """Call start, query, update and output once, and explain what is wrong with any of them.

    `on_worker` makes of a vector what `query` and `update` get, if that has another shape.
    """
    state = _call(algorithm, "start", w_0)
    _require_state(algorithm, "start", state, w_0)
    local = tuple(on_worker(sequence) for sequence in state)
    point = on_worker(w_0)
    w_md = _call(algorithm, "query", local, hp)
    _require_vector(algorithm, "query", w_md, point)
    after = _call(algorithm, "update", local, w_md, 0 * point + 1, hp)
    _require_state(algorithm, "update", after, point)
    for t in (0, 1):
        _require_vector(algorithm, "output", _call(algorithm, "output", state, hp, t), w_0)


def check_purity(algorithm: Algorithm, hp: Hyperparameters, w_0: Vector) -> None:
    """Refuse functions that change their arguments."""
    state: State = tuple(w_0 + k for k in range(len(algorithm.sequences)))
    calls: dict[str, tuple[Any, ...]] = {
        "start": (w_0,),
        "query": (state, hp),
        "update": (state, 2 * w_0, 3 * w_0, hp),
        "output": (state, hp, 1),
    }
    for function, arguments in calls.items():
        kept = deepcopy(arguments)
        _call(algorithm, function, *arguments)
        for before, now in zip(kept, arguments, strict=True):
            pairs = zip(before, now, strict=True) if isinstance(now, tuple) else [(before, now)]
            if not all(_equal(a, b) for a, b in pairs):
                raise _wrong(
                    algorithm, f"{function} changes its arguments in place; it must return new ones"
                )


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) if np.ndim(a) == 0 else bool((a == b).all())


def _call(algorithm: Algorithm, function: str, *arguments: Any, **named: Any) -> Any:
    try:
        with np.errstate(all="ignore"):
            return getattr(algorithm, function)(*arguments, **named)
    except InputError:
        raise
    except Exception as error:
        kind = type(arguments[0]).__name__ if arguments else "float"
        if isinstance(arguments[0] if arguments else None, tuple):
            kind = f"tuple of {type(arguments[0][0]).__name__}"
        raise _wrong(
            algorithm,
            f"{function}({SIGNATURES[function]}) fails, given a {kind}: "
            f"{type(error).__name__}: {error}",
        ) from error


SIGNATURES = {
    "couple": "eta=, mu=, K=",
    "start": "w_0",
    "query": "state, hp",
    "update": "state, w_md, g, hp",
    "output": "state, hp, t",
}


def _require_state(algorithm: Algorithm, function: str, state: Any, model: Vector) -> None:
    names = ", ".join(algorithm.sequences)
    expected = f"a tuple of {len(algorithm.sequences)}, one for each sequence ({names})"
    if not isinstance(state, tuple | list):
        raise _wrong(algorithm, f"{function} must return {expected}, not a {type(state).__name__}")
    if len(state) != len(algorithm.sequences):
        raise _wrong(algorithm, f"{function} must return {expected}, not of {len(state)}")
    for sequence in state:
        _require_vector(algorithm, function, sequence, model)


def _require_vector(algorithm: Algorithm, function: str, value: Any, model: Vector) -> None:
    if not isinstance(value, type(model)) or np.shape(value) != np.shape(model):
        raise _wrong(
            algorithm,
            f"{function} must return vectors like those it gets, {_describe(model)}, "
            f"not {_describe(value)}",
        )


def _describe(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of shape {tuple(value.shape)}" if hasattr(value, "shape") else kind


def _wrong(algorithm: Algorithm, what: str) -> InputError:
    return InputError(f"algorithm '{algorithm.name}': {what}")
