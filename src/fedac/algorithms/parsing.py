# SPDX-License-Identifier: Apache-2.0
"""Methods by name: ``fedac-i+cv+nesterov(1, beta=0.3)``.

A name is a local rule, then memories and at most one server rule, joined by plus signs. Each piece
may have numbers in parentheses. Values separated by ``|`` expand to one method each.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import astuple, fields, is_dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from fedac.algorithms.algorithm import Algorithm
from fedac.algorithms.catalog import LOCAL_RULES, MEMORIES, SERVER_RULES, SYNONYMS, WELL_KNOWN
from fedac.algorithms.local.fedac import FEDAC_I, FEDAC_II, FEDAC_VANILLA
from fedac.algorithms.local.fedavg import FEDAVG, FEDAVG_WEIGHTED
from fedac.algorithms.minibatch import MB_AC_SGD, MB_SGD
from fedac.algorithms.server import ServerRule, with_server
from fedac.errors import InputError
from fedac.validate import import_named, look_up, parse_piece, unknown_name

ALGORITHMS: dict[str, Algorithm] = {
    a.name: a
    for a in (FEDAC_I, FEDAC_II, FEDAC_VANILLA, FEDAVG, FEDAVG_WEIGHTED, MB_SGD, MB_AC_SGD)
}
"""The algorithms of the paper by name; `get` composes all others."""

FEW_NUMBERS = 2
_known = dict(ALGORITHMS)


def get(algorithm: str | Algorithm) -> Algorithm:
    """Return the algorithm with this name; an `Algorithm` is returned unchanged.

    Examples
    --------
    >>> get("fedac-i + cv + nesterov(1, beta=0.3)").name
    'fedac-i+cv+nesterov(1,0.3)'
    >>> get("scaffold").label
    'SCAFFOLD'
    """
    if isinstance(algorithm, Algorithm):
        return algorithm
    found = _make(str(algorithm))
    # One object for all spellings of a name: engines group runs by algorithm.
    return _known.setdefault(found.name, found)


def find_algorithm(name: str) -> Algorithm:
    """Return a built-in algorithm, or import the user's ``module:name``; both can be composed.

    >>> find_algorithm("fedac.algorithms:FEDAVG+cv").name
    'fedavg+cv'
    """
    if ":" not in name:
        return get(name)
    own, *others = split_names(name, "+")
    found = import_named("algorithm", own, lambda value: isinstance(value, Algorithm))
    if not isinstance(found, Algorithm):
        raise InputError(f"'{own}' must be an Algorithm, not {type(found).__name__}")
    if _has_taken_name(found):
        raise InputError(f"'{own}' has the name of a built-in algorithm, '{found.name}'; rename it")
    return compose(found, *others) if others else found


def _has_taken_name(own: Algorithm) -> bool:
    """Return whether a built-in algorithm has the same name and computes something else."""
    from fedac.algorithms.checks import fingerprint  # which needs NumPy

    try:
        ours = get(own.name)
    except InputError:
        return False
    return own is not ours and fingerprint(own) != fingerprint(ours)


def is_known(algorithm: Algorithm) -> bool:
    """Return whether `get` returns this algorithm for its name."""
    return _known.get(algorithm.name) is algorithm


@lru_cache(maxsize=1024)
def _make(name: str) -> Algorithm:
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if "|" in name:
        raise InputError(
            f"'{name}' has an empty value next to |, or stands for several algorithms; give one"
        )
    first, *others = split_names(name, "+")
    if not all((first, *others)):
        raise InputError(f"'{name}' has an empty piece; a method is written as fedac-i+cv")
    rule = parse_piece(first).name
    if rule in (*LOCAL_RULES, *SYNONYMS, *WELL_KNOWN):
        composed = compose(*_replace_well_known(first), *others)
        return _rename(composed, rule, first) if rule in WELL_KNOWN and not others else composed
    if rule in ALGORITHMS:
        raise InputError(f"'{rule}' cannot be composed; local rules: {', '.join(LOCAL_RULES)}")
    if rule in (*MEMORIES, *SERVER_RULES):
        kind = "memory" if rule in MEMORIES else "server rule"
        raise InputError(f"'{rule}' is a {kind}; a local rule comes first: fedavg+{first}")
    reason = unknown_name("algorithm", rule, {*ALGORITHMS, *WELL_KNOWN, *LOCAL_RULES, *SYNONYMS})
    raise InputError(
        f"{reason}; add memories and a server rule with +, as in fedac-i+cv+nesterov(1,0.3)"
    )


def _replace_well_known(first: str) -> list[str]:
    """Return the pieces of a well-known method, whose numbers belong to the last one."""
    name = parse_piece(first).name
    if name not in WELL_KNOWN:
        return [first]
    *pieces, last = WELL_KNOWN[name].pieces
    return [*pieces, last + first[len(name) :].strip()]


def _rename(composed: Algorithm, name: str, typed: str) -> Algorithm:
    """Return a well-known method under its own name, followed by its numbers unless default."""
    numbers = typed[len(name) :].strip()
    if numbers:
        try:
            is_default = compose(*WELL_KNOWN[name].pieces).name == composed.name
        except InputError:  # the piece has no default numbers
            is_default = False
        found = re.search(r"\(.*?\)", composed.name)
        numbers = "" if is_default or not found else found[0]
    label = WELL_KNOWN[name].label + numbers.replace(",", ", ")
    return replace(composed, name=name + numbers, label=label)


def split_names(text: str, separator: str = ",") -> list[str]:
    """Split a list of names at the commas outside parentheses.

    Examples
    --------
    >>> split_names("fedac-i, fedavg+nesterov(1,0.9)")
    ['fedac-i', 'fedavg+nesterov(1,0.9)']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise InputError(f"'{text}' has an open parenthesis")
    return [part.strip() for part in parts]


