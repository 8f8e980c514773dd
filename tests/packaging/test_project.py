# SPDX-License-Identifier: Apache-2.0
"""What the files around the package say agrees with the package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import fedac

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_yaml(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version():
    citation = read_yaml(ROOT / "CITATION.cff")
    assert (citation["version"], citation["license"]) == (fedac.__version__, PROJECT["license"])
    (paper,) = citation["references"]
    assert paper["title"] == "Federated Accelerated Stochastic Gradient Descent"


def test_the_changelog_has_this_version_with_the_date_of_the_citation():
    text = (ROOT / "CHANGELOG.md").read_text()
    first, *later = re.findall(r"^## (.*)", text, re.MULTILINE)
    released = later if first == "Unreleased" else [first, *later]
    date = read_yaml(ROOT / "CITATION.cff")["date-released"]
    assert released[0] == f"[{fedac.__version__}] - {date}"
    dates = [re.fullmatch(r"\[\d+\.\d+\.\d+\] - (\d{4}-\d\d-\d\d)", each)[1] for each in released]
    assert dates == sorted(dates, reverse=True)


def test_wheels_that_pages_name_are_of_this_version():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        name for page in pages for name in re.findall(r"fedac-(\d[\d.]*)-py3", page.read_text())
    }
    assert named == {fedac.__version__}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_what_exists(path):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in read_yaml(path)["jobs"].values():
        if "uses" in job:  # another workflow, which can be called
            called = read_yaml(ROOT / job["uses"])
            assert "workflow_call" in called[True]  # YAML reads `on` as a boolean
            continue
        assert job["timeout-minutes"] <= 60
        lines = "\n".join(step.get("run", "") for step in job["steps"])
        for target in re.findall(r"make (\w+)", lines):
            assert target in targets
        for name in re.findall(r"scripts/\S+\.py|docker/\S+|tests/\w+", lines):
            assert (ROOT / name).exists(), name


def test_every_supported_python_is_tested():
    """The matrices may try further versions before they are declared."""
    prefix = "Programming Language :: Python :: 3."
    declared = [
        name[len(prefix) - 2 :] for name in PROJECT["classifiers"] if name.startswith(prefix)
    ]
    assert declared
    assert PROJECT["requires-python"] == f">={declared[0]}"
    for workflow, job in (("tests", "newest"), ("build", "wheel")):
        jobs = read_yaml(ROOT / ".github" / "workflows" / f"{workflow}.yml")["jobs"]
        assert jobs[job]["strategy"]["matrix"]["python"][: len(declared)] == declared


def test_the_conda_environment_has_the_dependencies_of_the_package():
    dependencies = read_yaml(ROOT / "environment.yml")["dependencies"]
    conda = {each for each in dependencies if isinstance(each, str)} - {"pip"}
    python = f"python{PROJECT['requires-python']}"
    # conda-forge's package without the windows of Qt
    ours = {each.replace("matplotlib>", "matplotlib-base>") for each in PROJECT["dependencies"]}
    assert conda == ours | {python}
    assert dependencies[-1] == {"pip": ["."]}


def test_the_node_has_what_the_package_allows():
    """A node installs Flower and NumPy by itself, without Ray and the simulator's libraries."""
    installed = re.findall(r'"(\w+[<>=][^"]*)"', (ROOT / "docker/node.Dockerfile").read_text())
    (flower,) = PROJECT["optional-dependencies"]["flower"]
    numpy = next(each for each in PROJECT["dependencies"] if each.startswith("numpy"))
    assert installed == [numpy, flower.replace("[simulation]", "")]


@pytest.mark.parametrize("path", sorted((ROOT / "docker").iterdir()), ids=lambda path: path.stem)
def test_containers_copy_what_the_wheel_is_made_of_and_do_not_run_as_root(path):
    ignored, *kept = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert ignored == "*"
    kept = {name.removeprefix("!") for name in kept if name.startswith("!")}
    assert kept == {"LICENSE", "README.md", "pyproject.toml", "src", "sweeps"}
    words = [line.split() for line in path.read_text().splitlines()]
    assert [line[1] for line in words if line[:1] == ["USER"]] == ["1000"]
    for base in (line[1] for line in words if line[:1] == ["FROM"]):
        assert re.fullmatch(r"python:3\.\d+-slim-\w+", base)


def test_hints_name_packages_as_the_extras_do():
    """Who installed a wheel or a checkout cannot install `fedac[torch]` by its name."""
    hints = {
        hint
        for path in (ROOT / "src").rglob("*.py")
        for hint in re.findall(r"pip install ('[^']+'|\w+)", path.read_text())
    }
    (flower,) = PROJECT["optional-dependencies"]["flower"]  # the newest may be too new
    assert hints == {"pyarrow", "ray", "torch", f"'{flower}'"}


def test_sources_name_their_license():
    line = f"# SPDX-License-Identifier: {PROJECT['license']}"
    folders = ("src", "tests", "benchmarks", "scripts", "examples")
    sources = [
        path
        for folder in folders
        for suffix in ("py", "sh")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    sources += [
        *WORKFLOWS,
        *(ROOT / "docker").iterdir(),
        ROOT / "environment.yml",
        ROOT / ".ci/run",
    ]
    assert len(sources) > 300
    without = []
    for path in sources:
        first, *others = path.read_text(encoding="utf-8").splitlines() or [""]
        if first.startswith("#!"):
            first = others[0]
        if first != line:
            without.append(str(path.relative_to(ROOT)))
    assert without == []


def test_links_of_the_project_pages_lead_somewhere():
    for page in ("CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / page).read_text()):
            assert (ROOT / target).exists(), f"{page} links to {target}"


def test_files_that_security_names_exist():
    text = (ROOT / "SECURITY.md").read_text()
    for name in re.findall(r"`(fedac/[\w/]+\.py)`", text):
        assert (ROOT / "src" / name).exists(), name


def compare(tmp_path, before: float, now: float, *, at_most: bool) -> tuple[int, str]:
    for name, ratio in (("before", before), ("now", now)):
        line = {"what": "a line", "ratio": ratio, "at_most": at_most}
        (tmp_path / name).write_text(json.dumps({"lines": [line]}))
    script = ROOT / "scripts" / "compare_benchmarks.py"
    line = [sys.executable, script, tmp_path / "before", tmp_path / "now"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout


def test_a_benchmark_that_became_worse_is_said(tmp_path):
    assert compare(tmp_path, 100.0, 80.0, at_most=False)[0] == 0
    code, out = compare(tmp_path, 100.0, 50.0, at_most=False)
    assert (code, "| a line | 100 | 50 | 2.00 **worse** |" in out) == (1, True)
    assert compare(tmp_path, 100.0, 200.0, at_most=False)[0] == 0
    assert compare(tmp_path, 0.1, 0.2, at_most=True)[0] == 1
