# SPDX-License-Identifier: Apache-2.0
"""Grids: the Specs of sweeps, read from TOML files or from options."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedac.data import load
from fedac.errors import InputError
from fedac.experiments.workload import with_own_clients
from fedac.federation.spec import SWEEP, Spec
from fedac.federation.spec_checks import check_spec
from fedac.validate import look_up

# In an installed package, and at the root of a checkout.
SHIPPED = (Path(__file__).parents[1] / "sweeps", Path(__file__).parents[3] / "sweeps")


def make_grid(**values: Any) -> Spec:
    """Return a grid of runs; the keywords are the keys of a TOML file.

    ``dataset`` may be anything that `fedac.load` takes, and ``client`` a column, an array that
    names the client of each row, or a `Clients`. Default: the clients of a `Dataset`, if it has
    any.

    Examples
    --------
    >>> grid = make_grid(dataset="synthetic", l2=1e-3, algorithms=["fedac-i", "fedavg"],
    ...                  workers=[4, 8], local_steps=[1, 16], steps=64, eta=[0.1, 0.5])
    >>> len(grid.expand())
    16
    """
    source, client = values.get("dataset"), values.get("client")
    if source is None or isinstance(source, str | Path):
        return check_spec(SWEEP, values)
    data = load(source, values.pop("label", None), client)
    values |= {"dataset": data, "client": None if client is None else data.clients}
    return check_spec(SWEEP, with_own_clients(values, data))


def read_grid(path: str | Path) -> Spec:
    """Read a grid from a TOML file; errors name the line."""
    path = Path(path)
    try:
        if path.is_char_device() or path.is_block_device():  # /dev/zero never ends
            raise InputError(f"cannot read '{path}': it is a device")
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None

    def locate(key: str) -> str:
        # The line that sets the key or begins a table of that name; tomllib does not say.
        start = re.compile(rf"\s*\[*\s*([\"']?){re.escape(key)}\1\s*[=.\]]")
        for number, line in enumerate(text.splitlines(), start=1):
            if start.match(line):
                return f"{path}, line {number}: "
        return f"{path}: "

    options = replace(SWEEP, locate=locate, needed=("name", *SWEEP.needed))
    return check_spec(options, values)


def shipped(name: str) -> Path:
    """Return the file of a sweep that is shipped with fedac.

    Examples
    --------
    >>> shipped("a9a-l2-1e-3").name
    'a9a-l2-1e-3.toml'
    """
    files = {file.stem: file for folder in SHIPPED for file in folder.glob("*.toml")}
    return look_up("sweep", name, files)


def given_values(grid: Spec) -> Mapping[str, Any]:
    """Return the values of a grid by the keys of a TOML file."""
    return {SWEEP.name_of(name): getattr(grid, name) for name in SWEEP.fields()}
