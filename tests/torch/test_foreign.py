# SPDX-License-Identifier: Apache-2.0
"""Optimizers of PyTorch inside, server rules of the family outside."""

import copy
import re
import runpy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from fedac.errors import InputError
from fedac.torch import FedAc, Synchronizer, synchronize
from fedac.torch._any_optimizer import InnerOptimizer

pytestmark = pytest.mark.slow

WORLD, K, STEPS = 4, 5, 30
ADAMW = {"lr": 0.05, "weight_decay": 0.1}
WORKERS = runpy.run_path(str(Path(__file__).with_name("workers.py")))
make_foreign, gradient_of = WORKERS["make_foreign"], WORKERS["gradient_of"]


def results(ended):
    for process in ended:
        assert process.code == 0, process.err
    return [process.result for process in ended]


def run(**options):
    given = {"local_steps": K, **options}
    more = {name: given.pop(name) for name in ("nan", "path") if name in given}
    return {"optimizer": "AdamW", "settings": ADAMW, "steps": STEPS, "options": given, **more}


# -- by hand -----------------------------------------------------------------------------------


def by_hand(
    *, gamma=1.0, beta=0.0, exp=False, state="local", nan=None, weights=(1,) * WORLD, delay=0
):
    """Return the parameters of every worker after every step of AdamW: a loop without fedac.

    After K steps x <- x - gamma (beta u + delta), u <- beta u + delta, delta = x - mean(w). If it
    takes so many steps until workers know x, they add what they have moved since. With `exp`, gamma
    is that of FedExP, for all parameters together.
    """
    workers = [make_foreign("AdamW", **ADAMW) for _ in range(WORLD)]
    x = [p.detach().clone() for p in workers[0][0]]
    u = [torch.zeros_like(p) for p in x]
    history, largest = [[] for _ in range(WORLD)], 0.0
    for t in range(STEPS):
        for m, (w, optimizer) in enumerate(workers):
            for p in w:
                p.grad = gradient_of(p, m, t) * (float("nan") if [m, t] == nan else 1.0)
            optimizer.step()
        if (t + 1) % K == 0:
            left = [[p.detach().clone() for p in w] for w, _ in workers]
            good = [m for m in range(WORLD) if all(p.isfinite().all() for p in left[m])]
            total = sum(weights[m] for m in good)
        if (t + 1 - delay) % K == 0 and t >= delay:
            if exp:
                flat = torch.cat([center.reshape(-1) for center in x])
                deltas = [flat - torch.cat([p.reshape(-1) for p in w]) for w in left]
                spread = sum(weights[m] * deltas[m].dot(deltas[m]) for m in good) / total
                mean = sum(weights[m] * deltas[m] for m in good) / total
                gamma = max(1.0, float(spread / (2 * (mean.dot(mean) + 1e-3))))
                largest = max(largest, gamma)
            for i, center in enumerate(x):
                delta = center - sum(weights[m] * left[m][i] for m in good) / total
                u[i] = beta * u[i] + delta
                x[i] = center - gamma * (beta * u[i] + delta)
                for m, (w, _) in enumerate(workers):
                    moved = w[i].detach() - left[m][i] if delay and m in good else 0
                    w[i].data.copy_(x[i] + moved)
                for key in ("exp_avg", "exp_avg_sq") if state == "average" else ():
                    all_of_them = [o.state[w[i]][key] for w, o in workers]
                    mean = sum(all_of_them[m] for m in good) / len(good)
                    for one in all_of_them:
                        one.copy_(mean)
            for m, (_, optimizer) in enumerate(workers):
                if state == "reset" or (m not in good and state == "local"):
                    optimizer.state.clear()
        for m, (w, _) in enumerate(workers):
            history[m].append(torch.cat([p.detach().reshape(-1) for p in w]))
    assert not exp or largest > 1.05
    return [torch.stack(points) for points in history]


