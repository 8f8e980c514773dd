"""Names of methods as users type them: ``fedac-i+cv+nesterov(1, beta=0.3)``.

A name is a chain of pieces. In the parentheses of a piece are its numbers, by position or by name;
several values separated by ``|`` stand for as many methods.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import product

from fedac.errors import InputError

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
