# SPDX-License-Identifier: Apache-2.0
"""What the wheel holds, and that it works where only the wheel is installed."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import fedac

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SWEEPS = sorted(path.name for path in (ROOT / "sweeps").glob("*.toml"))

# Importing everything finds a file that the wheel lacks and a package that it does not declare.
IMPORT_ALL = """
import importlib, json, pkgutil
import fedac
missing = {}
for module in pkgutil.walk_packages(fedac.__path__, "fedac.", onerror=lambda name: None):
    if module.name == "fedac.__main__":
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing[module.name] = str(error)
for name in fedac.__all__:
    try:
        getattr(fedac, name)
    except ModuleNotFoundError as error:
        missing[f"fedac.{name}"] = str(error)
print(json.dumps([fedac.__file__, missing]))
"""

# The demo's own grid takes half a minute; a part of it takes the same way through the package.
SMALL_DEMO = """
from dataclasses import replace
from fedac.cli import main
from fedac.experiments.reproduction import demo
small = {"workers": 16, "steps": 32, "local_steps": (1, 4), "eta": (0.2, 0.5), "seed": (1, 2)}
demo.GRID = replace(demo.GRID, **small)
main(["demo", "--out", "demo"])
"""


def _content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_package_and_its_data(wheel):
    names = set(_content(wheel))
    source = ROOT / "src"
    package = {
        str(path.relative_to(source))
        for path in (source / "fedac").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    sweeps = {f"fedac/sweeps/{name}" for name in SWEEPS}
    assert {"fedac/py.typed", "fedac/data/embedded/a9a.bz2"} <= package
    assert {name for name in names if name.startswith("fedac/")} == package | sweeps
    others = {name.split("/")[0] for name in names if not name.startswith("fedac/")}
    assert others == {f"fedac-{fedac.__version__}.dist-info"}


def test_the_sdist_builds_the_same_wheel(wheel, wheel_of_sdist):
    assert wheel_of_sdist.name == wheel.name
    assert _content(wheel_of_sdist) == _content(wheel)


def test_the_command_says_its_version(fresh):
    assert fresh.run("fedac", "--version") == f"fedac {fedac.__version__}\n"


def test_every_module_can_be_imported_but_those_of_extras(fresh):
    file, missing = json.loads(fresh.run("python", "-c", IMPORT_ALL))
    assert Path(file).is_relative_to(fresh.root)
    networks = "networks need PyTorch: pip install torch"
    assert missing == {
        "fedac.Network": networks,
        "fedac.flower": "fedac.flower needs Flower: pip install 'flwr[simulation]>=1.41,<1.42'",
        "fedac.objectives.network": networks,
        "fedac.simulation.engines.network": networks,
        "fedac.torch": "fedac.torch needs PyTorch: pip install torch",
    }


def test_extras_that_are_missing_are_named(fresh):
    small = ("--dataset", "synthetic", "-M", 2, "-K", 2, "-T", 2, "--eta", "0.1")
    said = fresh.run("fedac", "run", *small, "--on", "ray", code=2)
    assert "pip install ray" in said
    said = fresh.run("fedac", "run", *small, "--mu", 1, "--model", "mlp(4)", code=2)
    assert said == "fedac: networks need PyTorch: pip install torch\n"


def test_the_demo(fresh):
    assert "Rounds to come within 0.001 of the optimum: a9a" in fresh.run(
        "python", "-c", SMALL_DEMO
    )
    for name in ("rounds.png", "report.html", "digits/comparison.png"):
        assert (fresh.work / "demo" / name).stat().st_size > 10_000


def test_a_comparison(fresh):
    problem = ("--dataset", "synthetic", "--clients", 4, "--methods", "fedac-i,fedavg")
    sizes = ("-K", 4, "--rounds", 8, "--tries", 4, "--repeats", 2)
    assert "Runner-up: " in fresh.run("fedac", "compare", *problem, *sizes, "--out", "compared")
    assert (fresh.work / "compared" / "comparison.html").stat().st_size > 10_000


def test_the_shipped_sweeps(fresh):
    names = ", ".join(name.removesuffix(".toml") for name in SWEEPS)
    assert f"known: {names}" in fresh.run("fedac", "sweep", "nope", "--dry-run", code=2)
    said = fresh.run("fedac", "sweep", "a9a-clients", "--dry-run")
    assert said.startswith("cells: 2600, missing: 2600")


def test_the_pytorch_example(fresh_torch):
    example = fresh_torch.work / "example.py"
    example.write_bytes((ROOT / "examples" / "torch_logistic.py").read_bytes())
    rows = fresh_torch.run("python", example).splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["fedac-i", "fedac-ii", "fedac-vanilla", "fedavg"]
    assert all(float(row.split()[-1]) < 1e-9 for row in rows)
