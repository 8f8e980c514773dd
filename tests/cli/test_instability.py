# SPDX-License-Identifier: Apache-2.0
"""`fedac instability`: tables, JSON, figures, and what it refuses."""

from __future__ import annotations

import json
import struct

import pytest
from rich.console import Console

from fedac.theory.instability import fedac_separation, predicted_separation

pytestmark = pytest.mark.slow

KEYS = [
    "kappa",
    "blocks",
    "bits",
    "log10_delta",
    "log10_eps",
    "separation",
    "largest_relative_error",
    "figures",
    "seconds",
]


def read(outcome):
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("\n") == 1
    return json.loads(outcome.out)


def rows(out):
    """Return the cells of all table rows."""
    lines = [line for line in out.splitlines() if line.startswith("│")]
    return [[float(cell) for cell in line.strip("│").split("│")] for line in lines]


def test_json(fedac):
    result = read(fedac("instability", "--kappa", 49, "--blocks", 7, "-K", "2,8", "--json"))
    assert list(result) == KEYS
    assert (result["kappa"], result["blocks"], result["figures"]) == (49.0, 7, [])
    assert result["log10_eps"] < result["log10_delta"] < -2
    assert result["bits"] > 64
    assert 0 <= result["largest_relative_error"] < 1e-12
    assert [row["block"] for row in result["separation"]] == list(range(1, 8))
    for k, row in enumerate(result["separation"], start=1):
        assert list(row) == ["block", "measured", "exact", "bound", "fedac_i"]
        expected = predicted_separation(49.0, k)._asdict()
        assert row["measured"] == pytest.approx(expected, rel=1e-9)
        assert row["exact"] == expected
        assert row["bound"] == {"w_ag": 1.02**k / 2, "w": 1.02**k}
        for K in (2, 8):
            assert row["fedac_i"][str(K)] == fedac_separation(49.0, 7, K=K)[k]._asdict()


def test_tables_on_stdout_and_precision_on_stderr(fedac):
    code, out, err = fedac("instability")
    assert code == 0
    assert [line.strip() for line in out.splitlines() if "kappa" in line] == [
        "|w - u| / eps, kappa=100",
        "|w_ag - u_ag| / eps, kappa=100",
    ]
    assert [row[0] for row in rows(out)] == 2 * [1, *range(2, 21, 2)]
    for sequence, table in (("w", rows(out)[:11]), ("w_ag", rows(out)[11:])):
        fedac_i = [fedac_separation(100.0, 20, K=K) for K in (4, 16, 64)]
        for k, agd, exact, bound, *others in table:
            k = int(k)
            assert agd == exact == shown(predicted_separation(100.0, k), sequence)
            assert bound == pytest.approx(1.02**k / (1 if sequence == "w" else 2), rel=1e-2)
            assert others == [shown(apart[k], sequence) for apart in fedac_i]
    assert err.count("\n") == 1
    assert " bits: eps = 1." in err


def shown(separation, sequence):
    return float(f"{abs(getattr(separation, sequence)):.3g}")


@pytest.mark.parametrize("width", [30, 60, 100])
def test_a_narrow_terminal_cuts_no_number(fedac, monkeypatch, width):
    monkeypatch.setattr("fedac.cli.console.results_console", lambda: Console(width=width))
    out = fedac("instability", "--kappa", "1e4", "--blocks", 40, "-K", "1,4,16,64").out
    assert "\u2026" not in out
    for sequence in ("w", "w_ag"):
        for apart in (predicted_separation(1e4, 40), fedac_separation(1e4, 40, K=64)[40]):
            assert f"{abs(getattr(apart, sequence)):.3g}" in out


@pytest.mark.parametrize(("blocks", "last"), [(1, [1]), (3, [1, 2, 3]), (25, [18, 21, 24, 25])])
def test_the_last_block_is_always_there(fedac, blocks, last):
    code, out, _ = fedac("instability", "--blocks", blocks)
    assert code == 0
    half = rows(out)[: len(rows(out)) // 2]
    assert len(half) <= 12
    assert [row[0] for row in half[-len(last) :]] == last


@pytest.mark.parametrize(
    "arguments", [("--json",), ("--kappa", 25, "--blocks", 1), ("--blocks", 60)]
)
def test_figure(fedac, tmp_path, arguments):
    folder = tmp_path / "new" / "földer [red]"
    outcome = fedac("instability", "--out", folder, *arguments)
    paths = [folder / "instability.png", folder / "instability.pdf"]
    if "--json" in arguments:
        assert read(outcome)["figures"] == [str(path) for path in paths]
    else:
        assert outcome.code == 0
        assert outcome.out.splitlines()[-2:] == [f"Figure: {path}" for path in paths]
    image = paths[0].read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", image[16:24]) == (1400, 840)
    assert paths[1].read_bytes().startswith(b"%PDF")


def test_many_blocks(fedac):
    result = read(fedac("instability", "--kappa", "1e4", "--blocks", 60, "--json"))
    # Doubles end at 1e-308.
    assert result["log10_delta"] < -600
    assert result["largest_relative_error"] < 1e-12
    assert abs(result["separation"][-1]["measured"]["w"]) > 1e18


@pytest.mark.parametrize("value", ["24.9", "0", "-100", "nan", "inf", "1e13"])
def test_kappa_out_of_range(assert_refused, value):
    assert_refused(
        "instability", "--kappa", value, saying="kappa must be a number from 25 to 1e+12, got "
    )


@pytest.mark.parametrize("value", ["0", "-1", "101", f"{10**30}"])
def test_blocks_out_of_range(assert_refused, value):
    limit = "a whole number, at least 1" if value in ("0", "-1") else "at most 100"
    message = f"blocks must be {limit}, got {value}"
    assert_refused("instability", "--blocks", value, saying=message)


@pytest.mark.parametrize("option", ["--kappa", "--blocks"])
@pytest.mark.parametrize("value", ["", "abc", "1,2"])
def test_not_a_number(assert_refused, option, value):
    assert_refused("instability", option, value, saying=f"'{option}'")


@pytest.mark.parametrize("value", ["", "abc", "4,", "4.5", "4;16"])
def test_intervals_must_be_whole_numbers_separated_by_commas(assert_refused, value):
    message = f"--local-steps takes whole numbers separated by commas, got '{value}'"
    assert_refused("instability", "-K", value, saying=message)


@pytest.mark.parametrize("value", ["0", "4,-1", f"{10**400}", "1,2,3,4,5"])
def test_intervals_out_of_range(assert_refused, value):
    message = "--local-steps takes up to 4 numbers from 1 to 100000000"
    assert_refused("instability", "-K", value, saying=message)


def test_the_same_interval_twice(assert_refused):
    assert_refused("instability", "-K", "4,4", saying="--local-steps: 4 is listed twice")


def test_out_must_be_a_folder(assert_refused, write):
    assert_refused("instability", "--out", write(b""), saying="--out takes a writable folder")
    assert_refused("instability", "--out", "", saying="the path is empty")


def test_a_refused_command_creates_nothing(assert_refused, tmp_path):
    assert_refused("instability", "--kappa", 1, "--out", tmp_path / "new", saying="kappa must")
    assert not (tmp_path / "new").exists()
