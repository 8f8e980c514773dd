# SPDX-License-Identifier: Apache-2.0
"""How rounds of compositions end: compared with a readable twin, and misused."""

import copy
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedac import Decay
from fedac.algorithms import ClientWork, RoundInfo, get
from fedac.errors import InputError
from fedac.torch import LocalOptimizer, NonFiniteStateError, Synchronizer, synchronize

WORLD = 4
NUMBERS = {"lr": 0.3, "mu": 0.2, "local_steps": 4}
MEMORY, SERVER, BOTH = "scaffold", "diloco(0.7, 0.5)", "fedac-i+cv+nesterov(1, 0.3)"
NAMES = [
    MEMORY, SERVER, BOTH, "scaffnew", "fedac-ii+local", "fedprox(0.3)", "outer-nesterov(0.8)",
    "fedac-ii+local+cv+momentum(1, 0.5)",
]  # fmt: skip
every_algorithm = pytest.mark.parametrize("name", NAMES)


# -- a readable twin ---------------------------------------------------------------------------

GRADIENTS = np.random.default_rng(0).standard_normal((WORLD, 14, 3))
BAD = {2}
WITH_NAN = GRADIENTS.copy()
WITH_NAN[list(BAD), 5, 1] = np.nan


def by_hand(name, *, gradients, lr, delay, weights):
    """Return what every worker has after every step: what it works on, remembers, and was sent."""
    algorithm = get(name)

    def couple(r):
        eta = Decay(*lr).at(r) if isinstance(lr, list) else lr
        return algorithm.couple(eta=eta, mu=NUMBERS["mu"], K=NUMBERS["local_steps"])

    r, hp = 0, couple(0)
    sequences, server = algorithm.split(algorithm.start(np.zeros(3)))
    memory = [algorithm.begin_memory(sequences) for _ in range(WORLD)]
    local = [algorithm.enter(sequences, memory[m], hp) for m in range(WORLD)]
    history, pending, taken = [], None, 0

    def arrive():
        nonlocal r, hp, sequences, server
        left, before = pending[1:]
        good = [m for m in range(WORLD) if np.isfinite(left[m][0]).all()]
        total = sum(weights[m] for m in good)
        mean = tuple(sum(weights[m] * np.stack(left[m][0]) for m in good) / total)
        this = RoundInfo(number=r, share=len(good) / WORLD)
        sequences, server = algorithm.serve(mean, sequences, server, hp, this)
        r, hp = r + 1, couple(r + 1)
        for m in range(WORLD):
            if m in good:
                memory[m] = left[m][1]
            local[m] = tuple(
                new + (now - then if m in good else 0.0)
                for new, now, then in zip(
                    algorithm.enter(sequences, memory[m], hp), local[m], before[m], strict=True
                )
            )

    for t in range(gradients.shape[1]):
        for m in range(WORLD):
            w_md = algorithm.query(local[m], hp)
            local[m] = algorithm.update(local[m], w_md, gradients[m, t], hp)
        taken += 1
        if pending is not None and t + 1 == pending[0] + delay:
            arrive()
            pending = None
        if (t + 1) % NUMBERS["local_steps"] == 0:
            left = [
                algorithm.leave(local[m], sequences, memory[m], hp, ClientWork(steps=taken))
                for m in range(WORLD)
            ]
            pending, taken = (t + 1, left, list(local)), 0
            if not delay:
                arrive()
                pending = None
        parts = [{"sent": sequences, "memory": memory[m], "server": server} for m in range(WORLD)]
        history.append(list(zip(local, parts, strict=True)))
    return history


CASES = {
    (name, delay, kind): {
        "gradients": WITH_NAN if kind == "skipped" else GRADIENTS,
        "lr": [0.3, "1/sqrt(r)"] if kind == "falling" else 0.3,
        "delay": delay,
        "weights": (1, 2, 3, 4) if kind == "weighted" else (1, 1, 1, 1),
    }
    for name in NAMES
    for delay in (0, 1, 3)
    for kind in ("equal", "weighted", "falling", "skipped")
}


