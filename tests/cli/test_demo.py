"""`fedac demo`, on a grid that takes a moment."""

from __future__ import annotations

import struct

import pytest

from fedac.experiments import demo

LABELS = ["FedAc-I", "MB-AC-SGD", "MB-SGD", "FedAvg"]


@pytest.fixture(autouse=True)
def _tiny_grid(monkeypatch):
    for name, value in {"M": 16, "T": 32, "KS": (1, 4), "ETAS": (0.2, 0.5)}.items():
        monkeypatch.setattr(demo, name, value)


def verdict(out):
    (line,) = (line for line in out.splitlines() if line.startswith(("Fewest", "No algorithm")))
    return line


def test_table_winner_and_figure(fedac, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "TARGET", 10.0)  # all reach it at K=4
    folder = tmp_path / "new" / "földer [red]"
    code, out, err = fedac("demo", "--out", folder)
    assert (code, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("│")] == LABELS
    assert "rounds to reach 10: 16 workers, 32 steps each" in out
    assert verdict(out) == "Fewest rounds: FedAc-I and MB-AC-SGD and MB-SGD and FedAvg, 8."
    assert out.splitlines()[-1] == f"Figure: {folder / 'rounds.png'}"
    image = (folder / "rounds.png").read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", image[16:24]) == (1050, 630)
    assert 10_000 < len(image) < 1_000_000


def test_one_winner(fedac, monkeypatch, tmp_path):
    cells = [
        demo.Cell(name, K, 0.5, suboptimality, 1.0)
        for name, K, suboptimality in [
            ("fedac-i", 4, 1e-4),
            ("mb-ac-sgd", 1, 1e-4),
            ("mb-sgd", 1, 1e-4),
            ("fedavg", 1, 1e-2),
        ]
    ]
    monkeypatch.setattr(demo, "run", lambda objective, on_progress: cells)
    code, out, _ = fedac("demo", "--out", tmp_path)
    assert code == 0
    assert verdict(out) == "Fewest rounds: FedAc-I, 8."
    (missed,) = (line for line in out.splitlines() if "FedAvg" in line)
    assert "more than 32" in missed


def test_nobody_reaches_the_target(fedac, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "TARGET", 1e-12)
    code, out, err = fedac("demo", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert out.count("more than 32") == 4
    assert verdict(out) == "No algorithm reached the target of 1e-12."
    assert (tmp_path / "rounds.png").stat().st_size > 10_000


def test_interrupt(fedac, monkeypatch, tmp_path):
    def run(objective, on_progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", run)
    assert fedac("demo", "--out", tmp_path) == (130, "", "fedac: interrupted\n")
