"""Names of methods as users type them: ``fedac-i+cv+nesterov(1, beta=0.3)``.

A name is a chain of pieces. In the parentheses of a piece are its numbers, by position or by name;
several values separated by ``|`` stand for as many methods.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from fedac.algorithms.algorithm import Algorithm
from fedac.algorithms.catalog import LOCAL_RULES, MEMORIES, SERVER_RULES, SYNONYMS, WELL_KNOWN
from fedac.algorithms.local.fedac import FEDAC_I, FEDAC_II, FEDAC_VANILLA
from fedac.algorithms.local.fedavg import FEDAVG, FEDAVG_WEIGHTED
from fedac.algorithms.minibatch import MB_AC_SGD, MB_SGD
from fedac.algorithms.server import Adaptive, ServerRule, with_server
from fedac.errors import InputError, unknown_name

PIECE = re.compile(r"\s*([A-Za-z][\w.:-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
ARGUMENT = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*=)?\s*(\S+)\s*")


@dataclass(frozen=True)
class PieceName:
    """One piece of a name: ``nesterov(1, beta=0.3)``."""

    text: str
    name: str
    positional: tuple[float, ...] = ()
    named: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def parse_piece(text: str) -> PieceName:
    """Read a piece and its numbers.

    Examples
    --------
    >>> piece = parse_piece("nesterov(1, beta=0.3)")
    >>> piece.name, piece.positional, piece.named
    ('nesterov', (1.0,), {'beta': 0.3})
    """
    found = PIECE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InputError(f"'{text}' is not a piece of a method, such as cv or nesterov(1, 0.3)")
    positional: list[float] = []
    named: dict[str, float] = {}
    for argument in found[2].split(",") if found[2] and found[2].strip() else []:
        key, value = _parse_argument(argument, text)
        if key in named:
            raise InputError(f"'{text}' gives {key} twice")
        if key:
            named[key] = value
        elif named:
            raise InputError(f"'{text}': numbers by name come after those by position")
        else:
            positional.append(value)
    return PieceName(text.strip(), found[1].lower(), tuple(positional), named)


def split_pieces(name: str) -> list[str]:
    """Cut a name at every plus sign outside parentheses.

    Examples
    --------
    >>> split_pieces("fedac-i + cv + adam(1e+0)")
    ['fedac-i', 'cv', 'adam(1e+0)']
    """
    return [piece.strip() for piece in _split(name, "+")]


def split_names(text: str) -> list[str]:
    """Cut a list of names at every comma outside parentheses.

    Examples
    --------
    >>> split_names("fedac-i, fedavg+nesterov(1,0.9)")
    ['fedac-i', 'fedavg+nesterov(1,0.9)']
    """
    return [name.strip() for name in _split(text, ",")]


def expand(name: str) -> list[str]:
    """Return a name for every combination of values separated by ``|``.

    Examples
    --------
    >>> expand("fedavg+nesterov(0.7|1, 0.9)")
    ['fedavg+nesterov(0.7, 0.9)', 'fedavg+nesterov(1, 0.9)']
    """
    # Every second part is a group of alternatives.
    parts = re.split(r"([^(),=|]+(?:\|[^(),=|]+)+)", name)
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def _split(text: str, at: str) -> list[str]:
    """Cut a text at every occurrence of a character outside parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == at and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise InputError(f"'{text}' has an open parenthesis")
    return parts


def _parse_argument(argument: str, text: str) -> tuple[str, float]:
    found = ARGUMENT.fullmatch(argument)
    try:
        if found is not None:
            return found[1] or "", float(found[2])
    except ValueError:
        pass
    raise InputError(f"'{text}': '{argument.strip()}' is not a number")


# --- Compose a method from a local rule, memories and a server rule.

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
    >>> from fedac.algorithms.server import Nesterov
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


# --- From a name to an algorithm: those of the paper, well-known methods, and compositions.

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


# --- The numbers of a method's server rule: how far the server goes, and its momentum.


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
