# SPDX-License-Identifier: Apache-2.0
"""The wheel and the sdist of this checkout, and environments that have only the wheel.

Downloading half a gigabyte in every run of the tests would take minutes. The packages that the
tests run with are here already: those that the wheel requires, directly or not, are linked into a
new environment. So an import of anything undeclared fails there as it would for a user.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def build(source: Path, out: Path, *targets: str) -> None:
    """Build with the backend that pyproject.toml names, in the environment of the tests."""
    line = [sys.executable, "-m", "hatchling", "build", "--directory", str(out)]
    line += [word for target in targets for word in ("--target", target)]
    subprocess.run(line, cwd=source, check=True, capture_output=True, timeout=300)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the sdist."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out, "sdist", "wheel")
    return out


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    """Return the wheel of the checkout."""
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def wheel_of_sdist(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that the unpacked sdist builds."""
    folder = tmp_path_factory.mktemp("sdist")
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    build(source, folder / "out", "wheel")
    (found,) = (folder / "out").glob("*.whl")
    return found


@dataclass(frozen=True)
class Fresh:
    """A virtual environment, an empty folder to work in, and a cache of its own."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def python(self) -> Path:
        return self.root / "env" / "bin" / "python"

    def run(self, command: str, *arguments: object, code: int = 0) -> str:
        """Run a command of the environment in the empty folder; return what it printed."""
        ours = ("PYTHON", "FEDAC", "NUMBA")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        done = subprocess.run(
            [self.python.with_name(command), *map(str, arguments)],
            cwd=self.work,
            env=inherited | {"FEDAC_CACHE": str(self.root / "cache"), "MPLBACKEND": "Agg"},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == code, f"{command} {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="session")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Return an environment with the wheel, as after `pip install` of the wheel."""
    return install(wheel, "", tmp_path_factory.mktemp("fresh"))


@pytest.fixture(scope="session")
def fresh_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Return an environment as after installing the wheel with its extra `torch`."""
    return install(wheel, "[torch]", tmp_path_factory.mktemp("fresh_torch"))


def install(wheel: Path, extras: str, root: Path) -> Fresh:
    """Install a wheel, with the packages that it needs, into a new environment."""
    fresh = Fresh(root)
    fresh.work.mkdir()
    venv.create(root / "env", with_pip=False, symlinks=True)
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(root / "env")}))
    for dist in _closure(wheel, extras):
        _link(dist, site_packages)
    # Without an index pip finds every requirement in the environment, or fails.
    pip = [sys.executable, "-m", "pip", "--python", str(fresh.python), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-compile", f"{wheel}{extras}"], check=True)
    return fresh


def _closure(wheel: Path, extras: str) -> Iterator[Distribution]:
    """Yield what a wheel requires, directly or not, from the environment of the tests."""
    (itself,) = distributions(path=[str(wheel)])
    waiting = [(itself, extra) for extra in ("", *re.findall(r"[\w-]+", extras))]
    seen = {(itself.name, extra) for _, extra in waiting}
    while waiting:
        dist, extra = waiting.pop()
        for requirement in map(Requirement, dist.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            needed = distribution(requirement.name)
            for one in ("", *requirement.extras):
                if (needed.name, one) not in seen:
                    seen.add((needed.name, one))
                    waiting.append((needed, one))
                    yield needed


def _link(dist: Distribution, folder: Path) -> None:
    """Link the files and folders that an installed package has in site-packages."""
    for name in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(Path(str(dist.locate_file(name))).resolve())
