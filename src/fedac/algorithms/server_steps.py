"""The step of a method's server rule: the number that says how far the server goes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from fedac.algorithms.composition import compose, make_server_rule
from fedac.algorithms.names import parse_piece, split_pieces
from fedac.algorithms.pieces import SERVER_RULES, WELL_KNOWN
from fedac.algorithms.record import Algorithm
from fedac.algorithms.server.rule import ServerRule


def server_step(method: str) -> float | None:
    """Return the first number of a method's server rule; None if it takes the mean.

    Examples
    --------
    >>> server_step("fedac-i+cv+nesterov(1,0.3)"), server_step("diloco"), server_step("fedavg")
    (1.0, 0.7, None)
    """
    _, rule = _parts(method)
    return None if rule is None else float(getattr(rule, _step_of(rule)))


def with_server_step(method: str, step: float) -> Algorithm:
    """Return a method with another step of its server.

    Examples
    --------
    >>> with_server_step("diloco", 1.4).name
    'fedavg+nesterov(1.4,0.9)'
    """
    others, rule = _parts(method)
    assert rule is not None, method
    changed: Any = rule
    return compose(*others, replace(changed, **{_step_of(rule): step}))


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