NESTEROV = {"gamma": 0.7, "beta": 0.9}
NAN = [2, 7]
RUNS = {
    "average": (run(), {}),
    "nesterov": (run(server="nesterov(0.7,0.9)"), NESTEROV),
    "state averaged": (run(server="nesterov(0.7,0.9)", state="average"),
                       {"state": "average", **NESTEROV}),
    "state averaged, plain": (run(state="average"), {"state": "average"}),
    "state reset": (run(server="nesterov(0.7,0.9)", state="reset"), {"state": "reset", **NESTEROV}),
    "by examples": (run(server="nesterov(0.7,0.9)", weighting="examples"),
                    {"weights": (1, 2, 3, 4), **NESTEROV}),
    "overlap": (run(overlap=True, delay_steps=2), {"delay": 2}),
    "overlap and a server": (run(server="nesterov(0.7,0.9)", overlap=True, delay_steps=2),
                             {"delay": 2, **NESTEROV}),
    "slowmo is momentum": (run(server="slowmo(0.5,0)"), {"gamma": 0.5}),
    "exp": (run(server="exp"), {"exp": True}),
    "exp, a worker is skipped": (
        run(server="exp", on_nonfinite="skip-worker", nan=NAN), {"exp": True, "nan": NAN}
    ),
    "a worker is skipped": (run(on_nonfinite="skip-worker", nan=NAN), {"nan": NAN}),
    "a worker is skipped by a server": (
        run(on_nonfinite="skip-worker", nan=NAN, server="nesterov(0.7,0.9)"),
        {"nan": NAN, **NESTEROV},
    ),
    "a worker is skipped, overlap": (
        run(on_nonfinite="skip-worker", nan=NAN, overlap=True, delay_steps=2),
        {"nan": NAN, "delay": 2},
    ),
    "a worker is skipped by a server, overlap": (
        run(
            on_nonfinite="skip-worker",
            nan=NAN,
            server="nesterov(0.7,0.9)",
            overlap=True,
            delay_steps=2,
        ),
        {"nan": NAN, "delay": 2, **NESTEROV},
    ),
    "a worker is skipped, state averaged": (
        run(on_nonfinite="skip-worker", nan=NAN, server="nesterov(0.7,0.9)", state="average"),
        {"nan": NAN, "state": "average", **NESTEROV},
    ),
    "a worker is skipped, state reset": (
        run(on_nonfinite="skip-worker", nan=NAN, server="nesterov(0.7,0.9)", state="reset"),
        {"nan": NAN, "state": "reset", **NESTEROV},
    ),
}  # fmt: skip
ROUNDED = {
    "int8": run(server="nesterov(0.7,0.9)", wire="int8"),
    "bfloat16": run(server="nesterov(0.7,0.9)", wire="bfloat16"),
    "bfloat16, state averaged": run(server="nesterov(0.7,0.9)", state="average", wire="bfloat16"),
}


@pytest.fixture(scope="module")
def in_processes(processes):
    runs = {name: run for name, (run, _) in RUNS.items()} | ROUNDED
    by_rank = results(processes("foreign", runs=list(runs.values())))
    return dict(zip(runs, zip(*by_rank, strict=True), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_processes_follow_a_plain_loop(in_processes, name: str) -> None:
    wanted = by_hand(**RUNS[name][1])
    assert wanted[0].isfinite().all()
    for rank, points in zip(in_processes[name], wanted, strict=True):
        torch.testing.assert_close(rank["points"], points, rtol=0, atol=1e-9, equal_nan=True)
        assert rank["rounds"] == STEPS // K - ("overlap" in name)  # the last is not applied yet


def test_what_becomes_of_the_state(in_processes) -> None:
    for name, same in (("average", False), ("state averaged", True)):
        one, *others = (rank["state"][0]["exp_avg_sq"] for rank in in_processes[name])
        assert all(torch.equal(one, other) == same for other in others)
        assert all(rank["state"][0]["step"] == STEPS for rank in in_processes[name])
    assert all(rank["state"] == [{}, {}] for rank in in_processes["state reset"])


def test_bytes_count_the_state(in_processes) -> None:
    rounds, numbers, header = STEPS // K, 7, 4 * WORLD
    for name, copies in (("average", 1), ("nesterov", 1), ("state averaged", 3)):
        for rank in in_processes[name]:
            assert rank["bytes"] == 8 * (copies * numbers + header) * rounds
    names = ("bfloat16", "bfloat16, state averaged")
    for plain, averaged in zip(*(in_processes[name] for name in names), strict=True):
        assert averaged["bytes"] - plain["bytes"] == 8 * 2 * numbers * rounds


def test_int8_does_not_take_an_averaged_state() -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(InputError, match="state='average' and wire='int8' do not go together"):
        synchronize(torch.optim.AdamW([w]), local_steps=2, state="average", wire="int8")


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("int8", "nesterov"),
        ("bfloat16", "nesterov"),
        ("bfloat16, state averaged", "state averaged"),
    ],
)
def test_a_rounded_wire_stays_close(in_processes, name: str, exact: str) -> None:
    for rounded, points in zip(in_processes[name], in_processes[exact], strict=True):
        gap = (rounded["points"] - points["points"]).abs().max()
        assert 0 < gap < 0.05


