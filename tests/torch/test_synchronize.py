# SPDX-License-Identifier: Apache-2.0
"""Averaging between real processes: compared with the simulator, by hand, and with faults."""

import copy
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from fedac import LogisticRegression, simulate
from fedac.algorithms import ALGORITHMS as NAMED
from fedac.errors import InputError
from fedac.federation.schedule import Decay
from fedac.torch import FedAc, LocalSGD, NonFiniteStateError, Synchronizer, synchronize

WORLD = 4
WORKERS = runpy.run_path(str(Path(__file__).with_name("workers.py")))
# Of ours, and one of the user's own, which is also what PyTorch's SGD with momentum does.
OWN, FOREIGN = WORKERS["OWN"], WORKERS["FOREIGN"]
SGD = ["sgd", "sgd, averaged", "sgd, reset"]
ALGORITHMS = NAMED | OWN | dict.fromkeys(SGD, OWN["own momentum"])
LOCAL = ["fedac-i", "fedac-ii", "fedac-vanilla", "fedavg", "own momentum"]
NUMBERS = {"lr": 0.3, "mu": 0.2, "local_steps": 4}


def results(ended):
    for process in ended:
        assert process.code == 0, process.err
    return [process.result for process in ended]


# -- the simulator -----------------------------------------------------------------------------

T, ETA, L2, SEED = 128, 0.2, 1e-2, 5
SETTINGS = [(name, K) for name in LOCAL for K in (1, 8, 64)]


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 7))
    y = np.where(X @ rng.standard_normal(7) + rng.logistic(size=60) > 0, 1.0, -1.0)
    return LogisticRegression(X, y, l2=L2), X, y


@pytest.fixture(scope="module")
def real_runs(processes, problem, tmp_path_factory):
    """Run all settings in one set of processes; return the results of every rank by setting."""
    _, X, y = problem
    file = tmp_path_factory.mktemp("problem") / "problem.npz"
    np.savez(file, X=X, y=y, start=np.random.RandomState(1).randn(7))
    runs = [
        {"algorithm": name, "K": K, "T": T, "eta": ETA, "mu": L2, "l2": L2, "seed": SEED}
        for name, K in SETTINGS
    ]
    by_rank = results(processes("logistic", problem=str(file), runs=runs))
    return dict(zip(SETTINGS, zip(*by_rank, strict=True), strict=True))


