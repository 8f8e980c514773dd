# SPDX-License-Identifier: Apache-2.0
"""Checks of an algorithm by calling it: its contract, its properties, its fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from fedac.algorithms import hyperparameters
from fedac.algorithms.algorithm import Algorithm, ClientWork, RoundInfo, State, Vector, serve_mean
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError

SIGNATURES = {
    "couple": "eta=, mu=, K=",
    "start": "w_0",
    "query": "state, hp",
    "update": "state, w_md, g, hp",
    "output": "state, hp, t",
    "first_memory": "sequences",
    "enter": "sequences, memory, hp",
    "leave": "local, sequences, memory, hp, done",
    "serve": "message, sequences, server, hp, this",
}
ROUNDING = 1e-9
MOST_ETAS = 4  # step sizes listed in a warning


def couple(algorithm: Algorithm, *, eta: float, mu: float, K: int) -> Hyperparameters:
    """Return the algorithm's hyperparameters; raise InputError if its `couple` is broken."""
    hp: Hyperparameters = _call(algorithm, "couple", eta=eta, mu=mu, K=K)
    frozen = is_dataclass(hp) and type(hp).__hash__ is not None
    if not frozen or not hasattr(hp, "eta"):
        raise _broken(
            algorithm,
            "couple must return a frozen dataclass with a field eta, such as "
            f"Hyperparameters(eta=eta), not {hp!r:.60}",
        )
    return hp


def needs_mu(algorithm: Algorithm, *, eta: float, K: int) -> bool:
    """Return whether the hyperparameters of an algorithm depend on mu."""
    # Small enough that FedAc accelerates and every coupling accepts them.
    one, other = (couple(algorithm, eta=eta, mu=small / eta, K=K) for small in (1e-6, 1e-5))
    return one != other


def check_decay(algorithm: Algorithm, *, eta: float, mu: float, K: int) -> None:
    """Raise InputError if the output is an average that assumes a constant step size."""
    one, other = (couple(algorithm, eta=value, mu=mu, K=K) for value in (eta, eta / 2))
    if _probe_output(algorithm, one, 16) != _probe_output(algorithm, other, 16):
        raise InputError(
            f"the output of '{algorithm.name}' assumes a constant step size; use a number, or "
            "another algorithm"
        )


def output_counts_steps(algorithm: Algorithm, hp: Hyperparameters) -> bool:
    """Return whether the output depends on the number of steps as well as on the state."""
    return bool(_probe_output(algorithm, hp, 16) != _probe_output(algorithm, hp, 32))


def require_equal_steps(algorithm: Algorithm, hp: Hyperparameters) -> None:
    """Raise InputError if the output is wrong where clients take different numbers of steps.

    FedAvg's weighted average divides by a sum over all local steps, the same for all clients.
    """
    if output_counts_steps(algorithm, hp):
        raise InputError(
            f"the output of '{algorithm.name}' counts local steps, so all clients must take the "
            "same number; use fedavg, or the same K for all"
        )


def _probe_output(algorithm: Algorithm, hp: Hyperparameters, t: int) -> Any:
    """Return the output after t steps for a state whose vectors all differ."""
    state = tuple(np.array([1.0 + s]) for s in range(len(algorithm.state_names)))
    return _call(algorithm, "output", state, hp, t)


def is_fedavg(algorithm: Algorithm, *, eta: float, mu: float, K: int) -> bool:
    """Return whether FedAc, alone or in a composition, degenerates to FedAvg at this eta and mu.

    With gamma = eta, w and w_ag take the same step from the same point and stay equal. FedAc-I and
    FedAc-II have gamma = max(sqrt(eta/(mu K)), eta), which is eta where eta mu K >= 1. Vanilla
    FedAc has gamma = sqrt(eta/mu), which is eta only where eta mu = 1.
    """
    couplings = (hyperparameters.fedac_i, hyperparameters.fedac_ii, hyperparameters.vanilla)
    if algorithm.minibatch or algorithm.couple not in couplings:
        return False
    hp = algorithm.couple(eta=eta, mu=mu, K=K)
    if hyperparameters.as_fedac(hp).gamma > eta * (1 + ROUNDING):
        return False
    # A user's algorithm with this coupling may step differently. FedAvg moves 1 to 0 if g = 1/eta.
    try:
        sequences, _ = algorithm.split(algorithm.start(1.0))
        local = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
        after = algorithm.update(local, 1.0, 1 / eta, hp)
        moved = [new for old, new in zip(local, after, strict=True) if old == 1.0]
        slack = ROUNDING * max(1.0, eta * mu)  # 1/alpha = eta mu multiplies rounding
        return len(moved) > 1 and all(abs(new) < slack for new in moved)
    except Exception:  # a user's functions may fail on plain numbers in any way
        return False


