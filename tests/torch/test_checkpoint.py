# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: written atomically, refused when foreign, and continued to the bit."""

import os
import runpy
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedac.algorithms import Algorithm, fedac
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError
from fedac.torch import FedAc, Synchronizer, synchronize

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("alone")]
NUMBERS = {"lr": 0.1, "mu": 0.1, "local_steps": 2}
WORKERS = runpy.run_path(str(Path(__file__).with_name("workers.py")))
# With a file per rank, without and with a server, and with one file.
FOREIGN = ["sgd", "adamw", "adamw, averaged"]


class Training:
    """A small model with BatchNorm, its optimizer and its synchronizer."""

    def __init__(
        self, *, algorithm="fedac-i", hidden=3, dtype=torch.float32, schedule=False, **options
    ):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(2, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 1)
        ).to(dtype)
        self.optimizer, self.averages = WORKERS["begin"](
            self.model.parameters(), algorithm, self.model, **(NUMBERS | options)
        )
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(
            self.optimizer, 0.7 if schedule else 1.0
        )
        self.dtype = dtype

    def run(self, steps: int) -> "Training":
        for _ in range(steps):
            # A batch that is a function of the step: the sampler's position is the step.
            x = torch.sin(torch.arange(8.0).reshape(4, 2) * (self.averages.steps + 1))
            self.optimizer.zero_grad()
            self.model(x.to(self.dtype)).square().sum().backward()
            self.optimizer.step()
            self.scheduler.step()
        return self

    def everything(self) -> list[torch.Tensor]:
        ours = self.averages.optimizer
        tensors = [s for p in self.model.parameters() for s in ours.sequences(p)]
        tensors += self.model.state_dict().values()
        for p in self.model.parameters():  # of ours, what is kept; of others, what they remember
            for state in {id(o): o.state.get(p, {}) for o in (ours, self.optimizer)}.values():
                tensors += [torch.as_tensor(value) for value in state.values()]
        return [tensor.detach().clone() for tensor in tensors]


@pytest.fixture(params=["fedac-i", *FOREIGN])
def begin(request) -> partial[Training]:
    """Begin a training with an optimizer of ours, or of PyTorch's."""
    return partial(Training, algorithm=request.param)


def names(folder: Path) -> list[str]:
    """Return the files of a folder, without those of the ranks' memories."""
    return sorted(path.name for path in folder.iterdir() if ".rank0.step" not in path.name)


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


# An algorithm of the user's own: heavy-ball momentum, under the name of one of ours.
OWN = Algorithm(
    name="fedavg",
    label="momentum",
    sequences=("w", "m"),
    couple=lambda *, eta, mu, K: Hyperparameters(eta=eta),
    start=lambda w_0: (w_0, 0 * w_0),
    query=lambda state, hp: state[0],
    update=lambda state, w_md, g, hp: (
        w_md + 0.9 * state[1] - hp.eta * g,
        0.9 * state[1] - hp.eta * g,
    ),
    output=lambda state, hp, t: state[0],
)


@pytest.mark.parametrize("algorithm", ["fedac-i", "fedavg", "fedavg-weighted", OWN, *FOREIGN])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("schedule", [False, True])
def test_a_resumed_run_is_bit_identical(algorithm, dtype, schedule, tmp_path: Path) -> None:
    settings = {"algorithm": algorithm, "dtype": dtype, "schedule": schedule}
    whole = Training(**settings).run(4)
    path = tmp_path / "runs" / "last.pt"
    whole.averages.checkpoint(path, scheduler=whole.scheduler.state_dict(), sampler=4)
    whole.run(4)
    resumed = Training(**settings)
    extra = resumed.averages.resume(path)
    resumed.scheduler.load_state_dict(extra["scheduler"])
    assert extra["sampler"] == 4
    assert resumed.averages.steps == 4
    assert resumed.averages.rounds == 2
    resumed.run(4)
    assert same(whole.everything(), resumed.everything())  # the count of batches included
    assert resumed.averages.rounds == 4


def test_checkpoints_work_in_eval_mode(tmp_path: Path) -> None:
    training = Training().run(2)
    training.optimizer.eval()
    training.averages.checkpoint(tmp_path / "a.pt")
    before = training.model[0].weight.detach().clone()
    other = Training()
    other.optimizer.eval()
    other.averages.resume(tmp_path / "a.pt")
    assert torch.equal(other.model[0].weight, before)


