# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of compositions: what ranks remember is in files of their own.

So is the state of an optimizer of PyTorch that stays in its process.
"""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from fedac import Decay
from fedac.errors import InputError
from fedac.torch import LocalOptimizer, synchronize
from fedac.torch._communication import Workers

pytestmark = pytest.mark.slow
alone = pytest.mark.usefixtures("alone")

MEMORY, SERVER, BOTH = "scaffold", "diloco", "fedac-i+cv+nesterov(1,0.3)"
NAMES = [MEMORY, SERVER, BOTH, "scaffnew", "fedac-ii+local", "fedprox(0.3)", "outer-nesterov",
         "feddyn(0.3)", "scaffold-m", "fedac-i+exp"]  # fmt: skip
REMEMBERING = [MEMORY, BOTH, "sgd", "adamw"]  # the last two with a state of their own
NUMBERS = {"lr": 0.1, "mu": 0.1, "local_steps": 2}
BEGIN = runpy.run_path(str(Path(__file__).with_name("workers.py")))["begin"]


class Training:
    """A small model, its optimizer and its synchronizer."""

    def __init__(self, algorithm=MEMORY, *, dtype=torch.float64, seed=0, **options):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)
        self.optimizer, self.averages = BEGIN(
            self.model.parameters(), algorithm, **(NUMBERS | options)
        )

    def run(self, steps: int) -> "Training":
        for _ in range(steps):
            x = torch.sin(torch.arange(8.0).reshape(4, 2) * (self.averages.steps + 1))
            self.optimizer.zero_grad()
            self.model(x.to(self.model[0].weight.dtype)).square().sum().backward()
            self.optimizer.step()
        return self

    def everything(self) -> list[torch.Tensor]:
        tensors = list(self.model.parameters())
        for p in self.model.parameters():
            ours = self.averages.optimizer
            tensors += [*ours.sequences(p), *ours.state[p].values()]
            tensors += self.optimizer.state[p].values()
        return [tensor.detach().clone() for tensor in tensors]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "meeting")


@alone
@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lr", [0.1, Decay(0.1, "1/sqrt(r)")])
def test_a_resumed_run_is_bit_identical(algorithm, dtype, lr, tmp_path: Path) -> None:
    settings = {"algorithm": algorithm, "dtype": dtype, "lr": lr}
    whole = Training(**settings).run(4)
    whole.averages.checkpoint(tmp_path / "a.pt", note=1)
    whole.run(5)
    for evaluating in (False, True):
        resumed = Training(**settings, seed=1)
        if evaluating:
            resumed.optimizer.eval()
        assert resumed.averages.resume(tmp_path / "a.pt") == {"note": 1}
        assert (resumed.optimizer.steps, resumed.optimizer.rounds) == (4, 2)
        resumed.optimizer.train()
        assert same(resumed.run(5).everything(), whole.everything())
        assert resumed.averages.rounds == 4


@alone
@pytest.mark.parametrize("algorithm", [*NAMES, "sgd", "adamw", "adamw, averaged"])
def test_a_checkpoint_before_the_first_step(algorithm: str, tmp_path: Path) -> None:
    whole = Training(algorithm)
    whole.averages.checkpoint(tmp_path / "a.pt")
    resumed = Training(algorithm, seed=1)
    resumed.averages.resume(tmp_path / "a.pt")
    assert same(resumed.run(4).everything(), whole.run(4).everything())


@alone
@pytest.mark.parametrize("algorithm", [MEMORY, SERVER, BOTH])
def test_frozen_parameters_are_saved_without_copies(algorithm: str, tmp_path: Path) -> None:
    w, frozen = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((5,), 2.0), False)
    counter = nn.Parameter(torch.tensor([7]), requires_grad=False)
    optimizer = LocalOptimizer([w, frozen, counter], algorithm, **NUMBERS | {"local_steps": 1})
    averages = synchronize(optimizer)
    w.grad = torch.ones(3)
    optimizer.step()
    assert averages.bytes == 4 * (optimizer.algorithm.vectors_up * 3 + 4)
    averages.checkpoint(tmp_path / "a.pt")
    with torch.no_grad():
        frozen.zero_()
        counter.zero_()
    averages.resume(tmp_path / "a.pt")
    assert (frozen == 2).all()
    assert counter.item() == 7
    assert set(optimizer.state) == {w}


@alone
@pytest.mark.parametrize("algorithm", REMEMBERING)
def test_memories_are_deleted_one_checkpoint_late(algorithm: str, tmp_path: Path) -> None:
    training = Training(algorithm)
    for steps in (2, 4, 6):
        training.run(2).averages.checkpoint(tmp_path / "a.pt")
        kept = [f"a.pt.rank0.step{step}" for step in (steps - 2, steps) if step]
        assert names(tmp_path) == ["a.pt", *kept]
    # Another run does not know what the file on disk needs, until it has written its own.
    (tmp_path / ".a.pt.rank0.step2.part").write_bytes(b"half of it")
    other = Training(algorithm).run(8)
    other.averages.checkpoint(tmp_path / "a.pt")
    assert {"a.pt.rank0.step4", "a.pt.rank0.step6", "a.pt.rank0.step8"} < set(names(tmp_path))
    other.run(2).averages.checkpoint(tmp_path / "a.pt")
    assert names(tmp_path) == ["a.pt", "a.pt.rank0.step10", "a.pt.rank0.step8"]
    # One that has resumed does; leftovers of other steps go.
    (tmp_path / "a.pt.rank0.step12").write_bytes(b"of a process that was killed")
    resumed = Training(algorithm)
    resumed.averages.resume(tmp_path / "a.pt")
    resumed.run(4).averages.checkpoint(tmp_path / "a.pt")
    assert names(tmp_path) == ["a.pt", "a.pt.rank0.step10", "a.pt.rank0.step14"]


@alone
@pytest.mark.parametrize("algorithm", REMEMBERING)
def test_a_checkpoint_that_cannot_be_replaced_keeps_its_memory(
    algorithm, tmp_path, monkeypatch
) -> None:
    training, save = Training(algorithm).run(2), torch.save
    training.averages.checkpoint(tmp_path / "a.pt")

    def fail(content, file):
        if "memory" not in content:
            raise OSError(28, "No space left on device")
        save(content, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail)
        for _ in range(3):
            training.run(2)
            with pytest.raises(OSError, match=r"cannot write the checkpoint .*: No space left"):
                training.averages.checkpoint(tmp_path / "a.pt")
    Training(algorithm).averages.resume(tmp_path / "a.pt")
    training.run(2).averages.checkpoint(tmp_path / "a.pt")
    Training(algorithm).averages.resume(tmp_path / "a.pt")


@alone
@pytest.mark.parametrize(
    ("algorithm", "exchanges"),
    [("fedac-i", 1), (SERVER, 1), (MEMORY, 2), ("adamw", 2), ("sgd, averaged", 1)],
)
def test_processes_wait_for_every_file_once(algorithm, exchanges, tmp_path, monkeypatch) -> None:
    training = Training(algorithm).run(2)
    found, exchange = [], Workers.exchange

    def counted(self, message):
        found.append(message)
        return exchange(self, message)

    monkeypatch.setattr(Workers, "exchange", counted)
    training.averages.checkpoint(tmp_path / "a.pt")
    assert len(found) == exchanges
    assert len(names(tmp_path)) == exchanges


@alone
@pytest.mark.parametrize("algorithm", ["fedac-i", SERVER, MEMORY])
def test_a_second_synchronizer_can_write(algorithm: str, tmp_path: Path) -> None:
    training = Training(algorithm).run(2)
    again = synchronize(training.optimizer)
    again.synchronize()
    again.checkpoint(tmp_path / "a.pt")
    training.run(1)
    with pytest.raises(InputError, match="workers differ after 3 steps"):
        again.checkpoint(tmp_path / "a.pt")


@alone
def test_values_that_could_not_be_read_again_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'made' holds a object; a checkpoint can hold numbers"):
        Training().averages.checkpoint(tmp_path / "a.pt", made=object())
    assert names(tmp_path) == []


@pytest.fixture(params=[MEMORY, "sgd", "adamw"])
def algorithm(request) -> str:
    return str(request.param)


@pytest.fixture
def written(tmp_path: Path, alone, algorithm: str) -> Path:
    Training(algorithm).run(4).averages.checkpoint(tmp_path / "a.pt")
    return tmp_path / "a.pt"


def assert_refused(algorithm: str, path: Path, message: str) -> None:
    tried = Training(algorithm, seed=1).run(2)
    before = tried.everything()
    with pytest.raises(InputError, match=message):
        tried.averages.resume(path, missing_ok=True)
    assert same(tried.everything(), before)
    assert (tried.averages.steps, tried.averages.rounds) == (2, 1)


def test_a_missing_memory(written: Path, algorithm: str) -> None:
    Path(f"{written}.rank0.step4").unlink()
    assert_refused(
        algorithm,
        written,
        r"cannot use '.*a\.pt': '.*a\.pt\.rank0\.step4' is missing, which holds the state of "
        r"rank 0; "
        "keep the files of all ranks next to the checkpoint",
    )


def test_a_damaged_memory(written: Path, algorithm: str) -> None:
    file = Path(f"{written}.rank0.step4")
    whole = file.read_bytes()
    content = torch.load(file, weights_only=True)
    tensors = content["memory"][0] or [*content["inner"]["state"][0].values()]
    remembered = next(tensor for tensor in tensors if tensor.numel() > 1)  # not a count of steps
    numbers = remembered.numpy().tobytes()
    flipped = bytearray(whole)
    flipped[whole.index(numbers)] ^= 1
    for damaged in (whole[:-1], whole[: len(whole) // 2], bytes(flipped), b"", b"hello"):
        file.write_bytes(damaged)
        message = r"rank0\.step4': it is damaged, or not a checkpoint of fedac"
        assert_refused(algorithm, written, message)
    memory = torch.load(written.parent / "a.pt", weights_only=True)
    torch.save(memory, file)
    message = r"rank0\.step4': it is not a checkpoint of fedac\.torch \(the state"
    assert_refused(algorithm, written, message)
    remembered.view(-1)[0] += 1  # a whole file, but not the one that was written
    torch.save(content, file)
    assert_refused(algorithm, written, r"rank0\.step4': it was not written together with")
    file.write_bytes(whole)
    Training(algorithm).averages.resume(written)


def test_a_memory_of_another_run(written: Path, algorithm: str) -> None:
    other = Training(algorithm, seed=1).run(4)
    other.averages.checkpoint(written.parent / "other.pt")
    Path(f"{written}.rank0.step4").write_bytes(
        (written.parent / "other.pt.rank0.step4").read_bytes()
    )
    message = r"rank0\.step4': it was not written together with '.*a\.pt'"
    assert_refused(algorithm, written, message)


def test_a_memory_is_not_a_checkpoint(written: Path, algorithm: str) -> None:
    memory = Path(f"{written}.rank0.step4")
    assert_refused(algorithm, memory, "it is not a checkpoint of fedac.torch")


def test_another_number_of_processes(written: Path, algorithm: str) -> None:
    content = torch.load(written, weights_only=True)
    content["ranks"] *= 3
    torch.save(content, written)
    assert_refused(
        algorithm,
        written,
        "it belongs to 3 processes, each with its own state, and now there are 1; start 3",
    )


def test_all_ranks_refuse_what_one_cannot_use(processes, tmp_path: Path, algorithm: str) -> None:
    file = f"{tmp_path}/run.pt.rank1.step4"
    ended = processes("lost_memory", world=3, folder=str(tmp_path), algorithm=algorithm)
    for rank, process in enumerate(ended):
        assert process.code == 0, process.err
        missing, damaged, older, good, full = process.result
        who = "" if rank == 1 else "rank 1 cannot resume: "
        assert missing.startswith(f"{who}cannot use '{tmp_path}/run.pt': '{file}' is missing")
        assert damaged.startswith(f"{who}cannot use '{file}': it is damaged")
        assert older.startswith(f"{who}cannot use '{file}': it was not written together with")
        assert good == "resumed"
        reason = f"cannot write the checkpoint '{tmp_path}/run.pt.rank1.step6': No space left on"
        who = "" if rank == 1 else "rank 1 cannot write a checkpoint: "
        assert full == f"{who}{reason} device"


LOST = ["scaffold", "fedac-i+cv+nesterov(1,0.3)", "fedac-i+local", "scaffnew", "adamw+step(1)"]


@pytest.mark.parametrize("method", LOST)
def test_a_rank_on_a_new_machine_begins_anew_on_request(processes, tmp_path: Path, method) -> None:
    path = str(tmp_path / "run.pt")
    job = {"world": 3, "method": method, "path": path, "missing": "reset"}
    ended = processes("practice_jobs:replaced_machine", **job)
    assert [process.code for process in ended] == [0] * 3, ended[0].err
    ranks = [process.result for process in ended]
    for m, rank in enumerate(ranks):
        (warning,) = [text for text in rank["said"] if "its local state is reset" in text]
        assert "the checkpoint file of rank 1 is missing: its local state is reset" in warning
        assert rank["extra"] == [{"note": 7}]
        before, after = rank["before"], rank["after"]
        assert after["lr"] == before["lr"] == 0.05
        anew = m == 1 or method == "scaffnew"
        if method.startswith("adamw"):
            assert bool(after["adam"]) == (not anew)
            assert all(torch.equal(before["adam"][name], t) for name, t in after["adam"].items())
        elif anew:
            assert not after["memory"][0].any()
        else:
            assert all(map(torch.equal, before["memory"], after["memory"]))
        assert torch.equal(rank["end"], ranks[0]["end"])
        points = slice(-1) if "cv" in method or method == "scaffold" else slice(None)
        pairs = zip(before["sent"][points], after["sent"][points], strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    if "cv" in method or method == "scaffold":
        wanted = sum((1 + 2 * m) / 9 * r["after"]["memory"][-1] for m, r in enumerate(ranks))
        for rank in ranks:
            torch.testing.assert_close(rank["after"]["sent"][-1], wanted, rtol=0, atol=1e-14)
            assert not torch.equal(rank["after"]["sent"][-1], rank["before"]["sent"][-1])


def test_a_rank_on_a_new_machine_is_refused_otherwise(processes, tmp_path: Path) -> None:
    job = {"world": 3, "method": "scaffold", "path": str(tmp_path / "run.pt")}
    for missing, said in (("raise", "resume with missing='reset'"), ("no", "unknown missing")):
        for process in processes("practice_jobs:replaced_machine", missing=missing, **job):
            assert process.code == 0, process.err
            assert said in process.result["said"][-1]
            assert not process.result["extra"]
