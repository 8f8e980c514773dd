# SPDX-License-Identifier: Apache-2.0
"""What practitioners do, and what goes wrong: with real processes, compared by hand."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedac.errors import InputError
from fedac.federation.compression import Sender, bytes_of
from fedac.torch import FedAc, LocalSGD, synchronize

LR, K = 0.1, 4
METHODS = [
    "fedavg",
    "fedac-i",
    "scaffold",
    "fedac-i+cv+nesterov(1,0.3)",
    "fedavg+exp+fedcm(0.3)+cv",
    "adamw",
    "adamw+nesterov(0.7,0.9)",
]


@pytest.fixture
def job(processes):
    def run(name, **arguments):
        ended = processes(f"practice_jobs:{name}", **arguments)
        for process in ended:
            assert process.code == 0, process.err
        return [process.result for process in ended]

    return run


def gradient(w, rank, t):
    return (1 + rank / 2) * w + rank - 1 + np.sin(np.arange(1, len(w) + 1) * (1 + rank + 0.37 * t))


# -- unequal numbers of batches -----------------------------------------------------------------


def fedavg_with(batches, epochs, weights):
    """Average after K steps of the longest; who took no step in a round is not counted."""
    workers, ends, taken = [np.ones(3) for _ in batches], [], [0] * len(batches)
    begun = 0  # the steps of all since the start: rounds end at multiples of K
    for _ in range(epochs):
        longest, moved = max(batches), [False] * len(batches)
        for s in range(longest):
            for m, w in enumerate(workers):
                if s < batches[m]:
                    workers[m] = w - LR * gradient(w, m, taken[m])
                    taken[m] += 1
                    moved[m] = True
            if (begun + s + 1) % K == 0 or s == longest - 1:
                mine = [weights[m] * moved[m] for m in range(len(batches))]
                if any(mine):
                    mean = np.average(workers, axis=0, weights=mine)
                    workers, moved = [mean for _ in batches], [False] * len(batches)
        begun += longest
        ends.append(workers[0])
    return ends


@pytest.mark.parametrize("batches", [[10, 7, 3, 10], [4, 8, 0, 1], [5, 5, 5, 5]])
def test_join_counts_those_that_took_steps(job, batches) -> None:
    wanted = fedavg_with(batches, 2, [1, 1, 1, 1])
    for rank in job("join", method="fedavg", batches=batches, epochs=2):
        for end, values in zip(rank["ends"], wanted, strict=True):
            np.testing.assert_allclose(end.numpy(), values, rtol=1e-12)
        assert rank["steps"] == 2 * max(batches)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options", [{}, {"overlap": True, "delay_steps": 2}, {"wire": "int8"}], ids=str
)
def test_all_leave_a_join_together(job, method: str, options) -> None:
    ranks = job("join", method=method, batches=[10, 7, 3, 9], epochs=2, **options)
    for rank in ranks:
        assert rank["steps"] == 20
        assert rank["rounds"] == ranks[0]["rounds"]
        assert rank["recorded"] == ranks[0]["recorded"] == sorted(rank["recorded"])
        for end, first in zip(rank["ends"], ranks[0]["ends"], strict=True):
            torch.testing.assert_close(end, first, rtol=1e-12, atol=1e-12)
            assert end.isfinite().all()


def test_examples_of_a_join(job) -> None:
    batches = [6, 2, 6, 5]
    # In a round everyone who moves counts its examples: rank + 1 for every step in it.
    workers = [np.ones(3) for _ in batches]
    for start, stop in ((0, 4), (4, 6)):
        counts = [max(0, min(b, stop) - start) for b in batches]
        for m, count in enumerate(counts):
            for t in range(start, start + count):
                workers[m] = workers[m] - LR * gradient(workers[m], m, t)
        weights = [(m + 1) * count for m, count in enumerate(counts)]
        workers = [np.average(workers, axis=0, weights=weights)] * 4
    for rank in job("join", method="fedavg", batches=batches, epochs=1, weighting="examples"):
        np.testing.assert_allclose(rank["ends"][0].numpy(), workers[0], rtol=1e-12)


def test_a_rank_that_has_finished_takes_the_lr_of_the_others(job) -> None:
    ranks = job("join_with_schedules", batches=[9, 9, 4, 6])
    for rank in ranks:
        assert torch.equal(rank["end"], ranks[0]["end"])
        assert rank["lr"] == pytest.approx(ranks[0]["lr"])


# -- lost workers -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_survivors_continue(processes, method: str) -> None:
    # Of three ranks all are neighbours in the ring, and know at once. Of four, one has to wait
    # until the time is up: a minute, so only once.
    world = 4 if method == "fedavg" else 3
    ended = processes("practice_jobs:survive", world=world, method=method, victim=2, at=9, steps=16)
    assert ended[2].code == 7
    survivors = [process for rank, process in enumerate(ended) if rank != 2]
    for process in survivors:
        assert process.code == 0, process.err
        assert "synchronization 3 failed" in process.result["lost"]
        assert process.result["ranks"] == world - 1
        assert process.result["after"] == survivors[0].result["after"]
        assert torch.equal(process.result["end"], survivors[0].result["end"])
    if method == "fedavg":
        workers = [np.ones(3) for _ in range(4)]
        for t in range(16):
            workers = [w - LR * gradient(w, m, t) for m, w in enumerate(workers)]
            if t % K == K - 1:
                alive = [0, 1, 3] if t > 9 else [0, 1, 2, 3]
                workers = [np.mean([workers[m] for m in alive], axis=0)] * 4
        np.testing.assert_allclose(survivors[0].result["end"].numpy(), workers[0], rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_who_is_behind_takes_the_state_of_the_others(job, method: str) -> None:
    ranks = job("fall_behind", method=method, world=3)
    for rank in ranks:
        assert rank["steps"] == [2 * K + 1, 3 * K]
        assert torch.equal(rank["together"], ranks[0]["together"])
        assert torch.equal(rank["end"], ranks[0]["end"])


# -- ranks that are not alike -------------------------------------------------------------------


def test_ranks_at_different_steps_are_told(job) -> None:
    ranks = job("out_of_phase", world=2)
    for rank in ranks:
        (error,) = rank["error"]
        assert (
            "processes differ in how many steps they have taken: 9 at rank 0; 10 at rank 1" in error
        )
        assert "No state was averaged" in error
        assert rank["same"]
    # In phase by steps: two rounds of four steps with gradients 1 and 2, one batch later at rank 1.
    wanted = [[-2 * K * LR * 1.5] * 3] * 2
    np.testing.assert_allclose([rank["points"][-1] for rank in ranks], wanted)


def test_a_worker_that_is_left_out_is_counted_and_named(job) -> None:
    for number, rank in enumerate(job("left_out", world=3)):
        rows = rank["history"]
        assert [row["skipped"] for row in rows] == [[], [1], []]
        assert [(row["round"], row["step"]) for row in rows] == [(1, 2), (2, 4), (3, 6)]
        assert all(row["bytes"] == 8 * (3 + 4 * 3) for row in rows)
        assert all(row["traffic"] == 4 * row["bytes"] // 3 for row in rows)
        assert all(row["seconds"] >= 0 for row in rows)
        # Two steps of lr 0.1 with gradients 0, 1 and 2 in three coordinates; the mean is that of 1.
        distance = 0.2 * abs(number - 1) * 3**0.5
        assert rows[0]["spread"] == pytest.approx(distance, abs=1e-12)
        expected = [] if number == 2 else [
            "synchronization 2, after 4 steps, left out rank 1, whose state holds NaN or infinity; "
            "workers were left out 1 times so far"
        ]  # fmt: skip
        assert rank["warnings"] == expected


@pytest.mark.parametrize("method", ["fedavg", "fedac-i"])
def test_a_late_synchronizer_makes_states_alike(job, method: str) -> None:
    ranks = job("begin_late", method=method)
    mean = np.mean([rank["before"] for rank in ranks], axis=0)
    for rank in ranks:
        np.testing.assert_allclose(rank["after"], mean, rtol=1e-12)
        assert rank["more"] == [5.0, 5.0]  # rank 0's: it has not moved


def test_messages_of_the_user_do_not_meet_ours(job) -> None:
    for rank in job("meet_other_messages", world=2):
        np.testing.assert_allclose(rank["w"], [-0.15] * 3)
        assert rank["mine"] == [300.0] * 3


def test_parameters_that_the_optimizer_does_not_have_start_alike(job) -> None:
    first, *others = job("fine_tune")
    assert all(other == first for other in others)


def test_a_new_start_after_a_failure(job) -> None:
    for w in job("lose_and_begin_again"):
        np.testing.assert_allclose(w, [-2 * LR * 1.5] * 3)


def test_a_variance_stays_positive_with_overlap(job) -> None:
    for rank in job("variance", world=2):
        assert rank[0] > 0


# -- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_no_shared_disk_is_needed(job, method: str, tmp_path) -> None:
    remembers = method == "scaffold" or "cv" in method or method.startswith("adamw")
    for number, rank in enumerate(job("elsewhere", folder=str(tmp_path), method=method)):
        assert torch.equal(rank["end"], rank["again"])
        assert rank["extra"] == {"note": "hello"}
        own = [f"run.pt.rank{number}.step{K}"] if remembers else []
        assert rank["files"] == [*(["run.pt"] if number == 0 else []), *own]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_all_ranks_hear_of_a_checkpoint_that_failed(job, method: str, tmp_path) -> None:
    folder = f"InputError: '{tmp_path}' is a folder; give the path of a file"
    thing = "InputError: 'thing' holds a object; a checkpoint can hold numbers, texts, tensors, and"
    for number, rank in enumerate(job("refuse_to_write", folder=str(tmp_path), method=method)):
        for found, wanted in zip(rank, (folder, thing), strict=False):
            prefix = "" if number == 0 else "InputError: rank 0 cannot write a checkpoint: "
            (error,) = found
            assert error.startswith(prefix + wanted.removeprefix("InputError: " if number else ""))
        assert rank[2] == []


@pytest.mark.parametrize("method", ["fedac-i", "scaffold", "adamw+nesterov(0.7,0.9)"])
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_two_nodes_of_two_processes_are_two_workers(job, method, wire, tmp_path) -> None:
    """DDP inside, ours between; compared with one process per node that has all of its data."""
    inside = job("nodes", method=method, wire=wire, inside=True, folder=str(tmp_path))
    alone = job("nodes", method=method, wire=wire, inside=False, folder=str(tmp_path), world=2)
    for ranks in (inside, alone):
        for rank in ranks:
            assert torch.equal(rank["end"], ranks[0]["end"])
            assert torch.equal(rank["end"], rank["again"])
            assert rank["size"] == 2
            assert rank["bytes"] == alone[0]["bytes"]
    torch.testing.assert_close(inside[0]["end"], alone[0]["end"], rtol=1e-9, atol=1e-9)


def test_nodes_need_ddp_inside(job) -> None:
    for found in job("nodes_without_ddp"):
        (error,) = found
        assert "the processes of this node have different parameters: wrap the model in" in error


def test_ddp_without_nodes_saves_nothing(job) -> None:
    for found in job("ddp_without_nodes", world=2):
        (warning,) = found
        assert "which averages gradients in every step" in warning


def test_two_groups_may_write_one_checkpoint(job, tmp_path) -> None:
    job("two_groups", folder=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


@pytest.mark.usefixtures("alone")
def test_parameters_in_another_order_are_refused(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def averages(params):
        return synchronize(LocalSGD(params, lr=0.1, local_steps=1), model)

    averages([model[0].weight, model[1].weight]).checkpoint(tmp_path / "run.pt")
    with pytest.raises(InputError, match=r"it has '0.weight' where this model has '1.weight'"):
        averages([model[1].weight, model[0].weight]).resume(tmp_path / "run.pt")
    averages([model[0].weight, model[1].weight]).resume(tmp_path / "run.pt")


@pytest.mark.parametrize("steps", [0, 2 * K])
@pytest.mark.parametrize("who", [[1], [0, 2]])
@pytest.mark.parametrize(
    ("rule", "wire", "ours"),
    [("nesterov(0.7,0.9)", "float32", False), ("step(1)", "float32", True), (None, "int8", False)],
)
def test_a_layer_that_ranks_reset_differently_is_refused_by_all(
    job, tmp_path: Path, steps: int, who: list[int], rule: str | None, wire: str, ours: bool
) -> None:
    path = tmp_path / "run.pt"
    options = {"steps": steps, "who": who, "server": rule, "wire": wire, "ours": ours}
    for result in job("reset_layer", world=3, path=str(path), **options):
        (message,) = result["said"]
        assert "began the round with different values of '1.weight'" in message
        others = "1, 2" if 0 in who else "1"
        assert f"rank {others} and rank 0" in message
        assert result["rounds"] == 0
    assert not path.exists()


@pytest.mark.parametrize(("rule", "who"), [("nesterov(0.7,0.9)", [0, 1, 2]), (None, [1])])
def test_a_layer_may_be_reset_alike_or_averaged(job, tmp_path: Path, rule, who) -> None:
    options = {"steps": 2 * K, "who": who, "server": rule, "wire": "float32", "ours": False}
    first, *others = job("reset_layer", world=3, path=str(tmp_path / "run.pt"), **options)
    assert first["said"] == []
    assert first["rounds"] == 2
    assert all(torch.equal(first["w"], other["w"]) for other in others)


def test_machines_may_round_differently(job, tmp_path: Path) -> None:
    options = {"server": "nesterov(0.7,0.9)", "wire": "float32", "ours": False, "rounding": True}
    path = str(tmp_path / "run.pt")
    first, *others = job("reset_layer", world=3, path=path, steps=3 * K, who=[1], **options)
    assert first["said"] == []
    assert first["rounds"] == 3
    assert any(not torch.equal(first["w"], other["w"]) for other in others)
    for other in others:
        torch.testing.assert_close(first["w"], other["w"], rtol=0, atol=1e-5)


MOMENTS = ["the start", "the first step", "a round", "the all-reduce", "between rounds",
           "a checkpoint"]  # fmt: skip


@pytest.mark.parametrize("method", ["adamw+nesterov(0.7,0.9)", "scaffold", "fedavg"])
@pytest.mark.parametrize("when", MOMENTS)
def test_survivors_of_the_stores_host_say_that_a_worker_is_lost(
    processes, tmp_path: Path, method: str, when: str
) -> None:
    path = str(tmp_path / "run.pt")
    job = {"when": when, "method": method, "how": int(signal.SIGKILL), "timeout": 20, "path": path}
    first, *others = processes("practice_jobs:lose_the_store", world=3, **job)
    assert first.code == -signal.SIGKILL
    for process in others:
        assert process.code == 0, process.err
        lines = process.result.splitlines()
        assert len(lines) == 1 + (when != "the start")
        assert all("a worker has died, cannot be reached" in line for line in lines)


def test_a_store_that_does_not_answer_is_a_lost_worker(processes, tmp_path: Path) -> None:
    job = {"when": "a round", "method": "scaffold", "how": int(signal.SIGSTOP), "timeout": 3}
    ended = processes("practice_jobs:lose_the_store", world=3, path=str(tmp_path / "run.pt"), **job)
    for process in ended[1:]:
        assert process.code == 0, process.err
        assert process.result.count("a worker has died, cannot be reached") == 2


def test_what_every_rank_has_a_part_of_is_refused(processes) -> None:
    said = {"fsdp": "parameters are sharded", "zero": "some of the parameters",
            "inside zero": "some of the parameters", "complex": "complex parameters"}  # fmt: skip
    for ended in processes("practice_jobs:sharded", world=2):
        assert ended.code == 0, ended.err
        assert len(ended.result) == 10
        for name, messages in ended.result.items():
            (message,) = messages
            assert message.startswith("InputError: "), name
            assert said[name.partition(",")[0]] in message, name


# -- one process --------------------------------------------------------------------------------


@pytest.mark.usefixtures("alone")
def test_sharded_parameters_are_refused() -> None:
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(2, 2)
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    with pytest.raises(InputError, match="the parameters are sharded"):
        synchronize(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=2)


@pytest.mark.usefixtures("alone")
def test_things_that_are_not_what_they_should_be() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="the model has none of the optimizer's parameters"):
        synchronize(optimizer, nn.Linear(2, 2), local_steps=2)
    for name in ("group", "node"):
        with pytest.raises(InputError, match=f"{name} must be a process group, as"):
            synchronize(optimizer, model, local_steps=2, **{name: "world"})
    averages = synchronize(optimizer, model, local_steps=2)
    with pytest.raises(InputError, match="group must be a process group, as"):
        averages.rebuild([0])
    with pytest.raises(InputError, match="pass the group of all remaining processes"):
        averages.rebuild(None)
    for name in ("overlap", "error_feedback"):
        with pytest.raises(InputError, match=f"{name} must be True or False, got 'no'"):
            synchronize(optimizer, model, local_steps=2, **{name: "no"})
    with pytest.raises(InputError, match="at must be a list of steps"):
        synchronize(optimizer, model, local_steps=2, at=3)


@pytest.mark.usefixtures("alone")
def test_a_synchronizer_that_was_replaced_is_refused(tmp_path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = synchronize(optimizer, model, local_steps=2)
    new = synchronize(optimizer, model, local_steps=2)
    path = tmp_path / "run.pt"
    for action in (old.synchronize, lambda: old.checkpoint(path), lambda: old.resume(path)):
        with pytest.raises(InputError, match="a later call of synchronize has replaced this"):
            action()
    new.synchronize()
    new.checkpoint(path)


@pytest.mark.usefixtures("alone")
def test_join_cannot_be_used_twice() -> None:
    averages = synchronize(LocalSGD([nn.Parameter(torch.ones(2))], lr=0.1, local_steps=2))
    with averages.join(), pytest.raises(InputError, match="already in use"), averages.join():
        pass
    with averages.join():
        pass
    with pytest.raises(ZeroDivisionError), averages.join():
        raise ZeroDivisionError  # the others hear of it by the loss of this process


@pytest.mark.parametrize(("wire", "header"), [("bfloat16", 16), ("int8", 32)])
@pytest.mark.usefixtures("alone")
def test_bfloat16_parameters_travel_rounded(wire: str, header: int) -> None:
    w = nn.Parameter(torch.ones(5120, dtype=torch.bfloat16))
    averages = synchronize(optimizer := FedAc([w], lr=0.1, mu=0.1, local_steps=1), wire=wire)
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert averages.bytes == 2 * bytes_of(wire, 5120) + header


# -- error feedback -----------------------------------------------------------------------------


def test_what_rounding_took_arrives_later() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(200, 1000))
    errors = {}
    for residuals in (None, [np.zeros(1000)]):
        arrived = np.zeros(1000)
        for r, x in enumerate(vectors):
            sender = Sender("int8", seed=1, m=0, r=r, residuals=residuals)
            arrived += sender(x, 0)
            residuals = sender.residuals
        errors[residuals is not None] = np.abs(arrived - vectors.sum(0)).max()
    # A step of the scale is about 3.5 / 127: with feedback one is missing at most.
    assert errors[True] < 0.04
    assert errors[False] > 3 * errors[True]


@pytest.mark.usefixtures("alone")
def test_feedback_is_in_checkpoints(tmp_path) -> None:
    def begin():
        w = nn.Parameter(torch.linspace(-1, 1, 600))
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
        return w, optimizer, synchronize(optimizer, local_steps=2, wire="int8", error_feedback=True)

    def train(w, optimizer, averages, steps):
        while averages.steps < steps:
            w.grad = torch.sin(w.detach() * (averages.steps + 1))
            optimizer.step()
        return w.detach().clone()

    whole = train(*begin(), 8)
    half = begin()
    train(*half, 4)
    half[2].checkpoint(tmp_path / "run.pt")
    again = begin()
    again[2].resume(tmp_path / "run.pt")
    assert torch.equal(train(*again, 8), whole)


@pytest.mark.usefixtures("alone")
def test_feedback_is_for_int8() -> None:
    with pytest.raises(InputError, match="error_feedback needs wire='int8'"):
        synchronize(
            LocalSGD([nn.Parameter(torch.ones(2))], lr=0.1, local_steps=2), error_feedback=True
        )


# Registered before fedac's own, and therefore called after it.
EXIT = """
import atexit
from pathlib import Path

names = lambda: [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
atexit.register(lambda: print(sum("gloo" in name for name in names())))

import torch
import torch.distributed as dist
from fedac.torch import LocalSGD, synchronize

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(2, 1)
averages = synchronize(LocalSGD(model.parameters(), lr=0.1, local_steps=1), model, timeout=60)
print(sum("gloo" in name for name in names()) > 0)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_threads_end_before_the_interpreter() -> None:
    # One that outlives it aborts the process, if it then drops the last reference to a tensor.
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0"]
