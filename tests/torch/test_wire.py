# SPDX-License-Identifier: Apache-2.0
"""Rounded messages between real processes: they follow the simulator, and cost what they should."""

import copy
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from fedac import Clients, LogisticRegression, Schedule, simulate
from fedac.algorithms import get
from fedac.errors import InputError
from fedac.federation.compression import bytes_of, keys_of, rounded
from fedac.torch import FedAc, LocalOptimizer, LocalSGD, synchronize

OWNERS = np.repeat([2, 0, 3, 1], [1, 6, 13, 25])  # rank 2 has one row, rank 1 has 25
WORLD, DIM = 4, 300  # more numbers than share a scale
L2, SEED, K, T, ETA = 0.05, 5, 8, 32, 0.1
IRREGULAR = [1, 4, 12, 18, 25, 32]
LOSSY = ["int8", "bfloat16"]
IN_HEADER = 4  # numbers
HEADER = 8 * IN_HEADER

METHODS = {
    "fedavg": {"weighting": "examples", "batch": 4},
    "fedac-i": {"weighting": "uniform", "batch": "full", "at": IRREGULAR},
    "scaffold": {"weighting": "uniform", "batch": 4},
    "scaffnew": {"weighting": "uniform", "batch": "full"},
    "fedac-i+cv+nesterov(1,0.3)": {"weighting": "examples", "batch": 1},
    "fedavg-weighted": {"weighting": "examples", "batch": 4},
    "momentum(0.5)+local": {"weighting": "uniform", "batch": 1, "at": IRREGULAR},
    "feddyn(0.5)": {"weighting": "examples", "batch": 4},
    "fedcm(0.2)": {"weighting": "examples", "batch": 4, "at": IRREGULAR},
    "fedac-i+exp": {"weighting": "examples", "batch": "full"},
    "mimelite(0.5)+exp+cv": {"weighting": "uniform", "batch": 4},
}
RUNS = [(wire, name) for wire in LOSSY for name in METHODS]
# Summed in bfloat16 by an all-reduce: without control variates nobody needs the single messages.
SUMMED = [
    ("bfloat16", name)
    for name in METHODS
    if not any(piece in name for piece in ("scaff", "cv", "feddyn"))
]


def results(ended):
    for process in ended:
        assert process.code == 0, process.err
    return [process.result for process in ended]


# -- the simulator -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(3)
    y = np.where(np.arange(len(OWNERS)) % 7 < 3, 1.0, -1.0)
    X = rng.standard_normal((len(OWNERS), DIM)) / 8 + OWNERS[:, None] * y[:, None] / 30
    return LogisticRegression(X, y, l2=L2), X, y, rng.standard_normal(DIM)


@pytest.fixture(scope="module")
def in_processes(processes, problem, tmp_path_factory):
    """Return for every run, and for every run that was interrupted, what its ranks return."""
    folder = tmp_path_factory.mktemp("wire")
    _, X, y, start = problem
    np.savez(folder / "problem.npz", X=X, y=y, start=start, owners=OWNERS)
    common = {"K": K, "T": T, "eta": ETA, "mu": L2, "l2": L2, "seed": SEED, "wire_seed": SEED}
    runs = {
        (wire, name): common | METHODS[name] | {"algorithm": name, "wire": wire}
        for wire, name in RUNS
    }
    for i, key in enumerate(RUNS):
        after = 12 if "at" in runs[key] else 16
        runs[*key, "resumed"] = runs[key] | {"resume": {"after": after, "path": f"{folder}/{i}.pt"}}
    ended = processes("logistic", problem=str(folder / "problem.npz"), runs=[*runs.values()])
    by_run = zip(*results(ended), strict=True)
    return dict(zip(runs, by_run, strict=True))


def simulated(problem, wire, name):
    """Return the server's states and the outputs after all rounds."""
    F, _, _, start = problem
    states, outputs, this = [], [], dict(METHODS[name])
    at = this.pop("at", None)
    simulate(
        F, name, clients=Clients(OWNERS), K=Schedule.at(at) if at else K, T=T, mu=L2, eta=ETA,
        seed=SEED, start=start, record_every=1, engine="reference", precision="float64", wire=wire,
        callbacks=[
            lambda record: states.append(np.stack(record.state)),
            lambda record: outputs.append(record.w),
        ],
        **this,
    )  # fmt: skip
    return np.stack(states), np.stack(outputs)