def expand(name: str) -> list[str]:
    """Return one name for every combination of the values separated by ``|``.

    Examples
    --------
    >>> expand("fedavg+nesterov(0.7|1, 0.9)")
    ['fedavg+nesterov(0.7, 0.9)', 'fedavg+nesterov(1, 0.9)']
    """
    # Every second part is a group of alternatives.
    parts = re.split(r"([^(),=|]+(?:\|[^(),=|]+)+)", name)
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def compose(local: str | Algorithm, *pieces: str | ServerRule) -> Algorithm:
    """Return the method made of a local rule, memories and a server rule.

    Parameters
    ----------
    local : str or Algorithm
        The local rule: a name such as "fedac-i" or "prox(0.1)", or an algorithm you wrote.
    pieces : str or ServerRule
        Memories such as "cv" or "feddyn(0.1)", and at most one server rule: a name such as
        "nesterov(1, 0.3)", or a `ServerRule`.

    Examples
    --------
    >>> method = compose("fedac-i", "cv", "nesterov(1, 0.3)")
    >>> method.name
    'fedac-i+cv+nesterov(1,0.3)'
    >>> method.sequences, method.memory, method.server
    (('w_ag', 'w', 'c'), ('c_m',), ('w_ag_u', 'w_u'))
    """
    method = local if isinstance(local, Algorithm) else _make_local_rule(local)
    if method.minibatch:
        raise InputError(f"'{method.name}' takes no local steps, so it cannot be composed")
    memories: dict[str, tuple[float, ...]] = {}
    server: ServerRule | None = None
    for piece in pieces:
        typed = "" if isinstance(piece, ServerRule) else parse_piece(piece).name
        if typed in MEMORIES:
            if typed in memories:
                raise InputError(f"'{typed}' is given twice")
            memories[typed] = _bind(MEMORIES[typed].make, str(piece), given=1)
            continue
        if server is not None:
            raise InputError(
                f"a method has one server rule, got {_server_name(server)} and {piece}"
            )
        server = piece if isinstance(piece, ServerRule) else _make_server_rule(piece)
    _check_pieces({*memories}, server)
    first, applied = method, list[str]()
    for after_server in (False, True):
        if after_server and server is not None:
            method = with_server(method, server)
        for memory, known in MEMORIES.items():
            if memory in memories and known.after_server == after_server:
                method = known.make(method, *memories[memory])
                applied.append(memory + _write_numbers(memories[memory]))
    others = [*applied, *([] if server is None else [_server_name(server)])]
    label = " + ".join([first.label, *(other.replace(",", ", ") for other in others)])
    return replace(method, name="+".join([first.name, *others]), label=label)


