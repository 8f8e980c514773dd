"""The numbers of a method's server rule: how far the server goes, and its momentum."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from fedac.algorithms.composition import compose, make_server_rule
from fedac.algorithms.names import parse_piece, split_pieces
from fedac.algorithms.pieces import SERVER_RULES, WELL_KNOWN
from fedac.algorithms.record import Algorithm
from fedac.algorithms.server.adaptive import Adaptive
from fedac.algorithms.server.rule import ServerRule


def server_rule(method: str) -> ServerRule | None:
    """Return the server rule of a method; None if the server takes the mean.

    Examples
    --------
    >>> server_rule("diloco")
    Nesterov(gamma=0.7, beta=0.9)
    """
    return _parts(method)[1]


def without_server_rule(method: str) -> str:
    """Return a method without its server rule.

    Examples
    --------
    >>> without_server_rule("diloco"), without_server_rule("fedac-i+cv+nesterov(1,0.3)")
    ('fedavg', 'fedac-i+cv')
    """
    return compose(*_parts(method)[0]).name


def server_step(method: str) -> float | None:
    """Return the first number of a method's server rule, its step; None if it takes the mean.

    Examples
    --------
    >>> server_step("fedac-i+cv+nesterov(1,0.3)"), server_step("diloco"), server_step("fedavg")
    (1.0, 0.7, None)
    """
    rule = server_rule(method)
    return None if rule is None else float(getattr(rule, _step_of(rule)))


def server_momentum(method: str) -> float | None:
    """Return beta of a method's server rule; None if it has none.

    Examples
    --------
    >>> server_momentum("diloco"), server_momentum("fedadam")
    (0.9, None)
    """
    return getattr(server_rule(method), "beta", None)


def is_adaptive(method: str) -> bool:
    """Say whether the server divides by the size of moves: its step then has the size of a move.

    Examples
    --------
    >>> is_adaptive("fedadam"), is_adaptive("diloco")
    (True, False)
    """
    return isinstance(server_rule(method), Adaptive)


def with_server_step(method: str, step: float, beta: float | None = None) -> Algorithm:
    """Return a method with another step of its server, and another momentum.

    Examples
    --------
    >>> with_server_step("diloco", 1.4).name, with_server_step("diloco", 1.4, beta=0.6).name
    ('fedavg+nesterov(1.4,0.9)', 'fedavg+nesterov(1.4,0.6)')
    """
    others, rule = _parts(method)
    assert rule is not None, method
    changed: Any = rule
    numbers = {_step_of(rule): step} | ({} if beta is None else {"beta": beta})
    return compose(*others, replace(changed, **numbers))


def _step_of(rule: ServerRule) -> str:
    return fields(rule)[0].name  # type: ignore[arg-type]


def _parts(method: str) -> tuple[list[str], ServerRule | None]:
    """Return the pieces of a method without its server rule, and the rule."""
    first, *others = split_pieces(method)
    typed = parse_piece(first)
    pieces = [first]
    if typed.name in WELL_KNOWN:
        *before, last = WELL_KNOWN[typed.name].pieces
        pieces = [*before, last + first[len(typed.name) :].strip()]
    local, *rest = pieces + others
    rules = [piece for piece in rest if parse_piece(piece).name in SERVER_RULES]
    kept = [local, *(piece for piece in rest if piece not in rules)]
    return kept, make_server_rule(parse_piece(rules[0])) if rules else None
