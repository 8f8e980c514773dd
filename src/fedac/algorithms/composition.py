"""Compose a method from a local rule, memories and a server rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import astuple, is_dataclass, replace
from typing import Any

from fedac.algorithms.names import PieceName, parse_piece
from fedac.algorithms.pieces import LOCAL_RULES, MEMORIES, SERVER_RULES, SYNONYMS
from fedac.algorithms.record import Algorithm
from fedac.algorithms.server.rule import ServerRule, with_server
from fedac.errors import InputError, unknown_name

# A memory wraps what is inside it: momentum at home changes what travels, a server rule moves what
# travels, and control variates travel beside it without being moved.
INSIDE_SERVER, OUTSIDE_SERVER = ("local", "scaffnew"), ("cv",)


def compose(local: str | Algorithm, *pieces: str | ServerRule) -> Algorithm:
    """Return the method made of a local rule, memories and a server rule.

    Parameters
    ----------
    local : str or Algorithm
        The local rule: a name such as "fedac-i" or "prox(0.1)", or a record of your own.
    pieces : str or ServerRule
        Memories ("local", "cv", "scaffnew") and at most one server rule, a name such as
        "nesterov(1, 0.3)" or an object, also one of your own.

    Examples
    --------
    >>> method = compose("fedac-i", "cv", "nesterov(1, 0.3)")
    >>> method.name
    'fedac-i+cv+nesterov(1,0.3)'
    >>> method.sequences, method.memory, method.server
    (('w_ag', 'w', 'c'), ('c_m',), ('w_ag_u', 'w_u'))
    >>> compose("fedavg", "local")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: 'local' keeps all but one sequence of a rule at home, but 'fedavg' \
sends only one; use fedac-i, fedac-ii, fedac-vanilla, momentum or gpa
    """
    rule, name, label = _local_rule(local)
    memories: list[str] = []
    server: ServerRule | None = None
    server_name = server_label = ""
    for piece in pieces:
        if not isinstance(piece, ServerRule):
            typed = parse_piece(piece)
            if typed.name in MEMORIES:
                _bind(MEMORIES[typed.name].make, typed, given=1)  # a memory has no numbers
                if typed.name in memories:
                    raise InputError(f"a method has '{typed.name}' once")
                memories.append(typed.name)
                continue
            piece = make_server_rule(typed)
        if server is not None:
            raise InputError(
                f"a method has one server rule, got {server_name} and {_server_names(piece)[0]}"
            )
        server = piece
        server_name, server_label = _server_names(server)
    if "scaffnew" in memories and (len(memories) > 1 or server is not None):
        raise InputError("'scaffnew' needs the plain average and no other memory; use 'cv'")
    inside = sorted(set(memories) & set(INSIDE_SERVER))
    outside = sorted(set(memories) & set(OUTSIDE_SERVER))
    method = rule
    for memory in inside:
        method = MEMORIES[memory].make(method)
    if server is not None:
        method = with_server(method, server)
    for memory in outside:
        method = MEMORIES[memory].make(method)
    parts = [*inside, *outside]
    return replace(
        method,
        name="+".join(filter(None, (name, *parts, server_name))),
        label=" + ".join(filter(None, (label, *parts, server_label))),
    )


def _local_rule(local: str | Algorithm) -> tuple[Algorithm, str, str]:
    """Return a local rule with its name and label."""
    if isinstance(local, Algorithm):
        if local.minibatch:
            raise InputError(f"'{local.name}' takes no local steps, so it cannot be composed")
        return local, local.name, local.label
    typed = parse_piece(local)
    key = SYNONYMS.get(typed.name, typed.name)
    if key not in LOCAL_RULES:
        raise unknown_name("local rule", key, LOCAL_RULES)
    make = LOCAL_RULES[key].make
    values = _values(make, typed)
    rule: Algorithm = make(*values)
    return rule, _with_numbers(key, values), _with_numbers(rule.label, values, ", ")


def make_server_rule(typed: PieceName) -> ServerRule:
    """Return the server rule that a piece stands for."""
    if typed.name not in SERVER_RULES:
        near = unknown_name("piece", typed.name, [*MEMORIES, *SERVER_RULES])
        raise InputError(
            f"{str(near).split('known:')[0]}memories: {', '.join(MEMORIES)}; server rules: "
            f"{', '.join(SERVER_RULES)}"
        )
    make = SERVER_RULES[typed.name].make
    rule: ServerRule = make(*_values(make, typed))
    return rule


def _server_names(rule: ServerRule) -> tuple[str, str]:
    """Return the name and the label of a server rule; one of the user's own has its class's."""
    names = {piece.make: name for name, piece in SERVER_RULES.items()}
    name = names.get(type(rule), type(rule).__name__.lower())
    values = astuple(rule) if is_dataclass(rule) else ()
    return _with_numbers(name, values), _with_numbers(name, values, ", ")


def _with_numbers(name: str, values: tuple[Any, ...], comma: str = ",") -> str:
    return f"{name}({comma.join(f'{value:.12g}' for value in values)})" if values else name


def _values(factory: Callable[..., Any], typed: PieceName) -> tuple[float, ...]:
    """Return all numbers of a piece in order, those that were left out by their defaults."""
    return _bind(factory, typed).args


def signature(name: str, make: Callable[..., Any], *, given: int = 0) -> str:
    """Write a piece with its numbers, and the usual ones; the first `given` are not typed.

    Examples
    --------
    >>> from fedac.algorithms.server.nesterov import Nesterov
    >>> signature("nesterov", Nesterov)
    'nesterov(gamma=0.7, beta=0.9)'
    """
    parameters = list(inspect.signature(make).parameters.values())[given:]
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default:g}" for p in parameters]
    return f"{name}({', '.join(shown)})" if shown else name


def _bind(
    factory: Callable[..., Any], typed: PieceName, *, given: int = 0
) -> inspect.BoundArguments:
    """Bind the typed numbers to a factory's parameters; the first `given` are not typed."""
    parameters = list(inspect.signature(factory).parameters.values())[given:]
    try:
        bound = inspect.Signature(parameters).bind(*typed.positional, **typed.named)
    except TypeError as error:
        form = signature(typed.name, factory, given=given)
        raise InputError(f"'{typed}': {error}; it is {form}") from None
    bound.apply_defaults()
    return bound