@pytest.mark.parametrize(("wire", "name"), [run for run in RUNS if run not in SUMMED])
def test_processes_reproduce_the_simulators_clients(in_processes, problem, wire, name) -> None:
    states, outputs = simulated(problem, wire, name)
    for rank in in_processes[wire, name]:
        np.testing.assert_allclose(rank["states"], states[1:], rtol=0, atol=1e-9)
        np.testing.assert_allclose(rank["outputs"], outputs[1:], rtol=0, atol=1e-9)
        assert torch.equal(rank["states"], in_processes[wire, name][0]["states"])


@pytest.mark.parametrize(("wire", "name"), SUMMED)
def test_sums_in_bfloat16_stay_close_and_equal(in_processes, problem, wire, name) -> None:
    states, _ = simulated(problem, "float32", name)
    way = np.abs(np.diff(states, axis=0)).sum(axis=0).max()
    for rank in in_processes[wire, name]:
        gap = np.abs(rank["states"].numpy() - states[1:]).max()
        assert 0 < gap < 2**-7 * way  # half of what a message and three sums may be off by
        assert torch.equal(rank["states"], in_processes[wire, name][0]["states"])


@pytest.mark.parametrize(("wire", "name"), RUNS)
def test_what_travels_is_the_rounded_message(in_processes, wire, name) -> None:
    rounds = len(IRREGULAR) if "at" in METHODS[name] else T // K
    numbers = get(name).vectors_up * DIM
    message = get(name).vectors_up * bytes_of(wire, DIM)
    summed = (wire, name) in SUMMED
    # Not rounded, of one parameter group; in gathered messages everybody measures the moves.
    asked = ("moves" in get(name).asks and summed) + ("steps" in get(name).asks)
    for rank in in_processes[wire, name]:
        # All headers are in a sum, in float64 as the model.
        header = HEADER * (WORLD if summed else 1)
        assert rank["bytes"] == (message + header + 8 * asked) * rounds
        sums = [numbers, IN_HEADER * WORLD + asked] * rounds
        assert rank["all_reduces"] == (sums if summed else [])


@pytest.mark.parametrize(("wire", "name"), RUNS)
def test_a_resumed_run_ends_with_the_same_bits(in_processes, wire, name) -> None:
    pairs = zip(in_processes[wire, name], in_processes[wire, name, "resumed"], strict=True)
    for whole, resumed in pairs:
        assert torch.equal(whole["states"], resumed["states"])


@pytest.mark.parametrize("wire", LOSSY)
def test_moves_are_measured_as_they_arrive(processes, wire: str) -> None:
    # Every rank moves along an axis, by a number that bfloat16 rounds and int8 hardly does.
    examples = torch.tensor(EXAMPLES, dtype=torch.float64)
    lengths, share = (5 - examples) * (1 + 2**-9), examples / sum(EXAMPLES)
    job = {
        "gradients": (-torch.diag(lengths)[:, None]).tolist(), "examples": EXAMPLES,
        "options": {"wire": wire, "weighting": "examples"},
        "optimizer": {"algorithm": "fedexp", "lr": 1.0, "mu": 0.1, "local_steps": 1},
    }  # fmt: skip
    arrived = lengths
    if wire == "bfloat16":  # a rank sends its move times its part of the sum
        factor = examples / WORLD
        arrived = (factor * lengths).bfloat16().double() / factor
        assert not torch.equal(arrived, lengths)
    mean = share * arrived
    gamma = share @ arrived**2 / (2 * (mean @ mean + 1e-3))
    assert gamma > 1.5
    for rank in results(processes("steps", **job)):
        np.testing.assert_allclose(rank["w"], gamma * mean, rtol=1e-5 if wire == "int8" else 1e-12)


def test_wires_differ(in_processes) -> None:
    ends = [in_processes[wire, "fedavg"][0]["states"][-1] for wire in LOSSY]
    assert (ends[0] - ends[1]).abs().max() > 1e-4


# -- by hand -----------------------------------------------------------------------------------

GRADIENTS = np.random.default_rng(0).standard_normal((WORLD, 12, 3))
NUMBERS = {"lr": 0.3, "mu": 0.2, "local_steps": 4}
EXAMPLES = (1, 2, 3, 4)


