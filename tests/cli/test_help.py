# SPDX-License-Identifier: Apache-2.0
"""Help texts: complete, and the same with -h and --help."""

from __future__ import annotations

import re
import shlex

import pytest

from fedac.cli import app
from fedac.cli.examples import EXAMPLES
from fedac.federation.spec import options_of
from fedac.objectives import LOSSES


def test_a_group_without_a_command_shows_the_help(fedac):
    code, out, err = fedac("data")
    assert (code, out) == (2, "")
    assert err.startswith("Usage: fedac ")
    assert "Commands:\n" in err


def test_the_command_alone_shows_three_things_to_try(fedac, parse):
    code, out, err = fedac()
    assert (code, err) == (0, "")
    lines = re.findall(r"^  fedac (.*?)   +\d+ s, +\d+ s", out, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        parse(shlex.split(line))
    assert max(map(len, out.splitlines())) <= 80


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


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_examples_are_accepted(fedac, parse, path, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, out, _ = fedac(*path, "--help")
    examples = re.findall(r"^  fedac (.*)", out.partition("\nExamples:\n")[2], re.MULTILINE)
    assert len(examples) >= (1 if path[0] == "data" else 2)
    for example in examples:
        assert example.startswith(" ".join(path))
        parse(shlex.split(example))
    assert out.endswith(f"fedac {examples[-1]}\n")


# In this order: the sweep makes the folder that the next ones read.
ORDER = ("run", "compare", "methods", "split", "sweep", "export", "merge", "report", "instability",
         "plan", "data path", "data list")  # fmt: skip
NEED_MORE = ("shard-1", "a9a-l2-1e-2")  # folders of other machines; a minute of work


@pytest.mark.slow
def test_examples_run(fedac, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ORDER:
        for line in EXAMPLES[path]:
            if not any(word in line for word in NEED_MORE):
                code, _, err = fedac(*path.split(), *shlex.split(line))
                assert code == 0, (path, line, err)


@pytest.mark.parametrize(("columns", "widest"), [("80", 80), ("100", 100), ("300", 120)])
def test_help_has_the_width_of_the_terminal(fedac, monkeypatch, columns, widest):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = fedac("compare", "--help")
    assert widest - 6 < max(map(len, out.splitlines())) <= widest


@pytest.mark.parametrize(
    ("variables", "colored"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colors(fedac, monkeypatch, variables, colored):
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, _ = fedac("run", "--help")
    assert (code, "\x1b[36m--eta" in out) == (0, colored)
    assert ("\x1b" in out) == colored


def test_all_options_are_under_a_heading():
    for path, command in commands():
        options = [each for each in command.params if each.param_type_name == "option"]
        assert [each.name for each in options if not hasattr(each, "heading")] == [], path