@pytest.fixture(scope="module")
def real_runs(processes):
    """Return what every rank returns, by case."""
    runs = []
    for (name, _, kind), case in CASES.items():
        options = {"overlap": True, "delay_steps": case["delay"]} if case["delay"] else {}
        if kind == "weighted":
            options["weighting"] = "examples"
        if kind == "skipped":
            options["on_nonfinite"] = "skip-worker"
        runs.append(
            {
                "gradients": case["gradients"].tolist(),
                "optimizer": {"algorithm": name, **NUMBERS, "lr": case["lr"]},
                "options": options,
                "examples": case["weights"],
            }
        )
    ended = processes("several", runs=runs)
    for process in ended:
        assert process.code == 0, process.err
    return dict(zip(CASES, zip(*(p.result for p in ended), strict=True), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_follow_the_twin(real_runs, case) -> None:
    wanted = by_hand(case[0], **CASES[case])
    for rank, result in enumerate(real_runs[case]):
        assert result["error"] is None
        for t, step in enumerate(wanted):
            local, parts = step[rank]
            found = {"local": result["states"][t], **result["kept"][t]}
            for part, values in {"local": local, **parts}.items():
                np.testing.assert_allclose(found[part], values, rtol=1e-12, atol=1e-12)
        assert np.isfinite(result["w"]).all()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_refused_average_changes_nothing(processes, overlap: bool) -> None:
    runs = [
        {
            "gradients": WITH_NAN.tolist(),
            "optimizer": {"algorithm": name, **NUMBERS},
            "options": {"overlap": overlap},
            "examples": [1] * WORLD,
        }
        for name in NAMES
    ]
    for process in processes("several", runs=runs):
        assert process.code == 0, process.err
        for result in process.result:
            assert result["error"] == "NonFiniteStateError"
            assert result["untouched"]
            assert result["rounds"] == 1


def test_a_start_that_differs_is_refused(processes) -> None:
    for process in processes("late", world=2):
        assert process.code == 0, process.err
        served, averaged = process.result
        assert served.startswith("processes differ in state after the last round (sums of")
        assert averaged == "accepted"  # the next mean makes them equal


# -- one process -------------------------------------------------------------------------------


def make(name, *, dtype=torch.float64, **options):
    w = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]).to(dtype))
    return w, LocalOptimizer([w], name, **(NUMBERS | options))


def run(w, optimizer, steps: int) -> None:
    curvature = torch.tensor([0.2, 0.5, 1.0])
    for _ in range(steps):
        noise = torch.sin(torch.arange(3.0) * (optimizer.steps + 1))
        w.grad = (curvature * w.detach().double() + noise / 4).to(w.dtype)
        optimizer.step()


def everything(optimizer):
    """Return all that an optimizer has."""
    (w,) = optimizer.parameters()
    tensors = [w, *optimizer.sequences(w)]
    if not optimizer.takes_mean:
        tensors += [t for part in ("sent", "memory", "server") for t in optimizer.kept(w, part)]
    return [tensor.detach().clone() for tensor in tensors]


def same(one, other) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@every_algorithm
def test_without_a_synchronizer_there_are_only_local_steps(name: str) -> None:
    w, optimizer = make(name)
    run(w, optimizer, 9)
    algorithm = optimizer.algorithm
    hp = optimizer.hyperparameters(optimizer.param_groups[0])
    start = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    sequences, _ = algorithm.split(algorithm.start(start))
    local = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
    for t in range(9):
        w_md = algorithm.query(local, hp)
        g = torch.tensor([0.2, 0.5, 1.0]) * w_md + torch.sin(torch.arange(3.0) * (t + 1)) / 4
        local = algorithm.update(local, w_md, g, hp)
    for found, wanted in zip(optimizer.sequences(w), local, strict=True):
        torch.testing.assert_close(found.detach(), wanted, rtol=1e-12, atol=1e-12)
    assert optimizer.rounds == 0