def not_accelerated(
    runs: Iterable[tuple[Algorithm, float]],
    *,
    mu: float,
    K: int,
    eta_name: str = "eta",
    K_name: str = "K",
) -> str:
    """Return a warning about all (algorithm, eta) that degenerate to FedAvg, or an empty string."""
    found = [(a, eta) for a, eta in runs if is_fedavg(a, eta=eta, mu=mu, K=K)]
    if not found:
        return ""
    labels = list(dict.fromkeys(a.label for a, _ in found))
    etas = sorted({eta for _, eta in found})
    shown = [f"{eta:g}" for eta in etas[:MOST_ETAS]] + ["..."] * (len(etas) > MOST_ETAS)
    return (
        f"{', '.join(labels)} {'degenerates' if len(labels) == 1 else 'degenerate'} to FedAvg with "
        f"{eta_name}={', '.join(shown)}, mu={mu:g}, {K_name}={K}, because {eta_name} mu {K_name} "
        f">= 1; to accelerate, use mu < 1/({eta_name} {K_name}) = "
        f"{hyperparameters.largest_mu(eta=etas[-1], K=K):.3g}"
    )


def check_functions(
    algorithm: Algorithm,
    hp: Hyperparameters,
    w_0: Vector,
    on_worker: Callable[[Vector], Vector] = lambda vector: vector,
) -> tuple[Vector, ...]:
    """Run a one-step round; raise an InputError that explains which function is broken.

    `on_worker` converts a server vector to a client vector, if their shapes differ. Returns the
    client's message.
    """
    A, point = algorithm, on_worker(w_0)
    state = _call(A, "start", w_0)
    _require_state(A, "start", state, w_0, A.state_names)
    sequences, server = A.split(state)
    sent = tuple(map(on_worker, sequences))
    if A.first_memory is not None:
        memory = _call(A, "first_memory", sent)
        _require_state(A, "first_memory", memory, point, A.memory)
    memory = A.begin_memory(sent)
    local = _call(A, "enter", sent, memory, hp)
    _require_state(A, "enter", local, point, A.local_sequences)
    w_md = _call(A, "query", local, hp)
    _require_vector(A, "query", w_md, point)
    after = _call(A, "update", local, w_md, 0 * point + 1, hp)
    _require_state(A, "update", after, point, A.local_sequences)
    done = ClientWork(steps=1, gradient=0 * point + 1)
    message, memory = _call_pair(A, "leave", after, sent, memory, hp, done)
    _require_state(A, "leave", message, point, A.sent)
    _require_state(A, "leave", memory, point, A.memory)
    # Not at the sequences themselves, where a rule that works in place would go unnoticed.
    mean = tuple(x + 1 for name, x in zip(A.sequences, sequences, strict=True) if name in A.sent)
    this = RoundInfo(spread=3.0, moved=1.0, steps=1.0)
    served, kept = _call_pair(A, "serve", mean, sequences, server, hp, this)
    _require_state(A, "serve", served, w_0, A.sequences)
    _require_state(A, "serve", kept, w_0, A.server)
    for t in (0, 1):
        _require_vector(A, "output", _call(A, "output", state, hp, t), w_0)
    return tuple(message)


def _call_pair(algorithm: Algorithm, function: str, *arguments: Any) -> tuple[Any, Any]:
    result = _call(algorithm, function, *arguments)
    if not isinstance(result, tuple) or len(result) != 2:
        what = f"{function} must return two tuples of vectors, not {_describe(result)}"
        raise _broken(algorithm, what)
    return result


def _call(algorithm: Algorithm, function: str, *arguments: Any, **named: Any) -> Any:
    """Call a function of the algorithm on copies, and check that it does not change them."""
    copies = deepcopy(arguments)
    try:
        with np.errstate(all="ignore"):
            result = getattr(algorithm, function)(*copies, **named)
    except InputError:
        raise
    except Exception as error:
        given = f", given {_describe(arguments[0])}" if arguments else ""
        what = f"{function}({SIGNATURES[function]}) fails{given}: {type(error).__name__}: {error}"
        raise _broken(algorithm, what) from error
    if not all(map(_equal, copies, arguments)):
        what = f"{function} changes its arguments in place; it must return new ones"
        raise _broken(algorithm, what)
    return result


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, ClientWork):
        a, b = (a.steps, a.gradient), (b.steps, b.gradient)
    if isinstance(a, tuple):
        return all(map(_equal, a, b))
    same = (a == b) | ((a != a) & (b != b))  # also where both are NaN
    return bool(same.all()) if np.ndim(a) else bool(same)


