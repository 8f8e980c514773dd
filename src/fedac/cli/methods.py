# SPDX-License-Identifier: Apache-2.0
"""`fedac methods`: families of pieces, their rules, traffic and memory, and where they run."""

from __future__ import annotations

import json
from typing import Any

import click

from fedac.algorithms import ALGORITHMS, Algorithm, compose, expand
from fedac.algorithms.algorithm import NUMBERS
from fedac.algorithms.catalog import (
    LOCAL_RULES,
    MEMORIES,
    SERVER_RULES,
    SYNONYMS,
    WELL_KNOWN,
    Piece,
)
from fedac.algorithms.parsing import find_algorithm, pieces_of, signature
from fedac.cli import options
from fedac.validate import parse_piece

KINDS = {
    "local_rules": "Local rules: one step of a client. g is a stochastic gradient at w, unless a "
    "rule says where.",
    "memories": "Memories: what client m keeps between its rounds, and corrections of its steps or "
    "its message. K_m is the number of its steps.",
    "server_rules": "Server rules: how the server moves every point x that clients send. delta = x "
    "- mean of the clients, r = 0, 1, ... the round.",
    "methods": "Well-known names, and the paper's baselines",
}
HOW = """A method is a local rule, then memories and a server rule, joined by +, as in
fedac-i+cv+nesterov(1,0.3). Numbers are given by position or by name (defaults: see above).
Values separated by | are several methods: fedavg+nesterov(0.7|1, 0.9).
'fedac methods NAME' describes any method."""


@click.command("methods", cls=options.Command)
@options.argument(
    "names",
    nargs=-1,
    metavar="[NAME]...",
    help="Methods to describe (default: all pieces and names).",
)
@options.json_option()
def methods_command(*, names: tuple[str, ...], as_json: bool) -> None:
    """List the pieces and names of methods: rules, bytes, memory and runtimes."""
    if names:
        listed = {"methods": [_method(one) for name in names for one in expand(name)]}
    else:
        listed = _everything()
    if as_json:
        print(json.dumps(listed))
        return
    for kind, entries in listed.items():
        if not names:
            print(f"{KINDS[kind]}\n")
        for entry in entries:
            print(_text(entry))
    if not names:
        print(HOW)


def _method(name: str) -> dict[str, Any]:
    """Describe a method and its pieces."""
    method, rules = find_algorithm(name), {}
    for piece in pieces_of(name):
        known = parse_piece(piece).name
        if found := (LOCAL_RULES | MEMORIES | SERVER_RULES).get(SYNONYMS.get(known, known)):
            default = signature(known, found.make, given=1 if known in MEMORIES else 0)
            rules[piece if "(" in piece else default] = found.rule
    return {"name": method.name, "rules": rules, **_describe(method)}


# Local rules in the examples of memories that need a state.
WITH_STATE = {"local": "fedac-i", "reset": "momentum", "average": "adamw"}


def _everything() -> dict[str, list[dict[str, Any]]]:
    baselines = [name for name in ALGORITHMS if name not in LOCAL_RULES]
    return {
        "local_rules": [_piece(name, piece, "") for name, piece in LOCAL_RULES.items()],
        "memories": [
            _piece(name, piece, WITH_STATE.get(name, "fedavg"), given=1)
            for name, piece in MEMORIES.items()
        ],
        "server_rules": [_piece(name, piece, "fedavg") for name, piece in SERVER_RULES.items()],
        "methods": [
            *({"name": name} | _describe(ALGORITHMS[name]) for name in baselines),
            *(
                {"name": name, "is": "+".join(known.pieces)} | _describe(_example(known.pieces))
                for name, known in WELL_KNOWN.items()
            ),
        ],
    }


def _piece(name: str, piece: Piece, rule: str, *, given: int = 0) -> dict[str, Any]:
    """Describe a piece, and the simplest method that contains it."""
    example = (rule, name) if rule else (name,)
    return {
        "name": signature(name, piece.make, given=given),
        "rule": piece.rule,
        "source": piece.source,
        "example": "+".join(example),
        **_describe(_example(example)),
    }


def _example(pieces: tuple[str, ...]) -> Algorithm:
    """Compose pieces; required numbers do not matter here."""
    numbers = {"prox": "(0.5)", "gpa": "(0.5, 0.5)", "step": "(0.5)"}
    return compose(*(piece + numbers.get(piece, "") for piece in pieces))


def _describe(method: Algorithm) -> dict[str, Any]:
    """Return what a method sends and keeps, and where it runs."""
    minibatch = method.minibatch
    down = [name for name in method.sequences if name not in NUMBERS]
    return {
        "up": ["gradient"] if minibatch else list(method.sent),
        "down": ["query point"] if minibatch else down,
        "bytes_per_parameter": {"up": 4 * method.vectors_up, "down": 4 * method.vectors_down},
        "client_keeps": list(method.memory),
        "server_keeps": list(method.server),
        "runs_in": _runtimes(method),
    }


def _runtimes(method: Algorithm) -> list[str]:
    """Return where a method runs; only linear rules are more than functions to a runtime."""
    from fedac.algorithms.linear import is_linear  # which needs NumPy

    if not is_linear(method):
        return ["simulator: reference and network engines"]
    engines = "simulator: fast, network and reference engines"
    if method.minibatch:
        return [engines]
    note = " (with a function for full gradients)" if "gradient" in method.asks else ""
    return [engines, f"PyTorch{note}", f"Flower{note}"]


def _text(entry: dict[str, Any]) -> str:
    """Write an entry as a few lines."""
    up, down = (", ".join(entry[way]) for way in ("up", "down"))
    traffic = f"sends {up} up and down" if up == down else f"sends {up} up, {down} down"
    size = entry["bytes_per_parameter"]
    traffic += f" ({size['up']} bytes per parameter up, {size['down']} down)"
    for who in ("client", "server"):
        if kept := entry[f"{who}_keeps"]:
            traffic += f"; the {who} keeps {', '.join(kept)}"
    example = entry.get("example", "")
    lines = [f"{entry['name']} = {entry['is']}" if "is" in entry else entry["name"]]
    lines += [entry["rule"]] if "rule" in entry else []
    lines += [f"{piece}: {rule}" for piece, rule in entry.get("rules", {}).items()]
    lines.append(f"{example} {traffic}" if "+" in example else traffic)
    lines.append(f"runs in {'; '.join(entry['runs_in'])}")
    lines += [f"({entry['source']})"] if "source" in entry else []
    return "\n".join(["  " + lines[0], *(f"      {line}" for line in lines[1:])]) + "\n"
