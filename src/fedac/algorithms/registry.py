"""From a name to an algorithm: those of the paper, well-known methods, and compositions."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fedac.algorithms.composition import compose
from fedac.algorithms.local.fedac import FEDAC_I, FEDAC_II, FEDAC_VANILLA
from fedac.algorithms.local.fedavg import FEDAVG, FEDAVG_WEIGHTED
from fedac.algorithms.minibatch import MB_AC_SGD, MB_SGD
from fedac.algorithms.names import parse_piece, split_pieces
from fedac.algorithms.pieces import LOCAL_RULES, MEMORIES, SERVER_RULES, SYNONYMS, WELL_KNOWN
from fedac.algorithms.record import Algorithm
from fedac.errors import InputError, unknown_name

ALGORITHMS: dict[str, Algorithm] = {
    a.name: a
    for a in (FEDAC_I, FEDAC_II, FEDAC_VANILLA, FEDAVG, FEDAVG_WEIGHTED, MB_SGD, MB_AC_SGD)
}
"""The algorithms of the paper by name; all others are compositions (`get`)."""


def get(algorithm: str | Algorithm) -> Algorithm:
    """Look an algorithm up by its name; an `Algorithm` of your own passes through.

    Examples
    --------
    >>> get("fedac-i").label
    'FedAc-I'
    >>> get("fedac-i + cv + nesterov(1, beta=0.3)").name
    'fedac-i+cv+nesterov(1,0.3)'
    >>> get("scaffold").label
    'SCAFFOLD'
    >>> get("fedac")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: unknown algorithm 'fedac'; did you mean 'fedac-i'? known: diloco, \
fedac-i, fedac-ii, fedac-vanilla, fedadagrad, fedadam, fedavg, fedavg-weighted, fedavgm, fedprox, \
fedyogi, gpa, mb-ac-sgd, mb-sgd, momentum, outer-nesterov, prox, scaffnew, scaffold, sgd, slowmo; \
add memories and a server rule with +, as in fedac-i+cv+nesterov(1,0.3)
    """
    if isinstance(algorithm, Algorithm):
        return algorithm
    found = _make(str(algorithm))
    # One object for all spellings of a name: runs of one algorithm are advanced together.
    return _known.setdefault(found.name, found)


def is_known(algorithm: Algorithm) -> bool:
    """Say whether an algorithm is what its name stands for."""
    return _known.get(algorithm.name) is algorithm


_known = dict(ALGORITHMS)


@lru_cache(maxsize=1024)
def _make(name: str) -> Algorithm:
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if "|" in name:
        raise InputError(
            f"'{name}' has an empty value beside |, or is several algorithms where one is needed"
        )
    first, *others = split_pieces(name)
    if not all((first, *others)):
        raise InputError(f"'{name}' has an empty piece; a method is written as fedac-i+cv")
    typed = parse_piece(first)
    if typed.name in WELL_KNOWN:
        return _well_known(typed.name, first, others)
    if typed.name in ALGORITHMS and typed.name not in LOCAL_RULES:
        raise InputError(
            f"'{typed.name}' cannot be composed; local rules: {', '.join(LOCAL_RULES)}"
        )
    if typed.name not in LOCAL_RULES and typed.name in (*MEMORIES, *SERVER_RULES):
        kind = "memory" if typed.name in MEMORIES else "server rule"
        raise InputError(f"'{typed.name}' is a {kind}; a local rule comes first: fedavg+{first}")
    if typed.name not in (*LOCAL_RULES, *SYNONYMS):
        known = {*ALGORITHMS, *WELL_KNOWN, *LOCAL_RULES, *SYNONYMS}
        reason = unknown_name("algorithm", typed.name, known)
        raise InputError(
            f"{reason}; add memories and a server rule with +, as in fedac-i+cv+nesterov(1,0.3)"
        )
    return compose(first, *others)


def _well_known(name: str, typed: str, others: list[str]) -> Algorithm:
    """Return a well-known method, or what is made of its pieces and others."""
    method = WELL_KNOWN[name]
    *pieces, last = method.pieces
    numbers = typed[len(name) :].strip()
    composed = compose(*pieces, last + numbers, *others)
    if others:
        return composed
    # Numbers that are the usual ones need not be shown.
    usual = not numbers or _is_usual(composed.name, method.pieces)
    shown = "" if usual else composed.name[composed.name.index("(") :]
    return replace(composed, name=name + shown, label=method.label + shown.replace(",", ", "))


def _is_usual(name: str, pieces: tuple[str, ...]) -> bool:
    try:
        return compose(*pieces).name == name
    except InputError:  # a piece without usual numbers
        return False
