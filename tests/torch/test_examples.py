# SPDX-License-Identifier: Apache-2.0
"""The examples, with few steps, and the programs in the PyTorch pages of docs/."""

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import fedac

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run_example(processes, name: str, *arguments) -> str:
    path = str(EXAMPLES / f"{name}.py")
    ended = processes("example", path=path, arguments=arguments)
    assert [process.code for process in ended] == [0] * 4, ended[0].err
    return ended[0].out


def test_the_logistic_example_equals_the_simulator(processes) -> None:
    rows = run_example(processes, "torch_logistic").splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["fedac-i", "fedac-ii", "fedac-vanilla", "fedavg"]
    assert all(float(row.split()[-1]) < 1e-9 for row in rows)


def test_the_overlap_example(processes) -> None:
    rows = run_example(processes, "torch_overlap", 32).splitlines()[2:]
    assert len(rows) == 6
    assert all(float(value) > 0 for row in rows[:4] for value in row.split()[-6:])
    assert all(float(row.split()[-1]) > 0 for row in rows[4:])


def test_the_digits_example(processes, tmp_path: Path, capsys) -> None:
    example = runpy.run_path(str(EXAMPLES / "torch_digits.py"))
    run_example(processes, "torch_digits", str(tmp_path), 64, 1)
    curves = np.load(tmp_path / "curves.npy")
    assert curves.shape == (4, 1, 4, 3)
    assert (curves[:, 0, -1, 1] > 0.3).all()  # accuracy, above chance
    sent = curves[:, 0, -1, 0]
    assert sent[0] == sent[1] == pytest.approx(16 * sent[2], rel=0.01)
    assert sent[3] == pytest.approx(2 * sent[2], rel=0.01)
    example["show"](curves)
    assert "FedAc, K=16" in capsys.readouterr().out
    example["draw"](curves, tmp_path / "digits.png")
    assert (tmp_path / "digits.png").stat().st_size > 10_000


# Steps, K, width, layers, heads, context, batch of a worker, windows to measure on.
TINY = [32, 4, 16, 1, 2, 16, 2, 8]


def test_the_language_model_learns_by_all_methods(processes, tmp_path: Path, capsys) -> None:
    example = runpy.run_path(str(EXAMPLES / "torch_gpt.py"))
    settings, size = example["SETTINGS"], example["Size"](*TINY)
    runs = [[method, method, setting, 1] for method, setting in settings.items()]
    run_example(processes, "torch_gpt", str(tmp_path), runs, TINY)
    results = {method: example["read"](tmp_path, method) for method in settings}
    for result in results.values():
        losses = [loss for _, loss in result["losses"]]
        assert losses[-1] < losses[0] < 7  # nats per byte; of 256 equal chances it is 5.5
    sent = {method: result["sent"] for method, result in results.items()}
    assert sent["ddp"] == pytest.approx(4 * sent["diloco"], rel=0.01)  # K = 4
    assert sent["diloco-int8"] == pytest.approx(sent["diloco"] / 4, rel=0.03)
    assert sent["fedac"] == pytest.approx(2 * sent["fedac-local"], rel=0.01)

    curves = {m: np.array([example["costs"](result, size)]) for m, result in results.items()}
    megabytes = {method: curve[0, -1, 1] for method, curve in curves.items()}
    assert megabytes["diloco"] == pytest.approx(1.5e-6 * sent["diloco"])  # a ring of four
    assert megabytes["diloco-int8"] == pytest.approx(3e-6 * sent["diloco-int8"])  # to all others
    seconds = curves["diloco"][0, -1, 2]
    assert seconds == pytest.approx(32 * results["diloco"]["seconds"] + megabytes["diloco"] / 12.5)
    example["show"](curves)
    assert "DiLoCo, int8" in capsys.readouterr().out
    example["draw"](curves, tmp_path / "gpt.png")
    assert (tmp_path / "gpt.png").stat().st_size > 10_000


@pytest.mark.parametrize("method", ["diloco", "diloco-int8", "fedac-local", "gpa"])
def test_the_language_model_killed_and_resumed_ends_with_the_same_bits(
    processes, tmp_path: Path, method: str
) -> None:
    example = runpy.run_path(str(EXAMPLES / "torch_gpt.py"))
    run = ["undisturbed", method, example["SETTINGS"][method], 1, "test"]
    run_example(processes, "torch_gpt", str(tmp_path), [run], TINY)
    killed = ["killed", *run[1:], 21]
    path = str(EXAMPLES / "torch_gpt.py")
    ended = processes("example", path=path, arguments=[str(tmp_path), [killed], TINY])
    assert ended[3].code == -9
    assert all(process.code == 1 and "WorkerLostError" in process.err for process in ended[:3])
    run_example(processes, "torch_gpt", str(tmp_path), [killed[:-1]], TINY)
    first, second = (example["read"](tmp_path, name) for name in ("undisturbed", "killed"))
    assert [first[key] for key in ("losses", "sent", "weights")] == [
        second[key] for key in ("losses", "sent", "weights")
    ]


def blocks(language: str) -> list[str]:
    """Return the blocks of the pages that are marked "python", or "py" if they need processes."""
    pages = ("pytorch", "pytorch-guide", "pytorch-failures", "pytorch-clients")
    text = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in pages)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def program_with(text: str) -> str:
    """Return the only program of the pages that has some text."""
    (program,) = [block for block in blocks("py") if text in block]
    return program