@every_algorithm
@pytest.mark.usefixtures("alone")
def test_the_output_is_that_of_a_round_that_ends_now(name: str) -> None:
    w, optimizer = make(name)
    averages = Synchronizer(optimizer)
    for steps in (1, 3, 2):
        run(w, optimizer, steps)
        before = everything(optimizer)
        optimizer.eval()
        output = w.detach().clone()
        optimizer.train()
        assert same(everything(optimizer), before)
        averages.synchronize()  # alone, this is the end of the round
        optimizer.eval()
        torch.testing.assert_close(w.detach(), output, rtol=1e-12, atol=1e-12)
        algorithm, hp = optimizer.algorithm, optimizer.hyperparameters(optimizer.param_groups[0])
        wanted = algorithm.output(tuple(optimizer.snapshot(w)), hp, optimizer.steps)
        assert torch.equal(w, wanted)
        optimizer.train()


def test_the_output_before_the_first_round() -> None:
    w, optimizer = make("outer-nesterov")
    optimizer.eval()
    assert w.tolist() == [1.0, -2.0, 3.0]
    optimizer.train()
    run(w, optimizer, 1)


@every_algorithm
@pytest.mark.usefixtures("alone")
def test_averaging_in_eval_mode(name: str) -> None:
    (w, optimizer), (v, other) = make(name), make(name)
    averages, others = Synchronizer(optimizer), Synchronizer(other)
    for _ in range(2):
        run(w, optimizer, 3)
        run(v, other, 3)
        optimizer.eval()
        averages.synchronize()
        optimizer.train()
        others.synchronize()
        assert same(everything(optimizer), everything(other))


@pytest.mark.parametrize("name", [*NAMES, "fedac-i", "fedavg"])
@pytest.mark.usefixtures("alone")
def test_a_second_average_without_a_step_does_nothing(name: str) -> None:
    w, optimizer = make(name)
    averages = synchronize(optimizer)
    averages.synchronize()
    assert (averages.rounds, averages.bytes) == (0, 0)
    run(w, optimizer, 4)
    before, sent = everything(optimizer), averages.bytes
    averages.synchronize()
    assert not averages.step()
    assert same(everything(optimizer), before)
    assert (averages.rounds, optimizer.rounds, averages.bytes) == (1, 1, sent)


@every_algorithm
@pytest.mark.parametrize("moment", [4, 6])
@pytest.mark.usefixtures("alone")
def test_a_second_synchronizer_continues(name: str, moment: int) -> None:
    results = []
    for again in (False, True):
        w, optimizer = make(name, lr=Decay(0.3, "1/sqrt(r)"))
        synchronize(optimizer)
        run(w, optimizer, moment)
        if again:
            synchronize(optimizer)
        run(w, optimizer, 12 - moment)
        assert optimizer.rounds == 3
        results.append(everything(optimizer))
    assert same(*results)


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("evaluating", [True, False])
@pytest.mark.parametrize("moment", [0, 4, 6])
@pytest.mark.usefixtures("alone")
def test_a_loaded_state_dict_continues_bit_for_bit(name, dtype, evaluating, moment) -> None:
    w, optimizer = make(name, dtype=dtype)
    synchronize(optimizer)
    run(w, optimizer, moment)
    if evaluating:
        optimizer.eval()
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), w.detach()], file)
    file.seek(0)
    state, value = torch.load(file, weights_only=True)
    v, twin = make(name, dtype=dtype)
    run(v, twin, 1)  # a state of its own, to be replaced
    twin.load_state_dict(state)
    with torch.no_grad():
        v.copy_(value)
    synchronize(twin)
    for p, each in ((w, optimizer), (v, twin), *([] if evaluating else [pickled(optimizer)])):
        each.train()
        if each.after_step is None:
            synchronize(each)
        run(p, each, 12 - moment)
        assert same(everything(each), everything(optimizer))
    assert twin.rounds == 3


def pickled(optimizer):
    again = copy.deepcopy(optimizer)
    return *again.parameters(), again