def by_hand(name, wire, *, gradients, delay):
    """Return the state of every worker after every step, by the definitions.

    A worker that is not finite at the end of a round is left out, and takes over the average.
    """
    algorithm = get(name)
    hp = algorithm.couple(eta=NUMBERS["lr"], mu=NUMBERS["mu"], K=NUMBERS["local_steps"])
    S = len(algorithm.sequences)
    states, base, history, pending = np.zeros((WORLD, S, 3)), np.zeros((S, 3)), [], None

    def arrive(mean, before):
        good = np.isfinite(before).all(axis=(1, 2), keepdims=True)
        return np.where(good, mean + (states - before), mean), mean

    for t in range(1, gradients.shape[1] + 1):
        for m in range(WORLD):
            w_md = algorithm.query(tuple(states[m]), hp)
            after = algorithm.update(tuple(states[m]), w_md, gradients[m, t - 1], hp)
            states[m] = np.stack(after)
        if pending is not None and t % 4 == delay:
            (states, base), pending = arrive(*pending), None
        if t % 4 == 0:
            good = np.flatnonzero(np.isfinite(states).all(axis=(1, 2)))
            keys = keys_of(SEED, good[:, None], t // 4 - 1, np.arange(S))
            arrived = base + rounded(wire, states[good] - base, keys)
            mean = np.average(arrived, axis=0, weights=np.array(EXAMPLES)[good])
            pending = (mean, states.copy())
            if not delay:
                (states, base), pending = arrive(*pending), None
        history.append(states.copy())
    if pending is not None:
        history.append(arrive(*pending)[0])
    return np.stack(history, axis=1)


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("bad", [None, 2])
def test_overlap_and_a_worker_that_is_skipped(processes, delay, bad) -> None:
    gradients = GRADIENTS.copy()
    if bad is not None:
        gradients[bad, 5, 1] = np.nan
    runs = [(wire, name) for wire in LOSSY for name in ("fedac-i", "fedavg")]
    options = {"weighting": "examples", "on_nonfinite": "skip-worker", "wire_seed": SEED}
    options |= {"overlap": True, "delay_steps": delay} if delay else {}
    given = [
        {
            "gradients": gradients.tolist(), "optimizer": {"algorithm": name, **NUMBERS},
            "options": options | {"wire": wire}, "examples": EXAMPLES, "flush": bool(delay),
        }
        for wire, name in runs
    ]  # fmt: skip
    ranks = results(processes("several", runs=given))
    for i, (wire, name) in enumerate(runs):
        wanted = by_hand(name, wire, gradients=gradients, delay=delay)
        for rank in range(WORLD):
            assert ranks[rank][i]["error"] is None
            atol = 1e-12 if wire == "int8" else 0.03  # three rounds of sums in bfloat16
            np.testing.assert_allclose(ranks[rank][i]["states"], wanted[rank], atol=atol)


def test_an_all_reduce_in_bfloat16_is_as_precise_as_it_can_be(processes) -> None:
    given = {
        "gradients": GRADIENTS[:, :4].tolist(), "optimizer": {"algorithm": "fedavg", **NUMBERS},
        "options": {"weighting": "examples", "wire": "bfloat16"}, "examples": EXAMPLES,
    }  # fmt: skip
    moves = -NUMBERS["lr"] * GRADIENTS[:, :4].sum(axis=1)  # from 0
    exact = np.average(moves, axis=0, weights=EXAMPLES)
    # A message is rounded once, and then up to three sums with it, each by a 256th of it at most.
    most = WORLD / 256 * np.average(np.abs(moves), axis=0, weights=EXAMPLES)
    ends = [np.array(rank["states"][-1][0]) for rank in results(processes("steps", **given))]
    for end in ends:
        assert (np.abs(end - exact) <= most).all()
        assert (end != exact).all()
        np.testing.assert_array_equal(end, ends[0])


# -- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, 1e300])  # the latter is infinite on the wire
@pytest.mark.parametrize("wire", LOSSY)
def test_a_state_that_is_not_finite_stops_all_workers(processes, wire, bad) -> None:
    gradients = GRADIENTS.copy()
    gradients[2, 5, 1] = bad
    ranks = results(processes(
        "steps", gradients=gradients.tolist(), optimizer={"algorithm": "scaffold", **NUMBERS},
        options={"wire": wire}, examples=EXAMPLES,
    ))  # fmt: skip
    for result in ranks:
        assert result["error"] == "NonFiniteStateError"
        assert "the state of rank 2 holds NaN or infinity after 8 steps" in result["message"]
        assert result["untouched"]


@pytest.mark.parametrize(("how", "limit"), [("dies", 120), ("stops", 2)])
@pytest.mark.parametrize("wire", LOSSY)
def test_all_others_hear_of_a_lost_worker(processes, wire, how, limit) -> None:
    ended = processes("doomed", algorithm="fedavg", victim=2, how=how, limit=limit, wire=wire)
    for rank in (0, 1, 3):
        assert "WorkerLostError: rank " in ended[rank].err
        assert "synchronization 3 failed" in ended[rank].err


def test_ranks_that_differ_are_found(processes) -> None:
    same = {"size": [3] * 4, "optimizer": [{"algorithm": "fedavg", **NUMBERS}] * 4}
    int8 = {"wire": "int8"}
    cases = [
        same | {"options": [int8, int8, {"wire": "bfloat16"}, {}]},
        same | {"options": [int8, int8, int8, int8 | {"wire_seed": 7}]},
    ]
    for messages in results(processes("refuse", cases=cases)):
        assert messages == [
            "processes differ in wire: int8 at rank 0, 1; bfloat16 at rank 2; float32 at rank 3",
            "processes differ in wire_seed: 0 at rank 0, 1, 2; 7 at rank 3",
        ]


def test_ranks_that_have_already_moved_apart_are_refused(processes) -> None:
    for messages in results(processes("late", wire="int8")):
        assert all("differ in state after the last round" in message for message in messages)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wire": "int4"}, "unknown wire format 'int4'; did you mean 'int8'"),
        ({"wire_seed": -1}, "wire_seed must be a whole number"),
    ],
)
def test_unknown_options(alone, options, message) -> None:
    with pytest.raises(InputError, match=message):
        synchronize(LocalSGD([nn.Parameter(torch.zeros(3))], lr=0.1, local_steps=2), **options)


