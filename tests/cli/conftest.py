# SPDX-License-Identifier: Apache-2.0
"""Fixtures that run the command in the process of the test, which saves a second each time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedac.cli import app, main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def fedac(capfd) -> Callable[..., Outcome]:
    """Return a function that runs `fedac` and returns its outcome."""

    def fedac(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        # None or a string would be an exit that `main` did not choose.
        assert isinstance(stop.value.code, int)
        out, err = capfd.readouterr()
        # Whether the simulator is compiled already depends on which tests ran before, and whether
        # there is a line of progress on how busy the machine is.
        err = re.sub("fedac: (compiling the simulator.*|.* done, .* left)\n", "", err)
        return Outcome(stop.value.code, out, err)

    return fedac


@pytest.fixture
def assert_refused(fedac) -> Callable[..., None]:
    """Return a function that checks a refusal: code 2, one line on stderr, no results."""

    def assert_refused(*arguments: object, saying: str) -> None:
        code, out, err = fedac(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("fedac: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert saying in err

    return assert_refused


@pytest.fixture
def parse() -> Callable[[list[str]], None]:
    """Return a function that parses a command line, and raises an error if it is not accepted."""

    def parse(arguments: list[str]) -> None:
        command: Any = app
        context = None
        if arguments[0].startswith("--"):
            app.make_context("fedac", arguments)
            return
        while hasattr(command, "get_command"):
            context = command.make_context("fedac", arguments[:1], parent=context)
            name, *arguments = arguments
            command = command.get_command(context, name)
        command.make_context(name, arguments, parent=context)

    return parse


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Return a function that writes a file and returns its path."""

    def write(content: bytes, name: str = "file") -> Path:
        path: Path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """Return a sparse LIBSVM file of 60 rows and 12 columns."""
    rng = np.random.default_rng(0)
    lines = []
    for row in range(60):
        columns = np.sort(rng.choice(11, size=3, replace=False)) + 1
        entries = " ".join(f"{column}:{rng.normal():.3f}" for column in [*columns, 12][:4])
        lines.append(f"{'+1' if row % 3 else '-1'} {entries}")
    path: Path = tmp_path_factory.mktemp("data") / "small"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def run(fedac, small) -> Callable[..., Outcome]:
    """Return a function that runs `fedac run` on the small file with small sizes."""

    def run(*arguments: object) -> Outcome:
        sizes = ("-M", 4, "-K", 2, "-T", 8, "--record-every", 4)
        outcome: Outcome = fedac("run", "--dataset", small, *sizes, *arguments)
        return outcome

    return run