def _require_state(
    algorithm: Algorithm, function: str, state: Any, model: Vector, names: tuple[str, ...]
) -> None:
    if not isinstance(state, tuple) or len(state) != len(names):
        got = f"of {len(state)}" if isinstance(state, tuple) else _describe(state)
        raise _broken(
            algorithm,
            f"{function} must return a tuple of {len(names)}, one for each sequence "
            f"({', '.join(names)}), not {got}",
        )
    for sequence in state:
        _require_vector(algorithm, function, sequence, model)


def _require_vector(algorithm: Algorithm, function: str, value: Any, model: Vector) -> None:
    same_type = isinstance(value, type(model))
    if not same_type or _shape_and_dtype(value) != _shape_and_dtype(model):
        raise _broken(
            algorithm,
            f"{function} must return vectors like those it gets, {_describe(model)}, "
            f"not {_describe(value)}",
        )


def _shape_and_dtype(value: Any) -> tuple[Any, Any]:
    return np.shape(value), getattr(value, "dtype", None)


def _describe(value: Any) -> str:
    if isinstance(value, tuple) and value:
        return f"a tuple of {_describe(value[0])}"
    if not hasattr(value, "shape"):
        return type(value).__name__
    return f"{type(value).__name__} of shape {tuple(value.shape)} and type {value.dtype}"


def _broken(algorithm: Algorithm, what: str) -> InputError:
    return InputError(f"algorithm '{algorithm.name}': {what}")


# Values of (eta, mu, K) that together cover every case of the couplings.
COUPLINGS = ((0.3, 0.7, 1), (0.3, 0.007, 1), (0.01, 0.3, 16), (0.002, 0.05, 256))
# Sizes of the probe vectors: clipping only shows at large ones, thresholds at small ones.
SIZES = (1e-4, 0.1, 3.0, 1e4)
STEPS = (0, 1, 7)
# Machines differ in the 16th digit. With more digits than this, one of hundreds of numbers may be
# rounded up on one machine and down on another.
DIGITS = 9


def fingerprint(algorithm: Algorithm) -> str:
    """Return a short hash of an algorithm's results on fixed values.

    Algorithms that compute the same numbers have the same fingerprint, regardless of their names
    and of how they are written.
    """
    lines = [f"{algorithm.sequences} minibatch={algorithm.minibatch}"]
    beyond_the_paper = (algorithm.local, algorithm.memory, algorithm.server)
    if any(beyond_the_paper):
        lines.append(repr(beyond_the_paper))
    beyond = (algorithm.means, algorithm.broadcast_only, algorithm.asks)
    if any(beyond):
        lines.append(repr(beyond))
    for coupling in COUPLINGS:
        lines.append(repr(coupling))
        try:
            lines += [
                " ".join(f"{value:.{DIGITS}g}" for value in np.ravel(values).tolist())
                for values in _probe(algorithm, *coupling)
            ]
        except Exception as error:  # a coupling may reject a value; that is part of what it does
            lines.append(type(error).__name__)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _probe(algorithm: Algorithm, eta: float, mu: float, K: int) -> Iterator[Any]:
    """Yield the results of every function of the algorithm."""
    hp = algorithm.couple(eta=eta, mu=mu, K=K)
    S, L, U = len(algorithm.sequences), len(algorithm.local_sequences), len(algorithm.sent)
    P, Q = len(algorithm.memory), len(algorithm.server)
    for size in SIZES:
        # New vectors for every call: a user's functions may work in place.
        yield from algorithm.start(*_vectors(1, size))
        yield algorithm.query(_vectors(L, size), hp)
        *local, w_md, g = _vectors(L + 2, size)
        yield from algorithm.update(tuple(local), w_md, g, hp)
        for t in STEPS:
            yield algorithm.output(_vectors(S + Q, size), hp, t)
        if not algorithm.is_plain:
            vectors = _vectors(S + P, size)
            yield from algorithm.begin_memory(vectors[:S])
            yield from algorithm.enter(vectors[:S], vectors[S:], hp)
            vectors = _vectors(L + S + P, size)
            sequences, memory = vectors[L : L + S], vectors[L + S :]
            (gradient,) = _vectors(1, size)
            for steps in (1, 7):
                done = ClientWork(steps=steps, gradient=gradient)
                yield from sum(algorithm.leave(vectors[:L], sequences, memory, hp, done), ())
        if algorithm.serve is not serve_mean:
            vectors = _vectors(U + S + Q, size)
            for number in STEPS:
                this = RoundInfo(number=number, share=0.3, spread=5.0, moved=2.0, steps=3.0)
                message, sequences, server = vectors[:U], vectors[U : U + S], vectors[U + S :]
                yield from sum(algorithm.serve(message, sequences, server, hp, this), ())


def _vectors(count: int, size: float) -> State:
    """Return vectors of numbers that all differ, the same in every process."""
    numbers = 0.5 + np.arange(3 * count) * 0.6180339887498949 % 1.5
    return tuple(size * numbers.reshape(count, 3))