@pytest.mark.usefixtures("alone")
def test_states_of_another_kind_are_refused() -> None:
    w, optimizer = make(BOTH)
    run(w, optimizer, 2)
    for damage in (lambda s: s.pop("memory/c_m"), lambda s: s.update(more=torch.zeros(3))):
        state = optimizer.state_dict()
        state["state"] = {0: dict(state["state"][0])}
        damage(state["state"][0])
        with pytest.raises(InputError, match="cannot load this state: it belongs to another model"):
            make(BOTH)[1].load_state_dict(state)
    with pytest.raises(InputError, match=r"by algorithm .*, not 'scaffold'"):
        make(MEMORY)[1].load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(
    ("name", "copies"),
    [("fedavg", 0), ("fedavg+step(2)", 1), (SERVER, 2), ("fedac-i+step(2)", 4), ("fedadam", 3)],
)
@pytest.mark.usefixtures("alone")
def test_a_server_rule_keeps_what_was_sent_and_its_own(name: str, copies: int) -> None:
    w, optimizer = make(name)
    synchronize(optimizer)
    run(w, optimizer, 6)
    optimizer.eval()
    optimizer.train()
    held = {tensor.data_ptr() for tensor in optimizer.state.get(w, {}).values()} - {w.data_ptr()}
    assert len(held) == copies


@every_algorithm
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("alone")
def test_half_precision_parameters_keep_float32_sequences(name: str, dtype) -> None:
    w, optimizer = make(name, dtype=dtype)
    synchronize(optimizer)
    run(w, optimizer, 6)
    assert {tensor.dtype for tensor in optimizer.state[w].values()} == {torch.float32}
    v, single = make(name, dtype=torch.float32)
    synchronize(single)
    run(v, single, 6)
    torch.testing.assert_close(w.float(), v, rtol=0.05, atol=0.05)


@pytest.mark.usefixtures("alone")
def test_a_group_that_stands_still_is_not_served() -> None:
    (w, _), (v, _) = make(BOTH), make(BOTH)
    optimizer = LocalOptimizer([{"params": [w]}, {"params": [v]}], BOTH, **NUMBERS)
    lrs = [lambda t: 1.0, lambda t: 0.0 if 4 <= t < 8 else 1.0]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lrs)
    synchronize(optimizer)

    def train(steps):
        for _ in range(steps):
            w.grad, v.grad = torch.ones_like(w), torch.ones_like(v)
            optimizer.step()
            scheduler.step()

    train(4)
    moved = optimizer.snapshot(w)[0].clone()
    still = {name: tensor.clone() for name, tensor in optimizer.state[v].items()}
    train(4)  # its momentum does not carry the second group on
    assert not torch.equal(optimizer.snapshot(w)[0], moved)
    assert all(torch.equal(optimizer.state[v][name], tensor) for name, tensor in still.items())
    train(4)
    assert not torch.equal(optimizer.state[v]["sent/w"], still["sent/w"])


