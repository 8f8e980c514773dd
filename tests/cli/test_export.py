# SPDX-License-Identifier: Apache-2.0
"""`fedac export`: the runs of a store as files."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest


@pytest.fixture
def folder(fedac, small, tmp_path):
    """Give the folder of a sweep of two runs."""
    grid = ("--algorithms", "fedavg", "--workers", 4, "--local-steps", 2, "--steps", 8)
    where = ("--dataset", small, "--l2", 1e-2, "--out", tmp_path / "out")
    assert fedac("sweep", *where, *grid, "--eta", "0.5,0.1").code == 0
    return tmp_path / "out"


def test_csv(fedac, folder, tmp_path):
    path = tmp_path / "runs.csv"
    assert fedac("export", folder, "--csv", path) == (0, "", f"2 runs written to {path}\n")
    lines = path.read_text().splitlines()
    assert lines[0] == (
        "dataset,l2,algorithm,M,K,T,eta,seed,status,best_loss,final_loss,"
        "best_suboptimality,final_suboptimality,rounds,megabytes,link_seconds"
    )
    assert lines[1].startswith("small,0.01,fedavg,4,2,8,0.1,1,ok,1.")
    assert len(lines) == 3


@pytest.mark.skipif(os.name != "posix", reason="needs /dev/null")
def test_a_device_stays_one(fedac, folder):
    code, out, err = fedac("export", folder, "--csv", os.devnull)
    assert (code, out, err) == (0, "", f"2 runs written to {os.devnull}\n")
    assert Path(os.devnull).is_char_device()


def test_traces(fedac, folder, tmp_path):
    path = tmp_path / "traces.csv"
    outcome = fedac("export", folder, "--traces", path)
    assert outcome == (0, "", f"4 recorded losses written to {path}\n")
    traces = pd.read_csv(path)
    assert list(traces.step) == [0, 8, 0, 8]
    assert list(traces.eta) == [0.1, 0.1, 0.5, 0.5]
    assert (traces.suboptimality > 0).all()


def test_stdout(fedac, folder, tmp_path):
    fedac("export", folder, "--csv", tmp_path / "runs.csv")
    code, out, err = fedac("export", folder, "--csv", "-")
    assert (code, err) == (0, "2 runs written to stdout\n")
    assert out == (tmp_path / "runs.csv").read_text()
    assert fedac("export", folder, "--traces", "-").out.startswith("key,dataset,l2,")
    assert not Path("-").exists()


def test_parquet(fedac, folder, tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "runs.parquet"
    assert fedac("export", folder, "--parquet", path) == (0, "", f"2 runs written to {path}\n")
    assert list(pd.read_parquet(path).eta) == [0.1, 0.5]


def test_refusals(assert_refused, folder, tmp_path):
    assert_refused(
        "export", folder, saying="no output given: pass --csv FILE, --traces FILE or --parquet FILE"
    )
    assert_refused("export", tmp_path / "gone", "--csv", tmp_path / "x.csv", saying="no sweep in")
    # Before any other file is written.
    gone, kept = tmp_path / "gone" / "x.csv", tmp_path / "kept.csv"
    saying = f"--traces: cannot write '{gone}': there is no folder '{gone.parent}'"
    assert_refused("export", folder, "--csv", kept, "--traces", gone, saying=saying)
    assert not kept.exists()


def test_a_report_goes_to_a_folder_that_exists(assert_refused, folder, tmp_path):
    gone = tmp_path / "gone" / "report.html"
    assert_refused("report", folder, "--out", gone, saying=f"there is no folder '{gone.parent}'")
    assert not gone.parent.exists()
    # Before the store is read.
    assert_refused("report", tmp_path / "x", "--out", tmp_path, saying=f"'{tmp_path}' is a folder")


def test_two_outputs_need_two_files(fedac, folder, tmp_path):
    same = tmp_path / "same.csv"
    code, out, err = fedac("export", folder, "--csv", same, "--traces", same)
    assert (code, out) == (2, "")
    assert "two outputs go to the same file" in err
    assert not same.exists()