@pytest.mark.parametrize("state", ["local", "average", "reset"])
def test_killed_and_resumed(processes, tmp_path, state: str) -> None:
    this = run(server="nesterov(0.7,0.9)", state=state, path=str(tmp_path / "run.pt"), timeout=60)
    ended = processes("foreign", runs=[this], death=[2, 17])
    assert [process.code for process in ended] == [1, 1, -9, 1]
    assert "WorkerLostError: rank 0 of 4: synchronization 4 failed" in ended[0].err
    wanted = by_hand(state=state, **NESTEROV)
    for (rank,), points in zip(results(processes("foreign", runs=[this])), wanted, strict=True):
        assert rank["began"] == 15
        torch.testing.assert_close(rank["points"], points[15:], rtol=0, atol=1e-9)
    files = len(list(tmp_path.glob("run.pt*")))
    assert files == (1 + 2 * WORLD if state == "local" else 1)


def test_it_is_ddp_and_post_local_sgd(processes) -> None:
    for rank in results(processes("twins", K=4, steps=24)):
        for ours, theirs in (("every step", "ddp"), ("every K steps", "post-local")):
            torch.testing.assert_close(rank[ours], rank[theirs], rtol=0, atol=1e-12)
        assert (rank["ddp"] - rank["post-local"]).abs().max() > 1e-3


# -- one process -------------------------------------------------------------------------------