# -- in one process ----------------------------------------------------------------------------


def train(optimizer, *, steps) -> None:
    for _ in range(steps):
        for p in optimizer.parameters():
            p.grad = p.detach() - torch.linspace(-1, 1, p.numel()).view_as(p).to(p)
        optimizer.step()


@pytest.mark.parametrize(("wire", "most"), [("int8", 0.27), ("bfloat16", 0.51)])
@pytest.mark.parametrize("numbers", [1024, 5000])
def test_bytes_are_a_quarter_or_half(alone, wire, most, numbers) -> None:
    handed_over = {}
    for this in ("float32", wire):
        optimizer = FedAc([nn.Parameter(torch.ones(numbers))], lr=0.1, mu=0.1, local_steps=2)
        averages = synchronize(optimizer, wire=this)
        train(optimizer, steps=4)
        handed_over[this] = averages.bytes
    header = {"int8": HEADER, "bfloat16": HEADER // 2}  # a sum is in float32, as the model
    assert handed_over[wire] == 2 * (2 * bytes_of(wire, numbers) + header[wire])
    assert handed_over[wire] / handed_over["float32"] <= most


def test_float32_keeps_nothing_more(alone) -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=2)
    synchronize(optimizer, wire="float32")
    train(optimizer, steps=2)
    assert set(optimizer.state[w]) == {"w_ag", "w"}


