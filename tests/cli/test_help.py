"""Help texts: complete, and the same with -h and --help."""

from __future__ import annotations

import re

import pytest

from fedac.cli import app
from fedac.federation.spec import options_of
from fedac.objectives import LOSSES


@pytest.mark.parametrize("arguments", [[], ["data"]])
def test_no_command_shows_the_help(fedac, arguments):
    code, out, err = fedac(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: fedac ")
    assert "Commands:\n" in err


def test_no_command_says_where_to_start(fedac):
    _, _, err = fedac()
    assert re.search(r"Where to start:\n\n +fedac demo .*\n +fedac run --dataset a9a", err)


def commands(group=None, path=()):
    """Yield every command with its path, `data list` included."""
    group = group or app
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield (*path, name), command
        if hasattr(command, "list_commands"):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_help_is_complete(fedac, path, command):
    code, out, err = fedac(*path, "-h")
    assert (code, err) == (0, "")
    assert fedac(*path, "--help").out == out
    assert all(parameter.help for parameter in command.params)
    has_arguments = any(p.param_type_name == "argument" for p in command.params)
    assert out.count("rguments:\n") == has_arguments


def test_summaries_are_not_cut(fedac):
    _, out, _ = fedac("--help")
    assert "..." not in out.partition("Commands:")[2]


def test_the_help_names_all_losses():
    assert all(name in options_of()["loss"].help for name in LOSSES)


def test_help_is_plain_text(fedac):
    code, out, _ = fedac("run", "--help")
    assert code == 0
    assert "[default: 1]" in out
    assert "\\[" not in out
