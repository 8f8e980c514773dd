# SPDX-License-Identifier: Apache-2.0
"""The Python of README and docs runs as it stands; of tutorials, all of it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from printed import same_but_for_rounding

from fedac.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FRONT = [ROOT / "README.md", ROOT / "docs" / "index.md"]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def python_blocks(page: Path) -> list[tuple[str, str]]:
    """Return the blocks of a page, each with the output right below it."""
    pattern = r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL)


def test_home_has_the_block_of_the_readme() -> None:
    readme, home = map(python_blocks, FRONT)
    assert readme == home != []


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if p != FRONT[1]], ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # examples may write files
    mpl.use("Agg")
    names: dict[str, object] = {"__name__": page.stem}
    for block, output in python_blocks(page):
        with redirect_stdout(StringIO()) as said:
            exec(compile(block, str(page), "exec", dont_inherit=True), names)
        if output:
            same_but_for_rounding(said.getvalue(), output)
    plt.close("all")


def commands(page: Path) -> list[list[str]]:
    """Return the words of all commands of a page: on lines of their own and within sentences."""
    text = re.sub(
        r"^```.*?^```|<div.*?</div>", "", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    typed = re.findall(r"^ {4}(\S.*)", text, re.MULTILINE)
    known = r"`((?:fedac|git|make|pip|python|torchrun) [^`]+)`"
    found = typed + re.findall(known, text.replace("\n", " "))
    return [shlex.split(command, comments=True) for command in found]


@pytest.mark.parametrize("page", FRONT, ids=lambda page: page.name)
def test_every_command_of_the_front_pages_is_accepted(page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    found = commands(page)
    assert len(found) >= 3
    for program, *arguments in found:
        if program == "fedac":
            with app.make_context("fedac", arguments[:1]) as context:
                command = app.get_command(context, arguments[0])
                assert command is not None, arguments
                command.make_context(arguments[0], arguments[1:], parent=context)
        elif program == "make":
            assert set(arguments) <= set(targets)
        elif program == "pip":
            install, what = arguments
            extras = re.fullmatch(r"\.(?:\[(.+)\])?", what)
            assert install == "install", arguments
            assert extras, f"not on an index yet: pip install {what}"
            asked = set((extras[1] or "").split(",")) - {""}
            assert asked <= set(project["optional-dependencies"])
        else:
            assert program == "python", program
            assert (ROOT / arguments[0]).exists(), arguments


@pytest.mark.slow
def test_cheap_commands_of_the_readme_run(tmp_path: Path) -> None:
    """The demo and comparisons run in tests/cli and tests/packaging, the rest takes minutes."""
    cheap = [words for words in commands(FRONT[0]) if words[1] == "methods" or "--dry-run" in words]
    assert len(cheap) == 2
    for _, *arguments in cheap:
        if "--out" in arguments:
            arguments[arguments.index("--out") + 1] = str(tmp_path / "runs")
        run = [sys.executable, "-m", "fedac", *arguments]
        ran = subprocess.run(run, capture_output=True, text=True, cwd=ROOT)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip()


@pytest.mark.parametrize("page", FRONT, ids=lambda page: page.name)
def test_every_block_of_the_front_pages_is_run(page: Path) -> None:
    """Python runs and prints the text below it; fragments (py) run in the next two tests."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    languages = [language for language, _ in blocks]
    assert languages[:2] == ["python", "text"]
    assert languages[2:] == (["py"] * 3 if page.name == "README.md" else [])
    assert 1 + blocks[0][1].strip().count("\n") < 10


def fragments() -> list[str]:
    return re.findall(r"```py\n(.*?)```", FRONT[0].read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_lines_for_pytorch_run(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        names = {"torch": torch, "model": torch.nn.Linear(3, 1)}
        exec(fragments()[0], names)
        before = torch.nn.utils.parameters_to_vector(names["model"].parameters()).detach().clone()
        for _ in range(64):
            names["optimizer"].zero_grad()
            names["model"](torch.ones(2, 3)).mean().backward()
            names["optimizer"].step()
        after = torch.nn.utils.parameters_to_vector(names["model"].parameters())
        assert not torch.equal(before, after)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_the_lines_for_flower_run(tmp_path: Path, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("flwr")
    from flwr.clientapp import ClientApp

    from fedac import flower

    monkeypatch.chdir(tmp_path)  # the checkpoint
    client, server = fragments()[1:]
    rows = [(torch.ones(2, 3), torch.ones(2, 1))] * 32
    loader = torch.utils.data.DataLoader(rows, batch_size=None)

    def train(model, loader, epochs, optimizer) -> float:
        loss = torch.tensor(0.0)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    names = {"train": train, "loader": loader, "epochs": 1}
    names |= {name: getattr(flower, name) for name in flower.__all__}
    body = "".join(f"    {line}\n" for line in client.splitlines())
    exec(f"def answer(message, context, model):\n{body}", names)
    nodes = flower.tell_number(ClientApp())
    nodes.train()(lambda message, context: names["answer"](message, context, make_model()))

    def make_model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Linear(3, 1)

    names |= {"grid": flower.InProcessGrid(nodes, 2), "model": make_model()}
    exec(server, names)
    last = names["result"].history.rounds[-1]
    assert (last.good, last.bad) == (2, 0)
    assert last.metrics["train/train_loss"] < 1e-3
    assert (tmp_path / "run.npz").exists()


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
