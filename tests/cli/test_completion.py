# SPDX-License-Identifier: Apache-2.0
"""Tab completion: words, and its installation."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from fedac.cli import completion
from fedac.data.generated import GENERATED
from fedac.data.registry import SOURCES
from fedac.data.splits import SPLITS
from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.grid import SHIPPED
from fedac.federation.link import LINKS, Link
from fedac.federation.mode import Mode
from fedac.models import MODELS
from fedac.objectives import LOSSES
from fedac.simulation.engines import ENGINES

posix = pytest.mark.skipif(os.name != "posix", reason="needs bash")


def test_words_are_those_of_the_tables():
    words = completion.WORDS
    assert set(completion.DATA_SETS) == {*SOURCES, *GENERATED}
    assert set(completion.LINKS) == set(LINKS)
    assert set(completion.BASELINES) == set(BASELINES)
    assert set(words["loss"]) == set(LOSSES)
    assert {word.partition("(")[0] for word in words["split"]} == {
        name.partition("(")[0] for name in SPLITS
    }
    assert {word.partition("(")[0] for word in words["model"]} == set(MODELS)
    assert {f"{grid}.toml" for grid in completion.GRIDS} == {
        file.name for folder in SHIPPED for file in folder.glob("*.toml")
    }
    assert len(completion.ENGINES) == len(ENGINES)
    for link in words["link"]:
        Link.parse(link)
    for mode in words["mode"]:
        Mode.parse(mode)


@pytest.fixture
def complete(fedac, monkeypatch):
    """Return a function that completes the last word of a command line."""

    def complete(line):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        monkeypatch.setenv("_FEDAC_COMPLETE", "bash_complete")
        code, out, err = fedac()
        assert (code, err) == (0, "")
        return [each.partition(",")[2] for each in out.splitlines() if each]

    return complete


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("fedac comp", ["compare"]),
        ("fedac run --dataset di", ["diabetes", "digits"]),
        ("fedac compare --methods fedavg,dil", ["fedavg,diloco"]),
        ("fedac compare --methods lb", ["lbfgs"]),
        ("fedac run --algorithm fedac-i+c", ["fedac-i+cv"]),
        ("fedac compare --split i", ["iid"]),
        ("fedac compare --link ", ["datacenter", "wan", "home", "phone"]),
        ("fedac run --mode d", [r"deadline\\(30s\\)"]),
        ("fedac run --dataset ./da", ["./da"]),  # a file
        ("fedac sweep epsi", ["epsilon-l2-1e-4"]),
        ("fedac methods sca", ["scaffold"]),
        ("fedac data fetch mus", ["mushrooms"]),
        ("fedac run --algorithm 'fedavg(0.", []),
        ("fedac --install-completion z", ["zsh"]),
        ("fedac nothing --dat", []),
    ],
)
def test_words(complete, line, found):
    completed = complete(line)
    assert [word for word in completed if word in found] == found
    assert found or not completed


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Make an empty home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@posix
def test_installed_twice_it_is_there_once(fedac, home):
    startup = home / ".bashrc"
    startup.write_text("alias ll='ls -l'")  # without a last newline
    code, out, err = fedac("--install-completion")
    assert (code, err) == (0, "")
    script = home / ".local/share/fedac/completion.bash"
    after = f"alias ll='ls -l'\nsource {script}\n"
    assert startup.read_text() == after
    assert f"Added to {startup}: source {script}\n" in out
    assert f"To undo: delete {script} and remove that line from {startup}." in out
    code, out, _ = fedac("--install-completion", "bash")
    assert (code, startup.read_text()) == (0, after)
    assert f"{startup} already loads it." in out


@posix
def test_other_shells(fedac, home):
    assert fedac("--install-completion", "fish").code == 0
    file = home / ".config/fish/completions/fedac.fish"
    assert "complete --no-files --command fedac" in file.read_text()
    assert fedac("--install-completion", "zsh").code == 0
    zsh = home / ".local/share/fedac/completion.zsh"
    assert (home / ".zshrc").read_text() == f"source {zsh}\n"
    assert "compdef _fedac_completion fedac" in zsh.read_text()
    code, out, _ = fedac("--show-completion", "zsh")
    assert (code, out) == (0, zsh.read_text())


@posix
def test_unknown_shells(assert_refused, home, monkeypatch):
    assert_refused("--install-completion", "tcsh", saying="no completion for tcsh: pass one of")
    monkeypatch.setenv("SHELL", "/bin/ksh")
    assert_refused("--install-completion", saying="there is no completion for ksh")
    monkeypatch.delenv("SHELL")
    assert_refused("--install-completion", saying="$SHELL does not name a shell")
    assert list(home.iterdir()) == []


@posix
@pytest.mark.slow
def test_bash_completes(fedac, home, tmp_path):
    """A real bash loads the start-up file and asks for the words."""
    fedac("--install-completion", "bash")
    program = tmp_path / "bin" / "fedac"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fedac "$@"\n')
    program.chmod(0o755)
    ask = """
    source ~/.bashrc
    COMP_WORDS=(fedac run --split dir) COMP_CWORD=3
    _fedac_completion fedac
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    path = f"{program.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", ask], env={**os.environ, "PATH": path}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "dirichlet\\(0.1\\)\n"