def _check_pieces(memories: set[str], server: ServerRule | None) -> None:
    """Raise InputError if these memories and this server rule do not go together."""
    if "scaffnew" in memories and (len(memories) > 1 or server is not None):
        raise InputError("'scaffnew' needs the plain average and no other memory; use 'cv'")
    if "feddyn" in memories and (memories - {"feddyn", "reset"} or server is not None):
        raise InputError(
            "'feddyn' has its own server rule and its own correction: it goes with no server rule "
            "and no other memory but 'reset'; use 'cv' instead"
        )
    if {"fednova", "fedcm"} <= memories:
        raise InputError("use only one of 'fednova' and 'fedcm': each rescales the clients' moves")
    if len({"local", "reset", "average"} & memories) > 1:
        raise InputError("use only one of 'local', 'reset' and 'average'")


def _make_local_rule(text: str) -> Algorithm:
    typed = parse_piece(text).name
    name = SYNONYMS.get(typed, typed)
    make = look_up("local rule", name, LOCAL_RULES).make
    values = _bind(make, text)
    rule: Algorithm = _build(make, text, values)
    # AdamW is known by its four usual numbers: they would only make its name long.
    if not values or (len(values) > FEW_NUMBERS and values == _bind(make, name)):
        return rule
    numbers = _write_numbers(values)
    return replace(rule, name=name + numbers, label=rule.label + numbers.replace(",", ", "))


def _make_server_rule(text: str) -> ServerRule:
    name = parse_piece(text).name
    if name not in SERVER_RULES:
        if name in (*LOCAL_RULES, *SYNONYMS):
            raise InputError(f"'{name}' is a local rule; a method has one, and it comes first")
        if name in WELL_KNOWN:
            pieces = " + ".join(WELL_KNOWN[name].pieces)
            raise InputError(f"'{name}' is a method of its own, {pieces}; add a piece instead")
        raise unknown_name("memory or server rule", name, [*MEMORIES, *SERVER_RULES])
    make = SERVER_RULES[name].make
    rule: ServerRule = _build(make, text, _bind(make, text))
    return rule


def _build(make: Callable[..., Any], text: str, numbers: tuple[float, ...]) -> Any:
    """Return the piece with these numbers, or name the piece whose number is wrong."""
    try:
        return make(*numbers)
    except InputError as error:
        raise InputError(f"'{text}': {error}") from None


def _server_name(rule: ServerRule) -> str:
    names = {piece.make: name for name, piece in SERVER_RULES.items()}
    name = names.get(type(rule), type(rule).__name__.lower())
    return name + _write_numbers(astuple(rule) if is_dataclass(rule) else ())


def _write_numbers(values: tuple[Any, ...]) -> str:
    return f"({','.join(f'{value:.12g}' for value in values)})" if values else ""


def signature(name: str, make: Callable[..., Any], *, given: int = 0) -> str:
    """Write a piece with its parameters and their defaults, without the first `given` ones."""
    parameters = list(inspect.signature(make).parameters.values())[given:]
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default:g}" for p in parameters]
    return f"{name}({', '.join(shown)})" if shown else name


def _bind(make: Callable[..., Any], text: str, *, given: int = 0) -> tuple[float, ...]:
    """Return all arguments for `make` after the first `given`: the typed ones and defaults."""
    name, positional, named = parse_piece(text)
    parameters = list(inspect.signature(make).parameters.values())[given:]
    try:
        bound = inspect.Signature(parameters).bind(*positional, **named)
    except TypeError as error:
        form = signature(name, make, given=given)
        raise InputError(f"'{text}': {error}; it is written {form}") from None
    bound.apply_defaults()
    return bound.args