def test_extra_is_returned_by_resume(tmp_path: Path) -> None:
    extra = {
        "epoch": 3,
        "name": "run",
        "order": torch.arange(5),
        "nested": {"list": [1, 2.5, None, True], "tuple": (1, "a")},
        "model": OrderedDict(a=torch.ones(1)),
    }
    training = Training()
    training.averages.checkpoint(tmp_path / "a.pt", **extra)
    found = training.averages.resume(tmp_path / "a.pt")
    assert torch.equal(found.pop("order"), extra.pop("order"))
    assert found == extra


def test_values_that_could_not_be_read_again_are_refused(tmp_path: Path) -> None:
    training = Training()
    with pytest.raises(InputError, match=r"'rng' holds a Generator; a checkpoint can hold numbers"):
        training.averages.checkpoint(tmp_path / "a.pt", rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="'losses' holds a float64"):
        training.averages.checkpoint(tmp_path / "a.pt", losses={"train": [np.float64(1.0)]})
    assert list(tmp_path.glob("*.pt")) == []


@pytest.mark.parametrize("number", ["lr", "mu", "local_steps"])
def test_numpy_numbers_can_be_read_again(tmp_path: Path, number: str) -> None:
    kinds = {"lr": np.float64, "mu": np.float64, "local_steps": np.int64}
    given = {"lr": 0.1, "mu": 0.1, "local_steps": 2}
    w = nn.Parameter(torch.ones(3))
    optimizer = FedAc([w], **given | {number: kinds[number](given[number])})
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: np.cos(t / 100))
    averages = synchronize(optimizer)
    w.grad = torch.ones(3)
    for _ in range(2):
        optimizer.step()
        scheduler.step()
    averages.checkpoint(tmp_path / "a.pt")
    assert averages.resume(tmp_path / "a.pt") == {}
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    optimizer.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


def test_frozen_parameters_are_saved_without_copies(tmp_path: Path) -> None:
    w, frozen = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((5,), 2.0), False)
    counter = nn.Parameter(torch.tensor([7]), requires_grad=False)
    optimizer = FedAc([w, frozen, counter], lr=0.1, mu=0.1, local_steps=1)
    averages = synchronize(optimizer)
    w.grad = torch.ones(3)
    optimizer.step()
    optimizer.eval()
    optimizer.train()
    assert averages.bytes == 4 * (2 * 3 + 4)
    averages.checkpoint(tmp_path / "a.pt")
    with torch.no_grad():
        frozen.zero_()
        counter.zero_()
    averages.resume(tmp_path / "a.pt")
    assert (frozen == 2).all()
    assert counter.item() == 7
    assert set(optimizer.state) == {w}


def test_another_number_of_groups_is_refused(tmp_path: Path) -> None:
    training = Training().run(2)
    training.averages.checkpoint(tmp_path / "a.pt")
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(InputError, match="it has 1 parameter groups, not 2"):
        synchronize(training.optimizer).resume(tmp_path / "a.pt")


# -- writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["save", "fsync"])
def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch, begin, error, at) -> None:
    training = begin().run(2)
    path = tmp_path / "folder" / "a.pt"
    training.averages.checkpoint(path)
    old = path.read_bytes()
    training.run(2)

    def fail(*arguments):
        if at == "save":
            arguments[1].write(b"half of it")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(*((torch, "save") if at == "save" else (os, "fsync")), fail)
        with pytest.raises(type(error)):
            training.averages.checkpoint(path)
    assert path.read_bytes() == old
    assert names(path.parent) == ["a.pt"]
    begin().averages.resume(path)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch, begin) -> None:
    training = begin().run(2)

    def fail(content, file):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1216")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match=r"cannot write the checkpoint '.*a\.pt.*': is the disk full"):
        training.averages.checkpoint(tmp_path / "a.pt")