@pytest.mark.parametrize(("name", "K"), SETTINGS)
def test_processes_reproduce_the_simulator(real_runs, problem, name: str, K: int) -> None:
    states = []
    simulate(
        problem[0], ALGORITHMS[name], M=WORLD, K=K, T=T, eta=ETA, mu=L2, seed=SEED,
        engine="reference", record_every=K,
        callbacks=[lambda record: states.append(np.stack(record.state))],
    )  # fmt: skip
    simulated = np.stack(states[1:])
    assert simulated.shape == (T // K, len(ALGORITHMS[name].sequences), 7)
    for rank in real_runs[name, K]:
        np.testing.assert_allclose(rank["states"], simulated, rtol=0, atol=1e-9)
        assert torch.equal(rank["states"], real_runs[name, K][0]["states"])


@pytest.mark.parametrize(("name", "K"), SETTINGS)
def test_one_all_reduce_of_all_sequences_every_k_steps(real_runs, name: str, K: int) -> None:
    numbers = len(ALGORITHMS[name].sequences) * 7 + 4 * WORLD  # and four per worker
    for rank in real_runs[name, K]:
        assert rank["all_reduces"] == [numbers] * (T // K)
        assert rank["rounds"] == T // K
        assert rank["bytes"] == 8 * numbers * (T // K)
        assert rank["seconds"] > 0


# -- by hand -----------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
GRADIENTS = RNG.standard_normal((WORLD, 12, 3))


def by_hand(name, *, at, gradients=GRADIENTS, weights=(1,) * WORLD, delay=0):
    """Return the state of every worker after every step, by the definitions.

    `at` are the steps after which averages are started. A worker that is not finite then is left
    out, and takes over the average. What PyTorch's SGD has of the momentum stays in its worker, or
    is averaged, or reset.
    """
    algorithm = ALGORITHMS[name]
    hp = algorithm.couple(eta=NUMBERS["lr"], mu=NUMBERS["mu"], K=NUMBERS["local_steps"])
    states = np.zeros((WORLD, len(algorithm.sequences), 3))
    history, pending = [], None

    def arrive(mean, before):
        good = np.isfinite(before).all(axis=(1, 2), keepdims=True)
        after = np.where(good, mean + (states - before), mean)
        if name in ("sgd", "sgd, reset"):
            after[:, 1] = np.where(good[:, 0] & (name == "sgd"), states[:, 1], 0)
        return after

    for t in range(gradients.shape[1]):
        for m in range(WORLD):
            state = tuple(states[m])
            w_md = algorithm.query(state, hp)
            states[m] = np.stack(algorithm.update(state, w_md, gradients[m, t], hp))
        if pending is not None and t + 1 == pending[0] + delay:
            states, pending = arrive(*pending[1:]), None
        if t + 1 in at:
            good = np.isfinite(states).all(axis=(1, 2))
            mean = np.average(states[good], axis=0, weights=np.array(weights)[good])
            pending = (t + 1, mean, states.copy())
            if not delay:
                states, pending = arrive(*pending[1:]), None
        history.append(states.copy())
    if pending is not None:
        history.append(arrive(*pending[1:]))
    shown = 1 if name in SGD else len(algorithm.sequences)  # the parameters alone
    return np.stack(history, axis=1)[:, :, :shown]


def run_steps(
    processes, name, gradients=GRADIENTS, *, examples=(1, 2, 3, 4), flush=False, **options
):
    return results(
        processes(
            "steps",
            gradients=gradients.tolist(),
            optimizer={"algorithm": name, **NUMBERS},
            options=options,
            examples=examples,
            flush=flush,
        )
    )


def assert_states(ranks, wanted) -> None:
    for rank, result in enumerate(ranks):
        assert result["error"] is None
        np.testing.assert_allclose(result["states"], wanted[rank], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOCAL + SGD)
def test_the_average_is_uniform(processes, name: str) -> None:
    ranks = run_steps(processes, name)
    assert_states(ranks, by_hand(name, at={4, 8, 12}))
    assert ranks[0]["applied"] == [(t + 1) % 4 == 0 for t in range(12)]


@pytest.mark.parametrize("name", LOCAL)
def test_the_average_is_weighted_by_examples(processes, name: str) -> None:
    # Rank m counts m + 1 examples a step.
    ranks = run_steps(processes, name, weighting="examples")
    assert_states(ranks, by_hand(name, at={4, 8, 12}, weights=(1, 2, 3, 4)))


def test_an_irregular_schedule(processes) -> None:
    ranks = run_steps(processes, "fedac-i", at=[1, 4, 8, 9, 11])
    assert_states(ranks, by_hand("fedac-i", at={1, 4, 8, 9, 11}))
    assert all(rank["rounds"] == 5 == len(rank["all_reduces"]) for rank in ranks)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_an_overlapped_average_is_applied_later_plus_progress(
    processes, name, delay, weighting
) -> None:
    ranks = run_steps(
        processes, name, flush=True, overlap=True, delay_steps=delay, weighting=weighting
    )
    weights = (1, 2, 3, 4) if weighting == "examples" else (1, 1, 1, 1)
    assert_states(ranks, by_hand(name, at={4, 8, 12}, delay=delay, weights=weights))
    assert ranks[0]["applied"] == [t + 1 in (4 + delay, 8 + delay) for t in range(12)]
    assert all(rank["rounds"] == 3 for rank in ranks)


@pytest.mark.parametrize(("average", "anew"), [(True, False), (True, True), (False, False)])
def test_buffers_of_the_model_are_averaged(processes, average: bool, anew: bool) -> None:
    ranks = results(processes("batch_norm", average=average, anew=anew))
    mean = torch.stack([rank["before"] for rank in ranks]).mean(0)
    for rank in ranks:
        wanted = mean if average else rank["before"]
        torch.testing.assert_close(rank["mean"], wanted)
        assert rank["batches"] == 2
        # Two sequences of 3*2 + 3 + 3 + 3 numbers, two buffers of 3, four per worker.
        assert rank["bytes"] == 4 * (2 * 15 + 2 * 3 * average + 4 * WORLD)


# -- faults ------------------------------------------------------------------------------------


def with_nan(*ranks: int, step: int = 5):
    gradients = GRADIENTS.copy()
    gradients[list(ranks), step, 1] = np.nan
    return gradients


def with_overlap(names, delays):
    """Return all pairs but those of a state that is averaged, for which there is no overlap."""
    return [(n, delay) for n in names for delay in delays if not (delay and "averaged" in n)]


@pytest.mark.parametrize(
    ("name", "overlap"), with_overlap(["fedac-i", "fedavg", *FOREIGN], [False, True])
)
def test_a_nan_stops_all_workers_and_changes_none(processes, name, overlap) -> None:
    ranks = run_steps(processes, name, with_nan(2), overlap=overlap)
    for rank, result in enumerate(ranks):
        assert result["error"] == "NonFiniteStateError"
        assert "the state of rank 2 holds NaN or infinity after 8 steps" in result["message"]
        assert "or on_nonfinite='skip-worker'" in result["message"]
        assert result["untouched"]
        assert result["rounds"] == 1
        if rank != 2 and name in ALGORITHMS:  # what it had until then is what it has
            before = by_hand(name, at={4}, delay=int(overlap))
            np.testing.assert_allclose(result["states"][6], before[rank][6], atol=1e-12)


@pytest.mark.parametrize(("name", "delay"), with_overlap(["fedac-i", "fedavg", *SGD], [0, 2]))
@pytest.mark.parametrize("bad", [(2,), (0, 3)])
def test_a_worker_with_nan_can_be_skipped(processes, name, bad, delay) -> None:
    gradients = with_nan(*bad)
    overlap = {"overlap": True, "delay_steps": delay} if delay else {}
    ranks = run_steps(
        processes, name, gradients, flush=bool(delay), on_nonfinite="skip-worker", **overlap
    )
    wanted = by_hand(name, at={4, 8, 12}, gradients=gradients, delay=delay)
    assert np.isnan(wanted[list(bad), 6]).any(axis=-1).all()
    assert np.isfinite(wanted[:, 7 + delay :]).all()
    assert_states(ranks, wanted)
    for result in ranks:
        assert np.isfinite(result["w"]).all()
        assert result["rounds"] == 3


@pytest.mark.parametrize("name", ["fedac-i", *FOREIGN])
def test_all_workers_with_nan_raise(processes, name: str) -> None:
    ranks = run_steps(processes, name, with_nan(0, 1, 2, 3), on_nonfinite="skip-worker")
    for result in ranks:
        assert result["error"] == "NonFiniteStateError"
        assert "rank 0, 1, 2, 3" in result["message"]
        assert result["message"].endswith("Use a smaller lr")
        assert result["untouched"]


@pytest.mark.parametrize("name", ["fedac-i", "sgd", "adamw, averaged"])
def test_a_nan_is_named_when_no_other_worker_has_examples(processes, name: str) -> None:
    ranks = run_steps(
        processes, name, with_nan(2), examples=(0, 0, 1, 0),
        weighting="examples", on_nonfinite="skip-worker",
    )  # fmt: skip
    for result in ranks:
        assert result["error"] == "NonFiniteStateError"
        assert "the state of rank 2 holds NaN" in result["message"]
        assert result["untouched"]


# What the last of four processes has that the others have not, by what the error says: whatever
# the optimizer, for ours, and for PyTorch's.
COMMON_CASES = {
    "local_steps: 4 at rank 0, 1, 2; 8 at rank 3": {"optimizer": {"local_steps": 8}},
    "parameters: float32 [3] at rank 0, 1, 2; float32 [4] at rank 3": {"size": 4},
    "weighting: uniform at rank 0, 1, 2; examples at rank 3": {
        "options": {"weighting": "examples"}
    },
    "on_nonfinite: raise at rank 0, 1, 2; skip-worker at rank 3": {
        "options": {"on_nonfinite": "skip-worker"}
    },
    "schedule: regular at rank 0, 1, 2; [2, 4] at rank 3": {"options": {"at": [2, 4]}},
    "delay_steps: 0 at rank 0, 1, 2; 2 at rank 3": {"options": {"overlap": True, "delay_steps": 2}},
    "timeout: None at rank 0, 1, 2; 20.0 at rank 3": {"options": {"timeout": 20}},
    # All that differs is named.
    "wire: float32 at rank 0, 1, 2; int8 at rank 3. And processes differ in": {
        "options": {"wire": "int8", "wire_seed": 3}
    },
}
CASES = {
    "algorithm: fedac-i at rank 0, 1, 2; fedac-ii at rank 3": {
        "optimizer": {"algorithm": "fedac-ii"}
    },
    "what a step computes: ": {"optimizer": {"algorithm": "impostor"}},
    "settings: lr=0.3 mu=0.2 at rank 0, 1, 2; lr=0.1 mu=0.2 at rank 3": {"optimizer": {"lr": 0.1}},
    "settings: lr=0.3 mu=0.2 at rank 0, 1, 2; lr=0.3 mu=0.1 at rank 3": {"optimizer": {"mu": 0.1}},
    "settings: lr=0.3 mu=0.2 at rank 0, 1, 2; lr=0.3 mu=0.2 weight_decay=0.1 at rank 3": {
        "optimizer": {"weight_decay": 0.1}
    },
}


FOREIGN_CASES = {
    "optimizer: AdamW with state='local' at rank 0, 1, 2; SGD with": {
        "optimizer": {"algorithm": "sgd"}
    },
    "optimizer: AdamW with state='local' at rank 0, 1, 2; AdamW with state='reset' at rank 3": {
        "optimizer": {"algorithm": "adamw, reset"}
    },
    "optimizer: AdamW with state='local' at rank 0, 1, 2; an optimizer of fedac.torch at rank": {
        "optimizer": {"algorithm": "diloco"}
    },
    "algorithm: fedavg+nesterov(0.7,0.9) at rank 0, 1, 2; fedavg+step(0.4) at rank 3": {
        "options": {"server": "step(0.4)"}
    },
}


@pytest.mark.parametrize(
    ("name", "cases"),
    [("fedac-i", COMMON_CASES | CASES), ("adamw", COMMON_CASES | FOREIGN_CASES)],
)
def test_processes_that_differ_are_refused_everywhere(processes, name: str, cases) -> None:
    jobs = []
    for last in cases.values():
        optimizer = last.get("optimizer", {})
        own = optimizer.get("algorithm") == "impostor"
        others = {"algorithm": "own momentum" if own else name, **NUMBERS}
        jobs.append(
            {
                "size": [3, 3, 3, last.get("size", 3)],
                "options": [{}, {}, {}, last.get("options", {})],
                "optimizer": [others, others, others, others | optimizer],
            }
        )
    for messages in results(processes("refuse", cases=jobs)):
        assert len(messages) == len(cases)
        for message, case in zip(messages, cases, strict=True):
            assert message.startswith(f"processes differ in {case}")


@pytest.mark.parametrize(
    ("algorithm", "how", "limit"),
    [
        ("fedac-i", "dies", 600.0),
        ("fedac-i", "stops", 15.0),
        ("adamw", "dies", 600.0),
        ("sgd, averaged", "stops", 15.0),
    ],
)
def test_survivors_of_a_lost_worker_do_not_wait_forever(
    processes, algorithm: str, how: str, limit: float
) -> None:
    ended = processes("doomed", algorithm=algorithm, victim=2, how=how, limit=limit)
    # Dead, or stopped and then killed by the test.
    assert ended[2].code == {"dies": 7, "stops": -9}[how]
    for rank in (0, 1, 3):
        last = ended[rank].err.strip().splitlines()[-1]
        assert ended[rank].code == 1
        found = re.search(
            rf"WorkerLostError: rank {rank} of 4: synchronization 3 failed after (\d+\.\d) s; a "
            r"worker has died, cannot be reached, or has stopped taking steps\. Restart from the",
            last,
        )
        assert found, last
        # A broken connection is noticed at once, a worker that stopped after the timeout.
        assert (float(found[1]) < limit - 1) == (how == "dies")


@pytest.mark.parametrize("algorithm", ["fedac-i", "sgd", "adamw", "adamw, averaged"])
def test_rank_0_reads_and_all_resume_or_refuse(processes, tmp_path, algorithm: str) -> None:
    ended = processes("half_a_checkpoint", folder=str(tmp_path), algorithm=algorithm)
    for rank, messages in enumerate(results(ended)):
        assert messages[0] == f"there is no checkpoint '{tmp_path}/none.pt'"
        assert messages[1] == "None"
        damaged = f"cannot use '{tmp_path}/2.pt': it is damaged, or not a checkpoint of fedac.torch"
        assert messages[2] == (damaged if rank == 0 else f"rank 0 cannot resume: {damaged}")
        assert messages[3] == "{}"  # rank 0 has it, and no other rank


# -- one process -------------------------------------------------------------------------------


def make(**options):
    w = nn.Parameter(torch.ones(3))
    return w, FedAc([w], **(NUMBERS | options))


@pytest.mark.slow
def test_a_missing_process_group_is_explained() -> None:
    with pytest.raises(InputError, match=r"call torch\.distributed\.init_process_group first"):
        synchronize(make()[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "size"}, "unknown weighting 'size'; known: examples, uniform"),
        ({"examples": 5}, "examples needs weighting='examples'"),
        ({"weighting": "examples", "examples": 0}, "examples must be a whole number, at least 1"),
        ({"on_nonfinite": "skip"}, "unknown on_nonfinite 'skip'; did you mean 'skip-worker'"),
        (
            {"overlap": True, "delay_steps": 4},
            "delay_steps must be from 1 to local_steps - 1 = 3, got 4",
        ),
        (
            {"overlap": True, "delay_steps": 0},
            "delay_steps must be a whole number, at least 1, got 0",
        ),
        ({"overlap": True, "delay_steps": "1"}, "delay_steps must be a whole number"),
        ({"delay_steps": 2}, "delay_steps needs overlap=True"),
        ({"at": [2, 8]}, "6 steps apart, more than local_steps=4"),
        ({"at": []}, "at is empty; give at least one step"),
        ({"at": [0, 2]}, "every step in at must be a whole number, at least 1, got 0"),
        ({"at": [1.5, 3]}, "every step in at must be a whole number, at least 1, got 1.5"),
        ({"at": "34"}, "every step in at must be a whole number, at least 1, got '[34]'"),
        ({"model": 3}, r"model must be a torch\.nn\.Module, got int"),
        ({"timeout": 0}, "timeout must be a finite number above 0"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_invalid_options_are_refused(options, message) -> None:
    with pytest.raises(InputError, match=message):
        synchronize(make()[1], **options)


@pytest.mark.usefixtures("alone")
def test_groups_that_synchronize_at_different_times_are_refused() -> None:
    w, v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = FedAc([{"params": [w]}, {"params": [v], "local_steps": 8}], **NUMBERS)
    with pytest.raises(InputError, match="all parameter groups must have the same local_steps"):
        synchronize(optimizer)


@pytest.mark.usefixtures("alone")
def test_only_optimizers_with_parameters_are_synchronized() -> None:
    w = nn.Parameter(torch.ones(3))
    with pytest.raises(InputError, match="an optimizer is needed, got Linear"):
        synchronize(nn.Linear(1, 1))
    with pytest.raises(InputError, match="no parameters that require gradients"):
        synchronize(LocalSGD([w.requires_grad_(False)], lr=0.1, local_steps=1))


@pytest.mark.usefixtures("alone")
def test_an_irregular_schedule_becomes_regular() -> None:
    w, optimizer = make()
    averages = synchronize(optimizer, at=[3, 5])
    w.grad = torch.ones(3)
    rounds = []
    for _ in range(14):
        optimizer.step()
        rounds.append(averages.rounds)
    assert rounds == [0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4]


@pytest.mark.usefixtures("alone")
def test_a_second_synchronizer_replaces_the_first() -> None:
    w, optimizer = make()
    first, second = synchronize(optimizer), synchronize(optimizer)
    w.grad = torch.ones(3)
    for _ in range(4):
        optimizer.step()
    assert (first.rounds, second.rounds) == (0, 1)


@pytest.mark.usefixtures("alone")
def test_a_second_synchronizer_continues_a_decay() -> None:
    w, optimizer = make(lr=Decay(0.4, "1/r"))
    synchronize(optimizer)
    w.grad = torch.ones(3)
    lrs = []
    for t in range(12):
        if t == 6:
            synchronize(optimizer)
        optimizer.step()
        lrs.append(optimizer.param_groups[0]["lr"])
    assert lrs == pytest.approx([0.4] * 3 + [0.2] * 4 + [0.4 / 3] * 4 + [0.1])


@pytest.mark.usefixtures("alone")
def test_a_decay_falls_when_an_average_is_applied() -> None:
    w, optimizer = make(lr=Decay(0.4, "1/r"))
    averages = synchronize(optimizer, at=[1, 3, 4], overlap=True, delay_steps=2)
    w.grad = torch.ones(3)
    lrs = []
    for t in range(7):
        if t == 6:
            averages.synchronize()  # not the end of a round
        optimizer.step()
        lrs.append(optimizer.param_groups[0]["lr"])
    assert lrs == pytest.approx([0.4, 0.4, 0.2, 0.4 / 3, 0.4 / 3, 0.1, 0.1])


@pytest.mark.usefixtures("alone")
def test_a_loaded_state_stays_synchronized_and_a_copy_is_not() -> None:
    w, optimizer = make(local_steps=1)
    averages = synchronize(optimizer)
    w.grad = torch.ones(3)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert averages.rounds == 2
    copy.deepcopy(optimizer).step()
    assert averages.rounds == 2


# Those of PyTorch refuse the step already (test_foreign.py).
@pytest.mark.usefixtures("alone")
def test_new_parameters_need_a_new_synchronizer() -> None:
    w, optimizer = make()
    averages = synchronize(optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    w.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(InputError, match=r"parameters were added or unfrozen; create"):
        averages.synchronize()


# How many numbers of a parameter travel: its sequences, and what is averaged of a state.
@pytest.mark.parametrize(
    ("algorithm", "numbers"),
    [("fedac-i", 2), ("fedavg", 1), ("sgd", 1), ("adamw", 1), ("adamw, averaged", 3)],
)
@pytest.mark.usefixtures("alone")
def test_a_parameter_unfrozen_between_rounds_is_detected(algorithm: str, numbers: int) -> None:
    w, v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer, averages = WORKERS["begin"]([w, v], algorithm, **NUMBERS)
    w.grad = torch.ones(3)
    v.requires_grad_(True).grad = torch.ones(2)
    optimizer.step()
    v.requires_grad_(False)
    before = WORKERS["everything"](averages.optimizer)
    with pytest.raises(InputError, match="parameters were added or unfrozen"):
        averages.synchronize()
    assert WORKERS["everything"](averages.optimizer) == before
    # Of both, though one is frozen now.
    again = WORKERS["attach"](optimizer, algorithm, local_steps=NUMBERS["local_steps"])
    again.synchronize()
    assert again.bytes == 4 * (numbers * 5 + 4)


@pytest.mark.usefixtures("alone")
def test_timeout_may_be_a_numpy_number() -> None:
    _, optimizer = make()
    assert synchronize(optimizer, timeout=np.int64(60)).rounds == 0


@pytest.mark.usefixtures("alone")
def test_buffers_that_a_forward_pass_has_changed_are_averaged_again() -> None:
    model = nn.BatchNorm1d(2)
    averages = synchronize(FedAc(model.parameters(), **NUMBERS), model)
    model(torch.randn(8, 2))
    averages.synchronize()
    assert averages.rounds == 1


@pytest.mark.usefixtures("alone")
def test_a_mask_is_not_averaged() -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    optimizer = FedAc(model.parameters(), **NUMBERS)
    averages = synchronize(optimizer, model)
    averages.synchronize()
    assert model.mask.tolist() == [0.0, -torch.inf]


@pytest.mark.parametrize(
    ("setting", "found"),
    [("lr", "lr=0.05 mu=0.1"), ("weight_decay", "lr=0.1 mu=0.1 weight_decay=0.05")],
)
def test_a_different_lr_during_training_is_detected(processes, setting: str, found: str) -> None:
    for result in results(processes("another_lr", lr=0.1, other=0.05, setting=setting)):
        assert result["rounds"] == 1
        assert result["untouched"]
        assert result["message"] == (
            f"processes differ in lr after 8 steps: lr=0.1 mu=0.1 at rank 0, 1, 3; {found} "
            "at rank 2. Schedulers must do the same in all processes. No state was averaged"
        )


# The second pair is on both sides of where the hash's ninth digit changes.
@pytest.mark.parametrize("lr", [0.3, 0.1000000005])
def test_an_lr_that_differs_by_rounding_is_accepted(processes, lr: float) -> None:
    near = [math.nextafter(lr, 0), math.nextafter(lr, 1)]
    other = max(near, key=lambda x: f"{x:.9g}" != f"{lr:.9g}")
    assert (f"{other:.9g}" != f"{lr:.9g}") == (lr != 0.3)
    for result in results(processes("another_lr", lr=lr, other=other)):
        assert (result["rounds"], result.get("message")) == (2, None)
    given = [{"algorithm": "fedac-i", **NUMBERS, "lr": x} for x in (lr, lr, lr, other)]
    case = {"size": [3] * 4, "options": [{}] * 4, "optimizer": given}
    for messages in results(processes("refuse", cases=[case])):
        assert messages == ["accepted"]


@pytest.mark.usefixtures("alone")
def test_local_steps_cannot_change_during_training() -> None:
    w, optimizer = make()
    synchronize(optimizer)
    optimizer.param_groups[0]["local_steps"] = 2
    w.grad = torch.ones(3)
    for _ in range(3):
        optimizer.step()
    with pytest.raises(InputError, match="local_steps has changed; create a new Synchronizer"):
        optimizer.step()


@pytest.mark.usefixtures("alone")
def test_the_average_of_one_worker_changes_nothing() -> None:
    w, optimizer = make()
    v, free = make()
    averages = synchronize(optimizer, timeout=20)
    for t in range(8):
        w.grad = v.grad = torch.full((3,), float(t))
        optimizer.step()
        free.step()
    assert torch.equal(w, v)
    assert averages.rounds == 2


@pytest.mark.usefixtures("alone")
def test_averaging_between_rounds() -> None:
    w, optimizer = make()
    averages = synchronize(optimizer, overlap=True, delay_steps=2)
    w.grad = torch.ones(3)
    optimizer.step()
    averages.synchronize()
    assert averages.rounds == 1
    averages.flush()
    assert averages.rounds == 1


@pytest.mark.usefixtures("alone")
def test_examples_must_be_counted() -> None:
    w, optimizer = make()
    averages = Synchronizer(optimizer, weighting="examples")
    w.grad = torch.ones(3)
    optimizer.step()
    before = w.detach().clone()
    with pytest.raises(InputError, match=r"call count\(examples\) every step"):
        averages.synchronize()
    for bad in (-1, float("nan"), "3", None, True):
        with pytest.raises(InputError, match="examples must be a whole number, at least 0, got"):
            averages.count(bad)
    assert torch.equal(w, before)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.usefixtures("alone")
def test_no_examples_are_needed_right_after_a_round(overlap: bool) -> None:
    w, optimizer = make()
    averages = synchronize(optimizer, weighting="examples", overlap=overlap)
    w.grad = torch.ones(3)
    for _ in range(8):
        averages.count(5)
        optimizer.step()
    before = w.detach().clone()
    averages.synchronize()
    averages.synchronize()
    assert torch.equal(w, before)


@pytest.mark.usefixtures("alone")
def test_examples_are_counted_before_the_step() -> None:
    w, optimizer = make()
    averages = synchronize(optimizer, weighting="examples")
    w.grad = torch.ones(3)
    with pytest.raises(InputError, match=r"call averages.count\(len\(batch\)\) before every step"):
        optimizer.step()
    averages.count(5)
    optimizer.step()


@pytest.mark.parametrize("algorithm", ["fedac-i", "sgd", "adamw, averaged"])
@pytest.mark.usefixtures("alone")
def test_a_sum_that_overflows_changes_nothing(algorithm: str) -> None:
    w = nn.Parameter(torch.full((3,), 2e38))
    optimizer, averages = WORKERS["begin"](
        [w], algorithm, **NUMBERS, weighting="examples", on_nonfinite="skip-worker"
    )
    w.grad = torch.zeros(3)
    averages.count(2)
    optimizer.step()
    before = WORKERS["everything"](averages.optimizer)
    with pytest.raises(NonFiniteStateError, match=r"sum of all states overflows torch.float32"):
        averages.synchronize()
    assert WORKERS["everything"](averages.optimizer) == before


@pytest.mark.parametrize("algorithm", ["fedac-i", "fedavg", "scaffold", "diloco"])
def test_outputs_differ_in_the_middle_of_a_round_and_are_equal_after_it(processes, algorithm):
    # What docs/pytorch-guide.md says about `eval`.
    ranks = results(processes("evaluated", algorithm=algorithm))
    middle, after = zip(*ranks, strict=True)
    assert len(set(map(tuple, middle))) == WORLD
    assert len(set(map(tuple, after))) == 1


@pytest.mark.usefixtures("alone")
def test_averaging_works_in_eval_mode() -> None:
    w, optimizer = make()
    averages = Synchronizer(optimizer)
    w.grad = torch.ones(3)
    optimizer.step()
    optimizer.eval()
    before = w.detach().clone()
    averages.synchronize()
    assert torch.equal(w, before)
    optimizer.train()
    optimizer.step()


@pytest.mark.usefixtures("alone")
def test_a_subgroup_can_be_given() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = LocalSGD([w], lr=0.1, local_steps=1)
    averages = synchronize(optimizer, group=dist.new_group([0]), timeout=20)
    w.grad = torch.ones(3)
    optimizer.step()
    assert averages.rounds == 1