@pytest.mark.parametrize("name", ["scaffnew", "slowmo", MEMORY, BOTH])
@pytest.mark.usefixtures("alone")
def test_a_scheduler_that_falls_with_every_round(name: str) -> None:
    """The first step of a round has the lr of the new round; so has what is entered."""
    if name == BOTH:
        name = "momentum(0.5)+cv"  # FedAc's first w_md would be that of the old lr
    w, optimizer = make(name)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda r: 1 / (r + 1))
    synchronize(optimizer)
    v, falling = make(name, lr=Decay(0.3, "1/r"))
    synchronize(falling)
    for _ in range(3):
        run(w, optimizer, 4)
        scheduler.step()
        run(v, falling, 4)
    for found, wanted in zip(optimizer.snapshot(w), falling.snapshot(v), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("alone")
def test_every_group_is_served_with_its_own_settings() -> None:
    (w, one), (v, other) = make("slowmo"), make("slowmo", lr=0.1)
    groups = [{"params": [nn.Parameter(w.detach().clone())]}]
    groups += [{"params": [nn.Parameter(v.detach().clone())], "lr": 0.1}]
    both = LocalOptimizer(groups, "slowmo", **NUMBERS)
    for optimizer in (one, other, both):
        synchronize(optimizer)
        for t in range(8):
            for p in optimizer.parameters():
                p.grad = p.detach() + t
            optimizer.step()
    wanted = [*one.snapshot(w), *other.snapshot(v)]
    assert same([t for p in both.parameters() for t in both.snapshot(p)], wanted)


@every_algorithm
@pytest.mark.usefixtures("alone")
def test_restart_forgets_everything(name: str) -> None:
    w, optimizer = make(name)
    synchronize(optimizer)
    run(w, optimizer, 6)
    optimizer.restart()
    v = nn.Parameter(w.detach().clone())
    fresh = LocalOptimizer([v], name, **NUMBERS)
    averages = [Synchronizer(each) for each in (optimizer, fresh)]
    optimizer.after_step = None
    for p, each, average in ((w, optimizer, averages[0]), (v, fresh, averages[1])):
        for g in (1.0, 2.0):
            p.grad = torch.full_like(p, g)
            each.step()
        average.synchronize()
    assert same(everything(optimizer), everything(fresh))


@pytest.mark.usefixtures("alone")
def test_what_is_remembered_must_be_finite() -> None:
    w, optimizer = make("fedac-i+local")
    averages = synchronize(optimizer)
    run(w, optimizer, 2)
    optimizer.state[w]["w"][0] = torch.inf  # it stays here, and would come back
    with pytest.raises(NonFiniteStateError, match="the state of rank 0 holds NaN or infinity"):
        averages.synchronize()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.usefixtures("alone")
def test_buffers_are_averaged_beside_a_composition(overlap: bool) -> None:
    def train(averaged):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double()
        optimizer = LocalOptimizer(model.parameters(), MEMORY, **NUMBERS)
        averages = synchronize(optimizer, model if averaged else None, overlap=overlap)
        for t in range(6):
            optimizer.zero_grad()
            model(torch.sin(torch.arange(8.0).double().reshape(4, 2) * (t + 1))).sum().backward()
            optimizer.step()
        return model, averages

    (one, averages), (other, _) = train(True), train(False)
    # The mean of one worker is its own, but for rounding.
    torch.testing.assert_close(list(one.buffers()), list(other.buffers()), rtol=1e-12, atol=1e-12)
    assert averages.bytes == 8 * (2 * 15 + 2 * 3 + 4)  # w and c, two buffers, a header


@pytest.mark.parametrize("name", [SERVER, BOTH])
def test_evaluating_in_inference_mode(name: str) -> None:
    (w, optimizer), (v, other) = make(name), make(name)
    for _ in range(2):
        run(w, optimizer, 2)
        with torch.inference_mode():
            optimizer.eval()
        optimizer.train()
        run(v, other, 2)
    assert same(everything(optimizer), everything(other))


@every_algorithm
def test_a_parameter_changed_by_something_else(name: str) -> None:
    w, optimizer = make(name)
    run(w, optimizer, 2)
    with torch.no_grad():
        w.mul_(0.5)
    if optimizer.in_place:  # as with SGD of PyTorch
        run(w, optimizer, 1)
    else:
        with pytest.raises(InputError, match="was changed, converted or moved by something other"):
            run(w, optimizer, 1)
    optimizer.restart()
    optimizer.eval()
    optimizer.train()
    run(w, optimizer, 1)
    w.data = w.data.float()
    with pytest.raises(InputError, match="was changed, converted or moved by something other"):
        run(w, optimizer, 1)


def test_records_with_mistakes_are_refused_at_the_start() -> None:
    scaffold = get("scaffold")
    broken = replace(scaffold, name="mine", leave=lambda local, *_: (local, ()))
    with pytest.raises(InputError, match="algorithm 'mine': leave must return a tuple of 2"):
        make(broken)
    elsewhere = replace(scaffold, name="mine", enter=lambda s, memory, hp: (0 * s[0], s[1], s[1]))
    with pytest.raises(InputError, match="'mine' does not take its first gradient at w_0"):
        make(elsewhere)