@pytest.mark.parametrize(("wire", "header"), [("int8", HEADER), ("bfloat16", HEADER // 2)])
def test_buffers_are_not_rounded(alone, wire, header) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    averages = synchronize(LocalSGD(model.parameters(), lr=0.1, local_steps=2), model, wire=wire)
    model(torch.randn(8, 2))
    before = copy.deepcopy(model[1].running_mean)
    train(averages.optimizer, steps=2)
    assert torch.equal(model[1].running_mean, before)
    assert averages.bytes == bytes_of(wire, 15) + 4 * 6 + header


def test_chunks_are_rounded_as_a_whole(alone) -> None:
    # More numbers than are rounded at once, in parameters whose ends no chunk and no block has.
    sizes = [(33_000, 2), (1,), (7, 1001), (70_000,)]
    first = [torch.randn(size, dtype=torch.float64) for size in sizes]
    params = [nn.Parameter(value.clone()) for value in first]
    optimizer = LocalSGD(params, lr=0.5, local_steps=1)
    averages = synchronize(optimizer, wire="int8", wire_seed=SEED)
    for p in params:
        p.grad = torch.sin(p.detach())
    optimizer.step()
    before, moves = (
        np.concatenate([x.reshape(-1).numpy() for x in part])
        for part in (first, [-0.5 * torch.sin(x) for x in first])
    )
    wanted = before + rounded("int8", moves, keys_of(SEED, 0, 0, 0))
    np.testing.assert_allclose(torch.cat([p.detach().reshape(-1) for p in params]), wanted,
                               rtol=0, atol=1e-14)  # fmt: skip
    assert averages.bytes == bytes_of("int8", len(wanted)) + HEADER


def test_no_copy_of_the_model_is_made_to_round_it(alone) -> None:
    numbers = 4_000_000
    w = nn.Parameter(torch.zeros(numbers))
    optimizer = LocalSGD([w], lr=0.5, local_steps=1)
    averages = synchronize(optimizer, wire="int8")
    w.grad = torch.ones_like(w)
    optimizer.step()  # it makes the flat buffer, which the next one finds
    tracemalloc.start()
    optimizer.step()
    _, peak = tracemalloc.get_traced_memory()  # NumPy's arrays
    tracemalloc.stop()
    assert averages.rounds == 2
    assert peak < w.nbytes / 2  # the bytes of the message, and some chunks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedac-i", "scaffold"])
def test_several_groups_and_types_stay_close_to_what_was_sent(alone, dtype, algorithm) -> None:
    first = [torch.randn(20, 3, dtype=dtype), torch.randn(400, dtype=dtype)]
    ends = {}
    for wire in ("float32", "int8"):
        params = [nn.Parameter(value.clone()) for value in first]
        groups = [{"params": [params[0]]}, {"params": [params[1]], "lr": 0.2}]
        optimizer = LocalOptimizer(groups, algorithm, lr=0.1, mu=0.1, local_steps=4)
        synchronize(optimizer, wire=wire)
        train(optimizer, steps=8)
        ends[wire] = torch.cat([optimizer.snapshot(p)[0].float().reshape(-1) for p in params])
    gap = (ends["int8"] - ends["float32"]).abs().max()
    assert 0 < gap < 0.05


@pytest.mark.parametrize("algorithm", ["fedavg", "fedac-i"])
def test_a_state_dict_has_where_the_round_began(alone, algorithm) -> None:
    def begin():
        w = nn.Parameter(torch.ones(300))
        return w, LocalOptimizer([w], algorithm, lr=0.1, mu=0.1, local_steps=4)

    w, whole = begin()
    synchronize(whole, wire="int8")
    train(whole, steps=6)
    saved, model = copy.deepcopy(whole.state_dict()), w.detach().clone()
    train(whole, steps=4)

    v, loaded = begin()
    loaded.load_state_dict(saved)
    with torch.no_grad():
        v.copy_(model)
    synchronize(loaded, wire="int8")
    train(loaded, steps=4)
    assert torch.equal(v, w)

    _, exact = begin()
    synchronize(exact)
    train(exact, steps=4)
    with pytest.raises(InputError, match="saved with wire='float32', which keeps less"):
        whole.load_state_dict(exact.state_dict())
    whole.load_state_dict(begin()[1].state_dict())  # of a run that has not begun


@pytest.mark.parametrize("algorithm", ["fedavg", "fedac-i"])
def test_a_run_may_be_rounded_from_some_step_on(alone, algorithm, tmp_path) -> None:
    w = nn.Parameter(torch.ones(300))
    optimizer = LocalOptimizer([w], algorithm, lr=0.1, mu=0.1, local_steps=4)
    synchronize(optimizer).checkpoint(tmp_path / "run.pt")
    train(optimizer, steps=4)
    exact = optimizer.snapshot(w)[0].clone()
    averages = synchronize(optimizer, wire="int8")
    assert torch.equal(optimizer.snapshot(w)[0], exact)
    train(optimizer, steps=4)
    assert averages.rounds == 1
    averages.resume(tmp_path / "run.pt")
    train(optimizer, steps=4)
    gap = (optimizer.snapshot(w)[0] - exact).abs().max()
    assert 0 < gap < 0.01
