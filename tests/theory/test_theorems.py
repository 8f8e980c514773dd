# SPDX-License-Identifier: Apache-2.0
"""The list of theorems, and the pages that describe them."""

import importlib
import operator
import re
from pathlib import Path

import pytest

from fedac.algorithms import get
from fedac.theory import THEOREMS, Theorem, theorem

ROOT = Path(__file__).parents[2]
every_theorem = pytest.mark.parametrize("one", THEOREMS, ids=lambda one: one.label)


@every_theorem
def test_a_theorem_is_found_by_its_label(one: Theorem) -> None:
    assert theorem(one.label) is one
    assert [other.name for other in THEOREMS].count(one.name) == 1


@every_theorem
def test_a_theorem_is_in_one_place(one: Theorem) -> None:
    sources = (ROOT / "src" / "fedac" / "theory").rglob("*.py")
    text = "".join(source.read_text() for source in sources)
    assert text.count(f'label="{one.label}"') == 1


@every_theorem
def test_its_step_size_is_for_its_algorithm(one: Theorem) -> None:
    letters = {"L": 2.0, "mu": 0.5, "sigma": 2.0, "Q": 1.0, "M": 2, "K": 16, "T": 1024}
    chosen = one.step_size(**letters, D0=1.0, Psi0=1.0, Phi0=1.0)
    mu = letters["mu"] if one.strongly_convex else chosen.lam or 1.0
    assert chosen.hp == get(one.algorithm).couple(eta=chosen.eta, mu=mu, K=16)


@every_theorem
def test_the_page_describes_it(one: Theorem) -> None:
    page = (ROOT / "docs" / "theory.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith(f"| {one.label} |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2] == f"asm{one.assumption}"
    if not one.strongly_convex:
        assert cells[3] == str(one.least_steps)
    if not one.label.startswith("mb-"):
        assert cells[1].startswith(get(one.algorithm).label.partition(" ")[0])


# Every theorem, lemma, proposition and claim of the paper, by label.
STATEMENTS = [
    "fedac:a1",
    "fedavg:a1",
    "fedacii:a2",
    "fedavg:a2",
    "fedaci:conv:sketch",
    "instability:sketch",
    "fedaci:stab:sketch",
    "fedaci:full",
    "fedaci:conv:main",
    "fedaci:stab:main",
    "fedaci:general:eta",
    "fedaci:conv:1",
    "fedaci:conv:2",
    "fedaci:conv:2:claim",
    "fedaci:stab:1",
    "fedaci:stab:bound",
    "fedaci:stab:2",
    "fedaci:stab:3",
    "fedac:general:stab",
    "fedaci:stab:3:1",
    "fedaci:stab:left1",
    "fedaci:stab:left2",
    "fedacii:a2:full",
    "fedacii:conv:main",
    "fedacii:stab:main",
    "fedacii:a2:general:eta",
    "fedacii:conv:1",
    "fedacii:conv:2",
    "fedacii:stab:1",
    "fedacii:stab:bound",
    "fedacii:stab:2",
    "fedacii:stab:3",
    "fedacii:stab:3:1",
    "fedacii:stab:left",
    "fedacii:a1:full",
    "fedacii:a1:stab:main",
    "fedacii:a1:general:eta",
    "fedacii:a1:stab:2",
    "fedacii:a1:stab:3",
    "fedavg:a2:full",
    "fedavg:a2:conv:main",
    "fedavg:a2:stab:main",
    "fedavg:a2:general:eta",
    "fedavg:a2:conv:onestep",
    "fedavg:a2:stab:1",
    "fedaci:a1:gcvx",
    "fedacii:a1:gcvx",
    "fedacii:a2:gcvx",
    "fedavg:a2:gcvx",
    "fedaci:gcvx:1",
    "fedaci:gcvx:2",
    "fedaci:gcvx:0",
    "fedacii:a1:gcvx:1",
    "fedacii:a1:gcvx:2",
    "fedacii:gcvx:0",
    "fedacii:a2:gcvx:1",
    "fedacii:a2:gcvx:2",
    "fedavg:a2:gcvx:1",
    "instability:full",
    "instability:1",
    "instability:2",
    "instability:induction",
    "helper:blocknorm",
    "helper:unbalanced:ineq",
    "helper:3rd:Lip",
    "helper:diff:4th",
    "helper:inv:times:log",
]


def test_every_statement_of_the_paper_is_on_the_map() -> None:
    page = (ROOT / "docs" / "paper-map.md").read_text()
    named = set(re.findall(r"[a-zA-Z]+(?::\w+)+", page))
    assert set(STATEMENTS) <= named


def test_the_notes_name_the_slips() -> None:
    page = (ROOT / "docs" / "paper-notes.md").read_text()
    for slip in ("instability:full", "fedacii:a1:gcvx", "fedaci:gcvx:2", "helper:blocknorm"):
        assert slip in page


def test_the_paper_map_points_to_code_that_exists() -> None:
    pytest.importorskip("torch")  # the map names code of every runtime
    pytest.importorskip("flwr")
    page = (ROOT / "docs" / "paper-map.md").read_text()
    places = re.findall(r"((?:`[\w.]+`, )*`[\w.]+`) in `(fedac/[\w/]+)\.py`", page)
    assert len(places) > 20
    for names, path in places:
        module = importlib.import_module(path.replace("/", "."))
        for name in re.findall(r"`([\w.]+)`", names):
            assert operator.attrgetter(name)(module), name
    for one in THEOREMS:
        assert one.label.startswith("mb-") or one.label in page
    for path in re.findall(r"`(fedac/[\w/]+\.py)`", page):
        assert (ROOT / "src" / path).exists(), path
