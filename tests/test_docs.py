"""The Python of README and docs runs as it stands; of tutorials, all of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from printed import same_but_for_rounding

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # examples may write files
    mpl.use("Agg")
    names: dict[str, object] = {"__name__": page.stem}
    # An output right below its block is that of the block.
    pattern = r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?"
    for block, output in re.findall(pattern, page.read_text(), re.DOTALL):
        with redirect_stdout(StringIO()) as said:
            exec(compile(block, str(page), "exec", dont_inherit=True), names)
        if output:
            same_but_for_rounding(said.getvalue(), output)
    plt.close("all")


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_tutorials_do_what_they_say(page: Path, tmp_path: Path, monkeypatch) -> None:
    """Follow a tutorial: save its files, run its Python and its commands, read what they print."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    mpl.use("Agg")
    names: dict[str, object] = {"__name__": page.stem}
    printed = ""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for language, block in blocks:
        if language == "python":
            with redirect_stdout(StringIO()) as said:
                exec(compile(block, str(page), "exec", dont_inherit=True), names)
            printed = said.getvalue()
        elif language == "py":  # a file, named in its first line
            (tmp_path / block.split()[1]).write_text(block)
        elif language == "sh":
            ran = subprocess.run(["bash", "-ec", block], capture_output=True, text=True)
            assert ran.returncode == 0, ran.stdout + ran.stderr
            printed = ran.stdout
        else:
            assert language == "text", f"{page.name} has a block of {language}"
            same_but_for_rounding(printed, block)
    plt.close("all")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_every_tutorial_has_a_picture(page: Path) -> None:
    assert re.search(r"^!\[[^]]+\]\(\.\./images/[\w-]+\.png\)", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES + TUTORIALS, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "package",
    [
        *("algorithms", "data", "experiments.comparison", "flower", "objectives", "simulation"),
        *("theory", "torch"),
    ],
)
def test_every_public_name_has_a_docstring_and_a_page(package: str) -> None:
    """The site, made in a slow test, has the rest: names that the reference leaves out."""
    if package in ("flower", "torch"):
        pytest.importorskip({"flower": "flwr"}.get(package, package))
    package = f"fedac.{package}"
    module = import_module(package)
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)", pages, re.MULTILINE))
    for name in module.__all__:
        value = getattr(module, name)
        assert package in shown or f"{package}.{name}" in shown or f"fedac.{name}" in shown, name
        assert not callable(value) or value.__doc__, f"{package}.{name}"


def test_every_name_that_a_page_imports_exists() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for module, names in re.findall(r"from (fedac[\w.]*) import ([\w, ]+)", page.read_text()):
            for name in names.replace(" ", "").split(","):
                assert hasattr(import_module(module), name), f"{page.name} uses {module}.{name}"


def test_the_paper_map_names_existing_tests() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert all(cells), row
        for test in re.findall(r"`(tests/[^`]+)`", row):
            assert (ROOT / test).exists(), test
