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


def test_the_changelog_begins_with_this_version_or_what_comes_after_it():
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading
    assert heading[1] in ("Unreleased", fedac.__version__)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_what_exists(path):
    workflow = read_yaml(path)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        lines = [step.get("run", "") for step in job["steps"]]
        for target in re.findall(r"make (\w+)", "\n".join(lines)):
            assert target in targets
        for script in re.findall(r"scripts/\S+\.py", "\n".join(lines)):
            assert (ROOT / script).exists()


def test_every_supported_python_is_tested():
    matrix = read_yaml(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["newest"]["strategy"]
    prefix = "Programming Language :: Python :: 3."
    declared = [
        name[len(prefix) - 2 :] for name in PROJECT["classifiers"] if name.startswith(prefix)
    ]
    assert declared
    assert declared == matrix["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_links_of_the_project_pages_lead_somewhere():
    for page in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
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