def test_every_program_of_the_pages_is_run_here() -> None:
    marks = [
        "note=", "join()", "PER_NODE", "rebuild", "skip-worker", "Decay", "+cv+", "wire=",
        "mimelite",
    ]  # fmt: skip
    assert sorted(map(program_with, marks)) == sorted(blocks("py"))


def test_the_program_with_adamw_ends_with_equal_workers(processes, tmp_path: Path) -> None:
    program = program_with("note=")
    first, *others = run_program(processes, tmp_path, program)
    again = run_program(processes, tmp_path, program)  # it resumes at the end
    assert all(torch.equal(first, w) for w in (*others, *again))


@pytest.mark.parametrize("text", ["join()", "PER_NODE"])
def test_programs_that_end_with_equal_workers(processes, tmp_path: Path, text: str) -> None:
    first, *others = run_program(processes, tmp_path, program_with(text))
    assert all(torch.equal(first, w) for w in others)


def test_the_program_that_continues_without_a_worker(processes, tmp_path: Path) -> None:
    # Survivors that are no neighbours of the lost one in the ring wait until the time is up.
    program = program_with("rebuild").replace("timeout=60", "timeout=20")
    (tmp_path / "program.py").write_text(program)
    *survivors, lost = processes("program", path=str(tmp_path / "program.py"))
    assert lost.code == 1
    assert [process.code for process in survivors] == [0, 0, 0], survivors[0].err
    assert all(torch.equal(process.result, survivors[0].result) for process in survivors)


def test_the_changes_for_frameworks_are_those_of_the_examples() -> None:
    page = (ROOT / "docs" / "pytorch-guide.md").read_text()
    page = page[page.index("## Lightning and Accelerate") :]
    lightning, accelerate = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)[:2]
    for diff, name in ((lightning, "torch_lightning"), (accelerate, "torch_accelerate")):
        code = "".join((EXAMPLES / f"{name}.py").read_text().split())
        for line in diff.splitlines():
            if line.startswith("+"):
                assert "".join(line[1:].split()) in code, line


def test_the_program_with_clients_equals_the_simulator(processes, tmp_path: Path) -> None:
    program = program_with("Decay")
    names: dict[str, Any] = {}
    exec(blocks("python")[-1], names)  # the same run in the simulator
    for w in run_program(processes, tmp_path, program):
        np.testing.assert_allclose(w, names["result"].best.w, rtol=0, atol=1e-9)


def test_the_program_with_a_composition_equals_the_simulator(processes, tmp_path: Path) -> None:
    program = program_with("+cv+")
    data = fedac.load("synthetic")
    result = fedac.simulate(
        fedac.LogisticRegression(data.X, data.y, l2=1e-3), "fedac-i+cv+nesterov(1,0.3)",
        clients=fedac.split(data, clients=4, by="label", seed=0), batch=4, K=16, T=160, eta=0.2,
        start=np.zeros(data.n_features), seed=1, engine="reference",
    )  # fmt: skip
    for _ in range(2):  # the second time it resumes at the end
        for w in run_program(processes, tmp_path, program):
            np.testing.assert_allclose(w, result.best.w, rtol=0, atol=1e-9)
    memories = [f"run.pt.rank{rank}.step{step}" for rank in range(4) for step in (160, 80)]
    assert sorted(path.name for path in tmp_path.glob("run.pt*")) == ["run.pt", *memories]


def test_the_program_with_a_rounded_wire_equals_the_simulator(processes, tmp_path: Path) -> None:
    program = program_with("wire=")
    data = fedac.load("synthetic")
    result = fedac.simulate(
        fedac.LogisticRegression(data.X, data.y, l2=1e-3), "scaffold", wire="int8",
        clients=fedac.split(data, clients=4, by="label", seed=0), batch=4, K=16, T=160, eta=0.2,
        start=np.zeros(data.n_features), seed=1, engine="reference",
    )  # fmt: skip
    (tmp_path / "program.py").write_text(program)
    for process in processes("program", path=str(tmp_path / "program.py")):
        np.testing.assert_allclose(process.result, result.best.w, rtol=0, atol=1e-9)
        assert process.out == "2860\n"


def test_the_program_with_a_full_gradient_equals_the_simulator(processes, tmp_path: Path) -> None:
    data = fedac.load("synthetic")
    result = fedac.simulate(
        fedac.LogisticRegression(data.X, data.y, l2=1e-3), "mimelite(0.9)",
        clients=fedac.split(data, clients=4, by="label", seed=0), batch=4, K=16, T=160, eta=0.2,
        start=np.zeros(data.n_features), seed=1, engine="reference",
    )  # fmt: skip
    for w in run_program(processes, tmp_path, program_with("mimelite")):
        np.testing.assert_allclose(w, result.best.w, rtol=0, atol=1e-9)


def run_program(processes, folder: Path, program: str) -> list[Any]:
    """Return the w of four processes that run a program of the page."""
    (folder / "program.py").write_text(program)
    ended = processes("program", path=str(folder / "program.py"))
    assert [process.code for process in ended] == [0] * 4, ended[0].err
    return [process.result for process in ended]


@pytest.mark.usefixtures("alone")
def test_the_program_in_the_docs_runs(tmp_path, monkeypatch) -> None:
    program = program_with("skip-worker")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:  # there is a group already
        patch.setattr(dist, "init_process_group", lambda backend: None)
        patch.setattr(dist, "destroy_process_group", lambda: None)
        for _ in range(2):  # the second time it resumes
            names: dict[str, object] = {}
            exec(compile(program, "train.py", "exec"), names)
    assert names["optimizer"].steps == 160
    assert (tmp_path / "run.pt").exists()