def test_paths_that_cannot_be_written(tmp_path: Path, begin) -> None:
    averages = begin().run(2).averages
    with pytest.raises(InputError, match="is a folder; give the path of a file"):
        averages.checkpoint(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot write the checkpoint '.*file/a\.pt.*': File exists"):
        averages.checkpoint(tmp_path / "file" / "a.pt")
    with pytest.raises(
        InputError, match=r"cannot read the checkpoint '.*file/a\.pt': Not a directory"
    ):
        averages.resume(tmp_path / "file" / "a.pt", missing_ok=True)


def test_leftovers_of_a_killed_process_do_no_harm(tmp_path: Path, begin) -> None:
    training = begin().run(2)
    folder = tmp_path / "folder"
    training.averages.checkpoint(folder / "a.pt")
    (folder / ".a.pt.part").write_bytes(b"half of it")
    begin().averages.resume(folder / "a.pt")
    training.run(2).averages.checkpoint(folder / "a.pt")
    assert names(folder) == ["a.pt"]


def test_checkpoints_need_a_synchronization_right_before(tmp_path: Path, begin) -> None:
    training = begin().run(3)
    with pytest.raises(InputError, match="workers differ after 3 steps"):
        training.averages.checkpoint(tmp_path / "a.pt")
    training.averages.synchronize()
    training.averages.checkpoint(tmp_path / "a.pt")


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_waits_for_the_average_of_the_same_step_only(tmp_path: Path) -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=4)
    averages = Synchronizer(optimizer, overlap=True, delay_steps=2)
    for t in range(1, 9):
        w.grad = torch.ones(3)
        optimizer.step()
        averages.step()
        if t in (4, 8):
            averages.checkpoint(tmp_path / "a.pt")
            assert averages.rounds == t // 4
        else:
            with pytest.raises(InputError, match=f"workers differ after {t} steps"):
                averages.checkpoint(tmp_path / "b.pt")


# -- reading -----------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path, begin) -> Path:
    path = tmp_path / "a.pt"
    begin().run(4).averages.checkpoint(path)
    return path


def assert_refused(begin, path: Path, message: str, **settings) -> None:
    """Resume is refused, and the run continues as if nobody had tried."""
    tried, untried = begin(**settings).run(2), begin(**settings).run(2)
    before = tried.everything()
    with pytest.raises(InputError, match=message):
        tried.averages.resume(path)
    assert same(tried.everything(), before)
    assert (tried.averages.steps, tried.averages.rounds) == (2, 1)
    assert same(tried.run(2).everything(), untried.run(2).everything())


def test_a_missing_file(tmp_path: Path, begin) -> None:
    assert_refused(begin, tmp_path / "none.pt", r"there is no checkpoint '.*none.pt'")
    assert begin().averages.resume(tmp_path / "none.pt", missing_ok=True) is None


def test_a_folder(tmp_path: Path, begin) -> None:
    assert_refused(begin, tmp_path, "cannot read the checkpoint .*: Is a directory")


def test_truncated_files(written: Path, begin) -> None:
    whole = written.read_bytes()
    training = begin().run(2)
    before = training.everything()
    for length in [*range(0, len(whole), len(whole) // 97), len(whole) - 1]:
        written.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"it is damaged, or not a checkpoint of fedac\.torch"):
            training.averages.resume(written)
    assert same(training.everything(), before)
    written.write_bytes(whole)
    training.averages.resume(written)


@pytest.mark.parametrize(
    "content", [b"", b"hello\n" * 100, b"PK\x03\x04" + bytes(1000), os.urandom(5000)]
)
def test_foreign_files(tmp_path: Path, begin, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    assert_refused(begin, path, "it is damaged, or not a checkpoint of fedac.torch")


@pytest.mark.parametrize("content", [[1, 2], {"model": torch.ones(3)}, torch.ones(3)])
def test_foreign_files_of_pytorch(tmp_path: Path, begin, content) -> None:
    torch.save(content, tmp_path / "foreign.pt")
    assert_refused(begin, tmp_path / "foreign.pt", "not a checkpoint of fedac.torch")


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_code_is_executed(written: Path, tmp_path: Path, begin) -> None:
    content = torch.load(written, weights_only=True)
    content["extra"] = {"bomb": Bomb(tmp_path / "exploded")}
    torch.save(content, written)
    assert_refused(begin, written, "it is damaged, or not a checkpoint of fedac.torch")
    assert not (tmp_path / "exploded").exists()


def damaged(key, value):
    return lambda content: content.__setitem__(key, value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged("version", 5), "it has version 5; this fedac reads version 6"),
        (damaged("version", "two"), "it has version 'two'"),
        (damaged("format", "other"), "not a checkpoint of fedac.torch"),
        (lambda content: content.pop("groups"), "not a checkpoint of fedac.torch"),
        (damaged("sequences", 3), "not a checkpoint of fedac.torch"),
        (damaged("buffers", []), "holds another model: None in place of"),
        (lambda content: content["sequences"].pop(), "holds another model"),
        (lambda content: content["sequences"][0].pop(), "holds another model"),
    ],
)
def test_damaged_contents(written: Path, begin, damage, message) -> None:
    content = torch.load(written, weights_only=True)
    damage(content)
    torch.save(content, written)
    assert_refused(begin, written, message)