def pieces_of(method: str) -> list[str]:
    """Return the pieces that a name stands for.

    >>> pieces_of("scaffold-m(0.2)+nesterov")
    ['fedavg', 'cv', 'fedcm(0.2)', 'nesterov']
    """
    first, *others = split_names(method, "+")
    return [*_replace_well_known(first), *others]


def split_server_rule(method: str) -> tuple[list[str], ServerRule | None]:
    """Return a method's other pieces and its server rule; None if the server takes the mean."""
    local, *rest = pieces_of(method)
    rules = [piece for piece in rest if parse_piece(piece).name in SERVER_RULES]
    kept = [local, *(piece for piece in rest if piece not in rules)]
    return kept, _make_server_rule(rules[0]) if rules else None


class Numbers(NamedTuple):
    """The numbers of a method that comparisons tune; None where it has no such number."""

    server_step: float | None = None
    momentum: float | None = None  # of the server
    piece: float | None = None  # the first number of a local rule or memory, such as a of feddyn


def tuned_numbers(method: str) -> Numbers:
    """Return the numbers of a method that comparisons tune.

    >>> tuned_numbers("diloco")
    Numbers(server_step=0.7, momentum=0.9, piece=None)
    >>> tuned_numbers("feddyn").piece, tuned_numbers("fedexp").server_step
    (0.1, None)
    """
    others, rule = split_server_rule(method)
    piece = _tuned_piece(others)
    number = None if piece is None else _numbers_of(others[piece])[0]
    if rule is None or "moves" in rule.asks:  # which finds its own step
        return Numbers(piece=number)
    return Numbers(float(getattr(rule, _step_name(rule))), getattr(rule, "beta", None), number)


def values_to_try(method: str) -> tuple[float, ...]:
    """Return the values that comparisons try for `Numbers.piece`.

    >>> values_to_try("fedcm(0.2)+nesterov")
    (0.02, 0.05, 0.1, 0.3, 0.6)
    """
    others, _ = split_server_rule(method)
    piece = _tuned_piece(others)
    return () if piece is None else _catalogued(others[piece]).tuned


def with_numbers(method: str, numbers: Numbers) -> Algorithm:
    """Return a method with other numbers; None leaves one as it is.

    >>> with_numbers("diloco", Numbers(1.4, 0.6)).name
    'fedavg+nesterov(1.4,0.6)'
    >>> with_numbers("scaffold-m", Numbers(piece=0.3)).name
    'fedavg+fedcm(0.3)+cv'
    """
    others, rule = split_server_rule(method)
    piece = _tuned_piece(others)
    if piece is not None and numbers.piece is not None:
        _, *unchanged = _numbers_of(others[piece])
        name = parse_piece(others[piece]).name
        others[piece] = name + _write_numbers((numbers.piece, *unchanged))
    if rule is None:
        return compose(*others)
    given = {_step_name(rule): numbers.server_step, "beta": numbers.momentum}
    changed: Any = rule
    known = {name: value for name, value in given.items() if value is not None}
    return compose(*others, replace(changed, **known))


def _tuned_piece(pieces: list[str]) -> int | None:
    """Return the place of the first piece whose number comparisons tune."""
    tuned = (i for i, piece in enumerate(pieces) if (found := _catalogued(piece)) and found.tuned)
    return next(tuned, None)


def _catalogued(piece: str) -> Any:
    """Return a local rule or memory of the catalog; None for minibatch algorithms."""
    name = parse_piece(piece).name
    return (LOCAL_RULES | MEMORIES).get(SYNONYMS.get(name, name))


def _numbers_of(piece: str) -> tuple[float, ...]:
    """Return the numbers of a local rule or memory, typed or default."""
    name = parse_piece(piece).name
    return _bind(_catalogued(piece).make, piece, given=1 if name in MEMORIES else 0)


def _step_name(rule: ServerRule) -> str:
    return fields(rule)[0].name  # type: ignore[arg-type]