class Training:
    """A model, an optimizer of PyTorch, and a synchronizer."""

    def __init__(self, make=torch.optim.AdamW, *, dtype=torch.float64, settings=None, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)
        self.optimizer = make(self.model.parameters(), **(settings or {"lr": 0.05}))
        self.averages = synchronize(self.optimizer, **({"local_steps": 3} | options))
        self.dtype = dtype

    def run(self, steps: int) -> "Training":
        for _ in range(steps):
            x = torch.sin(torch.arange(8.0).view(4, 2) * (self.averages.steps + 1)).to(self.dtype)
            self.optimizer.zero_grad()
            self.model(x).square().sum().backward()
            self.optimizer.step()
        return self

    def everything(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


def same(one, other) -> bool:
    return all(map(torch.equal, one.everything(), other.everything()))


alone = pytest.mark.usefixtures("alone")
OPTIMIZERS = [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Rprop,
              torch.optim.NAdam, torch.optim.RMSprop]  # fmt: skip


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("state", ["local", "average", "reset"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@alone
def test_a_resumed_run_is_bit_identical(make, state, dtype, tmp_path: Path) -> None:
    options = {"dtype": dtype, "state": state, "server": "nesterov(0.7,0.9)"}
    whole = Training(make, **options).run(6)
    whole.averages.checkpoint(tmp_path / "run.pt", note="sampler")
    resumed = Training(make, **options).run(2)
    assert resumed.averages.resume(tmp_path / "run.pt") == {"note": "sampler"}
    assert (resumed.averages.steps, resumed.averages.rounds) == (6, 2)
    assert same(whole.run(5), resumed.run(5))


@alone
def test_a_resumed_run_resets_to_what_the_first_one_did(tmp_path: Path) -> None:
    w, v = (nn.Parameter(torch.ones(2)) for _ in range(2))
    whole, resumed = (torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in (w, v))

    def run(p, optimizer, steps):
        for _ in range(steps):
            p.grad = p.detach() + 1
            optimizer.step()

    run(w, whole, 3)  # so a round ends with this momentum
    averages = synchronize(whole, local_steps=2, state="reset")
    run(w, whole, 2)
    averages.checkpoint(tmp_path / "run.pt")
    synchronize(resumed, local_steps=2, state="reset").resume(tmp_path / "run.pt")
    run(w, whole, 5)
    run(v, resumed, 5)
    assert torch.equal(w, v)


@pytest.mark.parametrize("make", OPTIMIZERS)
@alone
def test_the_average_of_one_worker_changes_nothing(make) -> None:
    for state in ("local", "average"):
        averaged, plain = Training(make, state=state), Training(make, local_steps=100)
        for one, other in zip(*(t.run(9).everything() for t in (averaged, plain)), strict=True):
            assert torch.equal(one, other)
        assert averaged.averages.rounds == 3


@alone
def test_half_precision_parameters_take_small_server_steps() -> None:
    """A server's step that is too small for bfloat16 adds up in float32."""

    def first_weight(rounds: int) -> float:
        w = nn.Parameter(torch.full((1,), 256.0, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([w], lr=2.0)
        synchronize(optimizer, local_steps=1, server="step(0.125)")
        for _ in range(rounds):
            w.grad = torch.ones_like(w)  # the worker moves by 2, the server by about a quarter
            optimizer.step()
        return w.item()

    assert first_weight(2) == 256.0
    assert first_weight(8) < 256.0


@alone
def test_an_optimizer_that_writes_to_data_is_noticed() -> None:
    class Careless(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.sub_(group["lr"] * p.grad)

    careless, usual = (
        Training(make, dtype=torch.bfloat16, server="momentum(1,0.5)").run(7)
        for make in (Careless, torch.optim.SGD)
    )
    gaps = zip(careless.everything(), usual.everything(), strict=True)
    assert all((one - other).abs().max() < 0.02 for one, other in gaps)


class Unusual(torch.optim.SGD):
    """Counts its steps beside its parameters, and keeps a list of gradients."""

    def step(self, closure=None):
        super().step(closure)
        self.state["taken"] = self.state.get("taken", 0) + 1
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("gradients", []).append(p.grad.clone())


@alone
def test_any_form_of_state_is_followed(tmp_path: Path) -> None:
    training = Training(Unusual, on_nonfinite="skip-worker").run(3)
    training.averages.checkpoint(tmp_path / "run.pt")
    resumed = Training(Unusual)
    resumed.averages.resume(tmp_path / "run.pt")
    assert resumed.optimizer.state["taken"] == 3
    assert same(training.run(4), resumed.run(4))
    assert training.optimizer.state["taken"] == 7


def test_a_state_that_is_not_finite_is_reset_with_its_worker() -> None:
    w = nn.Parameter(torch.ones(2))
    for gradient in (torch.ones(2), torch.full((2,), torch.nan)):
        inside = InnerOptimizer(Unusual([w], lr=0.1), "local")
        w.grad = gradient
        inside.optimizer.step()
        inside.end_round(used=True)
        assert inside.optimizer.state["taken"] == 1
        inside.end_round(used=False)
        assert bool(inside.optimizer.state) == bool(gradient.isfinite().all())


@alone
def test_a_second_call_continues() -> None:
    whole, again = (Training(server="nesterov(0.7,0.9)").run(4) for _ in range(2))
    first = again.averages
    again.averages = synchronize(again.optimizer, local_steps=3, server="nesterov(0.7,0.9)")
    assert same(whole.run(6), again.run(6))
    assert (first.rounds, again.averages.rounds) == (1, 2)
    assert again.averages.steps == 10


@alone
def test_added_parameters_need_a_second_call() -> None:
    training = Training().run(3)
    v = nn.Parameter(torch.ones(2))
    training.optimizer.add_param_group({"params": [v]})
    with pytest.raises(InputError, match="parameters were added; call synchronize again"):
        training.run(1)
    training.averages = synchronize(training.optimizer, local_steps=3)
    assert training.run(3).averages.rounds == 1


def test_a_parameter_without_state_counts_as_zero() -> None:
    w, v = (nn.Parameter(torch.ones(2)) for _ in range(2))
    inside = InnerOptimizer(torch.optim.SGD([w, v], lr=0.1, momentum=0.9), "average")
    w.grad = torch.full((2,), 3.0)
    inside.optimizer.step()
    inside.names = inside.find_names()
    one, other = inside.averaged({w, v})
    assert one is inside.optimizer.state[w]["momentum_buffer"]
    assert torch.equal(other, torch.zeros(2))
    assert v not in inside.optimizer.state
    assert inside.averaged({w}) == [one]


@alone
def test_schedulers_and_copies_and_steps_by_hand() -> None:
    training = Training()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.9)
    training.run(3)
    scheduler.step()
    assert training.averages.rounds == 1
    assert training.optimizer.param_groups[0]["lr"] == 0.05 * 0.9
    copied = copy.deepcopy(training.optimizer)
    copied.param_groups[0]["params"][0].grad = None
    copied.step()
    assert training.averages.steps == 3
    optimizer = torch.optim.SGD([p := nn.Parameter(torch.ones(1))], lr=0.1)
    averages = Synchronizer(optimizer, local_steps=2)
    p.grad = torch.ones(1)
    assert [(optimizer.step(), averages.step())[1] for _ in range(4)] == [False, True] * 2


BAD = {
    "say how often to synchronize SGD: local_steps=64, for example": {"local_steps": None},
    "local_steps must be a whole number, at least 1, got 0": {"local_steps": 0},
    "unknown state 'mean'; known: average, local, reset": {"state": "mean"},
    "unknown server rule 'bogus'; known: accelerated, adagrad, adam, exp, momentum": {
        "server": "bogus"
    },
    "unknown server rule 'nestrov'; did you mean 'nesterov'? known:": {"server": "nestrov(1,0.3)"},
    "unknown server rule 'locals'; known: accelerated": {"server": "locals"},
    "'diloco' is a whole method; its server rule alone is 'nesterov'": {"server": "diloco"},
    "'FedAvgM(1,0.9)' is a whole method; its server rule alone is 'momentum(1,0.9)'": {
        "server": "FedAvgM(1,0.9)"
    },
    "'local' is a memory, not a server rule such as nesterov(0.7,0.9)": {"server": "local"},
    "'cv' is a memory, not a server rule such as nesterov(0.7,0.9)": {"server": "cv"},
    "state='average' and overlap=True do not go together": {"state": "average", "overlap": True},
}


@pytest.mark.parametrize("message", BAD)
@alone
def test_bad_input_is_one_line(message: str) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(InputError, match=re.escape(message)) as error:
        synchronize(optimizer, **({"local_steps": 4} | BAD[message]))
    assert "\n" not in str(error.value)
    optimizer.step()  # it is as it was


@pytest.mark.parametrize("given", [{"local_steps": 4}, {"server": "step(1)"}, {"state": "local"}])
@alone
def test_ours_have_their_own_settings(given) -> None:
    ours = FedAc([nn.Parameter(torch.ones(2))], lr=0.1, mu=0.1, local_steps=4)
    with pytest.raises(InputError, match="only for optimizers of PyTorch; a FedAc has its own"):
        synchronize(ours, **given)


class Wrapper(torch.optim.Optimizer):
    """Looks like an optimizer, and has none of its attributes, like Accelerate's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups


@pytest.mark.parametrize("make", [torch.optim.AdamW, partial(FedAc, mu=0.1, local_steps=4)])
@alone
def test_a_wrapped_optimizer_is_refused(make) -> None:
    optimizer = make([nn.Parameter(torch.ones(2))], lr=0.1)
    options = {} if isinstance(optimizer, FedAc) else {"local_steps": 4}
    # Lightning's even has the class of what it wraps.
    disguised = type("Disguised", (Wrapper, type(optimizer)), {})
    for kind in (Wrapper, disguised):
        with pytest.raises(InputError, match=f"{kind.__name__} wraps an optimizer; pass that one"):
            synchronize(kind(optimizer), **options)
    synchronize(kind(optimizer).optimizer, **options)


@alone
def test_what_only_your_optimizer_can_do() -> None:
    averages = Training().averages
    with pytest.raises(InputError, match="call step of the AdamW instead"):
        averages.optimizer.step()
    with pytest.raises(InputError, match="there is nothing to switch"):
        averages.optimizer.eval()
    with pytest.raises(InputError, match="pass your own optimizer"):
        synchronize(averages.optimizer)


@alone
def test_checkpoints_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    Training().run(3).averages.checkpoint(path)
    for other, message in (
        (Training(torch.optim.SGD), "with AdamW with state='local', not SGD with state='local'"),
        (Training(state="reset"), "with AdamW with state='local', not AdamW with state='reset'"),
        (Training(server="step(1)"), "fedavg"),
    ):
        before = other.run(1).everything()
        with pytest.raises(InputError, match=re.escape(message)):
            other.averages.resume(path)
        assert all(map(torch.equal, before, other.everything()))
    ours = FedAc([nn.Parameter(torch.ones(2))], lr=0.1, mu=0.1, local_steps=3)
    with pytest.raises(InputError, match=r"state='local', not an optimizer of fedac\.torch"):
        synchronize(ours).resume(path)
    Path(f"{path}.rank0.step3").unlink()
    with pytest.raises(InputError, match="is missing, which holds the state of rank 0"):
        Training().averages.resume(path)


@alone
def test_other_groups_are_refused(tmp_path: Path) -> None:
    def averages_of(*sizes):
        w = [nn.Parameter(torch.ones(2)) for _ in range(3)]
        groups = [{"params": w[: sizes[0]]}, {"params": w[sizes[0] :]}]
        return synchronize(torch.optim.SGD(groups, lr=0.1), local_steps=3)

    averages_of(1, 2).checkpoint(tmp_path / "run.pt")
    with pytest.raises(InputError, match=r"its groups have \[1, 2\] parameters, not \[2, 1\]"):
        averages_of(2, 1).resume(tmp_path / "run.pt")


@pytest.mark.parametrize("state", ["local", "average"])
@alone
def test_a_state_that_cannot_be_read_again_is_refused(state: str, tmp_path: Path) -> None:
    training = Training(state=state).run(3)
    training.optimizer.param_groups[0]["schedule"] = lambda t: t
    with pytest.raises(InputError, match="the state of AdamW holds a function; a checkpoint can"):
        training.averages.checkpoint(tmp_path / "run.pt")
    assert not list(tmp_path.glob("run.pt*"))