@pytest.mark.parametrize("algorithm", ["sgd, averaged", "sgd, reset"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.pop("inner"),
        damaged("inner", 3),
        lambda content: content["inner"].pop("state"),
        lambda content: content["inner"].pop("param_groups"),
        lambda content: content["inner"]["param_groups"][0].pop("params"),
        lambda content: content["inner"].update(state={0: 5}),
    ],
)
def test_damaged_states_of_an_optimizer(tmp_path: Path, algorithm, damage) -> None:
    begin, path = partial(Training, algorithm=algorithm), tmp_path / "a.pt"
    begin().run(4).averages.checkpoint(path)
    content = torch.load(path, weights_only=True)
    damage(content)
    torch.save(content, path)
    assert_refused(begin, path, "the state of its optimizer is damaged")


def own_numbers(gamma):
    return {"algorithm": fedac(gamma=gamma, alpha=3.0, beta=4.0, name="mine")}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "fedac-ii"}, "written by algorithm 'fedac-i', not 'fedac-ii'"),
        ({"algorithm": "fedavg"}, "written by algorithm 'fedac-i', not 'fedavg'"),
        (own_numbers(0.3), "written by algorithm 'fedac-i', not 'mine'"),
    ],
)
def test_checkpoints_of_other_algorithms_and_models(tmp_path: Path, settings, message) -> None:
    Training().run(4).averages.checkpoint(tmp_path / "a.pt")
    assert_refused(Training, tmp_path / "a.pt", message, **settings)


def test_a_checkpoint_of_another_model(written: Path, begin) -> None:
    message = r"holds another model: torch.Size\(\[3, 2\]\) in place of"
    assert_refused(begin, written, message, hidden=5)


def test_a_checkpoint_with_other_local_steps_continues_with_a_notice(tmp_path: Path, begin) -> None:
    path = tmp_path / "a.pt"
    begin(local_steps=4).run(4).averages.checkpoint(path)
    training = begin(local_steps=2)
    with pytest.warns(UserWarning, match="written with local_steps=4; continuing with 2"):
        training.averages.resume(path)
    for group in training.averages.optimizer.param_groups:
        assert group["local_steps"] == group["last"]["local_steps"] == 2
    rounds = training.averages.rounds
    training.run(4)
    assert training.averages.rounds == rounds + 2


def test_a_checkpoint_with_other_custom_coefficients(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    Training(**own_numbers(0.3)).run(4).averages.checkpoint(path)
    assert_refused(Training, path, r"written with gamma=0\.3, not 0\.4", **own_numbers(0.4))


def test_another_algorithm_of_the_same_name_is_refused(tmp_path: Path) -> None:
    Training(algorithm=OWN).run(4).averages.checkpoint(tmp_path / "a.pt")
    assert_refused(Training, tmp_path / "a.pt", "also called 'fedavg'", algorithm="fedavg")


def test_a_process_that_is_being_ended_writes_what_can_be_resumed(
    tmp_path, monkeypatch, begin
) -> None:
    # torchrun may end a process by an exception, which must not be taken for the algorithm's own.
    training = begin().run(2)
    with monkeypatch.context() as patch:
        for module in ("fedac.torch._state", "fedac.federation.checkpoint"):
            patch.setattr(f"{module}.fingerprint", lambda algorithm: "another")
        training.averages.checkpoint(tmp_path / "a.pt")
    begin().averages.resume(tmp_path / "a.pt")


def test_flipped_bytes_are_detected(written: Path, begin) -> None:
    # In the numbers themselves: every record of the file has a checksum.
    whole = bytearray(written.read_bytes())
    weight = torch.load(written, weights_only=True)["sequences"][0][0].numpy().tobytes()
    whole[whole.index(weight)] ^= 1
    written.write_bytes(bytes(whole))
    assert_refused(begin, written, "it is damaged, or not a checkpoint of fedac.torch")
