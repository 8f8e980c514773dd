# SPDX-License-Identifier: Apache-2.0
"""The optimizers in one process: compared with the definitions, and misused."""

import copy
import io
import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedac.algorithms import ALGORITHMS, FEDAC_I, FEDAVG, fedac
from fedac.errors import InputError, NotAcceleratedWarning
from fedac.federation.schedule import Decay
from fedac.torch import FedAc, LocalOptimizer, LocalSGD
from fedac.torch._local_step import Batches

NUMBERS = {"lr": 0.3, "mu": 0.2, "local_steps": 4}
LOCAL = {name: record for name, record in ALGORITHMS.items() if not record.minibatch}
DEFINITIONS = LOCAL | {"own numbers": fedac(gamma=0.4, alpha=3.0, beta=5.0)}
every_algorithm = pytest.mark.parametrize("name", DEFINITIONS)


def make(name: str, params, **options) -> LocalOptimizer:
    """Return the optimizer of an algorithm, by its name where it has one."""
    algorithm = name if name in ALGORITHMS else DEFINITIONS[name]
    return LocalOptimizer(params, algorithm, **{**NUMBERS, **options})


# A quadratic with a different curvature in every coordinate, and noise that steps share.
CURVATURE = torch.linspace(0.2, 1.0, 12, dtype=torch.float64)


def gradient(w, t: int):
    """Return a noisy gradient of a tensor or an array."""
    noise = torch.sin(torch.arange(12, dtype=torch.float64) * (t + 1))
    return CURVATURE * w + 0.1 * noise


def parameters(dtype=torch.float64) -> list[nn.Parameter]:
    values = torch.linspace(-2, 3, 12, dtype=torch.float64).to(dtype)
    return [nn.Parameter(values[:5].clone()), nn.Parameter(values[5:].reshape(7, 1).clone())]


def flat(params) -> torch.Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in params])


def give_gradient(params, t: int) -> None:
    g = gradient(flat(params), t)
    params[0].grad = g[:5].to(params[0].dtype)
    params[1].grad = g[5:].reshape(7, 1).to(params[1].dtype)


def run(optimizer, params, steps: int, *, start: int = 0) -> None:
    for t in range(start, start + steps):
        give_gradient(params, t)
        optimizer.step()


def by_hand(name: str, steps: int, lrs=None):
    """Return state and hyperparameters after some steps of the definition itself."""
    algorithm = DEFINITIONS[name]
    lrs = lrs or [NUMBERS["lr"]] * steps
    state = algorithm.start(flat(parameters()))
    w_md = state[0]
    for t, lr in enumerate(lrs):
        hp = algorithm.couple(eta=lr, mu=NUMBERS["mu"], K=NUMBERS["local_steps"])
        state = algorithm.update(state, w_md, gradient(w_md, t), hp)
        w_md = algorithm.query(state, hp)
    return state, hp, w_md


def assert_close(found, wanted) -> None:
    np.testing.assert_allclose(found.detach(), wanted, rtol=1e-12, atol=1e-12)


# -- the definitions ---------------------------------------------------------------------------


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("foreach", [True, False])
def test_steps_equal_the_definition(name: str, foreach) -> None:
    params = parameters()
    optimizer = make(name, params, foreach=foreach)
    run(optimizer, params, 9)
    state, hp, w_md = by_hand(name, 9)
    for s, sequence in enumerate(state):
        assert_close(flat(optimizer.sequences(p)[s] for p in params), sequence)
    assert_close(flat(params), w_md)
    optimizer.eval()
    assert_close(flat(params), DEFINITIONS[name].output(state, hp, 9))
    assert optimizer.steps == 9


@every_algorithm
def test_foreach_is_bit_identical(name: str) -> None:
    results = []
    for foreach in (True, False):
        params = parameters(torch.float32)
        optimizer = make(name, params, foreach=foreach)
        run(optimizer, params, 7)
        results.append(flat(params))
    assert torch.equal(*results)


def test_batches_fit_into_the_cache() -> None:
    sizes = (10, 20, 65_500, 30, 10, 70_000, 5, 5)
    params = [nn.Parameter(torch.zeros(size)) for size in sizes]
    short = nn.Parameter(torch.zeros(7, dtype=torch.bfloat16))

    def batches(foreach):
        made = Batches(foreach=foreach).split([short, *params])
        return [[p.numel() for p in batch] for batch in made]

    assert batches(True) == [[7], [10, 20, 65_500], [30, 10], [70_000], [5, 5]]
    assert batches(False) == [[size] for size in (7, *sizes)]


def test_parameters_of_another_type_get_other_batches() -> None:
    params = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = LocalSGD(params, lr=0.5, local_steps=4)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        params[1].data = params[1].data.to(dtype)
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
        if dtype != torch.bfloat16:  # its sequence is a copy from now on
            assert len({tuple(p.tolist()) for p in params}) == 1


@settings(max_examples=25, deadline=None)
@given(
    eta=st.floats(0.01, 0.9),
    gamma=st.floats(0.01, 2.0),
    alpha=st.floats(1.0, 50.0),
    beta=st.floats(1.0, 50.0),
)
def test_any_custom_coefficients(eta, gamma, alpha, beta) -> None:
    params = parameters()
    definition = fedac(gamma=gamma, alpha=alpha, beta=beta)
    optimizer = LocalOptimizer(params, definition, lr=eta, mu=0.5, local_steps=4)
    assert_follows(optimizer, params, definition, definition.couple(eta=eta, mu=0.5, K=4))


def assert_follows(optimizer, params, definition, hp, steps: int = 6) -> None:
    """Take steps, and compare all sequences with those of the definition."""
    state = definition.start(flat(params))
    for t in range(steps):
        w_md = definition.query(state, hp)
        state = definition.update(state, w_md, gradient(w_md, t), hp)
    run(optimizer, params, steps)
    for s, sequence in enumerate(state):
        assert_close(flat(optimizer.sequences(p)[s] for p in params), sequence)


def test_fedac_with_alpha_and_beta_one_is_local_sgd() -> None:
    ours, theirs = parameters(), parameters()
    run(LocalOptimizer(ours, fedac(gamma=0.3, alpha=1.0, beta=1.0), **NUMBERS), ours, 5)
    run(LocalSGD(theirs, 0.3, 4), theirs, 5)
    assert_close(flat(ours), flat(theirs))


def test_local_sgd_is_sgd_of_pytorch() -> None:
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    run(LocalSGD(ours, 0.3, 4), ours, 5)
    run(torch.optim.SGD(theirs, 0.3), theirs, 5)
    assert torch.equal(flat(ours), flat(theirs))


def test_a_custom_algorithm_whose_sequences_depend_on_each_other() -> None:
    # Each sequence needs the other's old value, and the second a multiple of itself.
    def update(state, w_md, g, hp):
        x, y = state
        return 0.5 * x + 0.5 * y - hp.eta * g, 0.25 * x + 0.5 * y + 0.25 * w_md

    crossed = replace(FEDAC_I, name="crossed", update=update)
    for foreach in (True, False):
        params = parameters()
        optimizer = LocalOptimizer(params, crossed, foreach=foreach, **NUMBERS)
        hp = optimizer.hyperparameters(optimizer.param_groups[0])
        assert_follows(optimizer, params, crossed, hp)


def test_a_single_sequence_that_is_not_the_output_gets_a_copy() -> None:
    # The output is half the sequence: were it kept in the parameter, eval would lose it.
    halved = replace(FEDAVG, name="halved", output=lambda state, hp, t: state[0] / 2)
    params = parameters()
    optimizer = LocalOptimizer(params, halved, **NUMBERS)
    run(optimizer, params, 2)
    before = flat(params)
    optimizer.eval()
    assert_close(flat(params), before / 2)
    optimizer.train()
    assert torch.equal(flat(params), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"update": lambda state, w_md, g, hp: (w_md - hp.eta * g / abs(g),)}, "not linear"),
        ({"start": lambda w_0: (0 * w_0,)}, "does not take its first gradient at w_0"),
        ({"minibatch": True}, "takes no local steps"),
    ],
)
def test_algorithms_without_linear_local_steps_are_refused(change, message) -> None:
    with pytest.raises(InputError, match=message):
        LocalOptimizer(parameters(), replace(FEDAVG, **change), **NUMBERS)


# -- what every optimizer can do ---------------------------------------------------------------


def test_groups_have_their_own_settings() -> None:
    first, second = parameters()
    optimizer = FedAc([{"params": [first], "lr": 0.1}, {"params": [second], "mu": 0.4}], **NUMBERS)
    run(optimizer, [first, second], 5)
    for p, lr, mu in ((first, 0.1, 0.2), (second, 0.3, 0.4)):
        hp = FEDAC_I.couple(eta=lr, mu=mu, K=4)
        part = slice(0, 5) if p is first else slice(5, 12)
        state = FEDAC_I.start(flat(parameters()))
        for t in range(5):
            w_md = FEDAC_I.query(state, hp)
            state = FEDAC_I.update(state, w_md, gradient(w_md, t), hp)
        assert_close(flat([optimizer.sequences(p)[0]]), state[0][part])


def test_a_group_can_be_added_later() -> None:
    first, second = parameters()
    optimizer = FedAc([first], **NUMBERS)
    run(optimizer, [first, second], 3)
    optimizer.add_param_group({"params": [second], "lr": 0.05})
    before = second.detach().clone()
    run(optimizer, [first, second], 1, start=3)
    assert not torch.equal(second, before)
    with pytest.raises(InputError, match="mu must be a finite number above 0"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "mu": -1.0})
    assert len(optimizer.param_groups) == 2


@every_algorithm
def test_a_closure_is_called_with_gradients_enabled(name: str) -> None:
    w = nn.Parameter(torch.tensor([4.0], dtype=torch.float64))
    plain = nn.Parameter(w.detach().clone())
    optimizer, other = make(name, [w]), make(name, [plain])

    def closure():
        optimizer.zero_grad()
        loss = (w**2).sum()
        loss.backward()
        return loss

    for _ in range(4):
        loss = optimizer.step(closure)
        other.zero_grad()
        (plain**2).sum().backward()
        other.step()
    assert isinstance(loss, torch.Tensor)
    assert loss.item() > 0
    assert torch.equal(w, plain)


def test_parameters_without_gradients_do_not_move() -> None:
    used, unused, frozen = (nn.Parameter(torch.ones(3)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = FedAc([used, unused, frozen], **NUMBERS)
    (used**2).sum().backward()
    optimizer.step()
    assert torch.equal(unused, torch.ones(3))
    assert torch.equal(frozen, torch.ones(3))
    assert not torch.equal(used, torch.ones(3))
    optimizer.eval()
    optimizer.train()
    assert torch.equal(unused, torch.ones(3))


def test_sparse_gradients_are_refused_before_anything_moves() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    other = nn.Parameter(torch.ones(2))
    optimizer = FedAc([other, *table.parameters()], **NUMBERS)
    (table(torch.tensor([1])).sum() + other.sum()).backward()
    with pytest.raises(InputError, match="sparse gradients are not supported"):
        optimizer.step()
    assert torch.equal(other, torch.ones(2))
    assert optimizer.steps == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr must be a finite number above 0, got 0.0"),
        ({"lr": float("nan")}, "lr must be a finite number above 0"),
        ({"mu": -1.0}, "mu must be a finite number above 0, got -1.0"),
        ({"local_steps": 0}, "local_steps must be a whole number, at least 1, got 0"),
        ({"local_steps": 2.5}, "local_steps must be a whole number, at least 1, got 2.5"),
        ({"algorithm": "fedac-1"}, "unknown algorithm 'fedac-1'; did you mean 'fedac-i'"),
        ({"algorithm": "fedac-ii", "lr": 9.0}, "FedAc-II needs alpha > 1"),
    ],
)
def test_invalid_settings_are_refused(options, message) -> None:
    with pytest.raises(InputError, match=message):
        LocalOptimizer(parameters(), **{"algorithm": "fedac-i", **NUMBERS, **options})


def test_the_short_names_are_fedac_i_and_fedavg() -> None:
    assert FedAc(parameters(), 0.3, 0.2, 4).algorithm is FEDAC_I
    assert LocalSGD(parameters(), 0.3, 4).algorithm is FEDAVG


def test_local_sgd_refuses_invalid_settings() -> None:
    with pytest.raises(InputError, match="local_steps must be a whole number"):
        LocalSGD(parameters(), lr=0.1, local_steps=0)
    with pytest.raises(InputError, match="lr must be"):
        LocalSGD(parameters(), lr=-0.1, local_steps=1)


# -- learning rate schedules -------------------------------------------------------------------


@every_algorithm
def test_the_coupling_follows_a_scheduler(name: str) -> None:
    params = parameters()
    optimizer = make(name, params)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    lrs = []
    for t in range(6):
        lrs.append(optimizer.param_groups[0]["lr"])
        run(optimizer, params, 1, start=t)
        scheduler.step()
    state, _, w_md = by_hand(name, 6, lrs)
    assert lrs == pytest.approx([0.3 * 0.8**t for t in range(6)])
    for s, sequence in enumerate(state):
        assert_close(flat(optimizer.sequences(p)[s] for p in params), sequence)
    assert_close(flat(params), w_md)


def test_evaluating_does_not_disturb_a_schedule() -> None:
    results = []
    for evaluate in (False, True):
        params = parameters()
        optimizer = FedAc(params, **NUMBERS)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
        for t in range(6):
            run(optimizer, params, 1, start=t)
            scheduler.step()
            if evaluate:
                optimizer.eval()
                optimizer.train()
        results.append(flat(params))
    assert torch.equal(*results)


def test_a_group_stands_still_while_its_lr_is_zero() -> None:
    params = parameters()
    optimizer = FedAc(params, **NUMBERS)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: t / 4)
    before = flat(params)
    run(optimizer, params, 1)
    assert torch.equal(flat(params), before)
    optimizer.eval()
    optimizer.train()
    assert torch.equal(flat(params), before)
    warmup.step()
    run(optimizer, params, 1, start=1)
    assert not torch.equal(flat(params), before)
    assert optimizer.steps == 2


@every_algorithm
def test_an_lr_that_is_zero_up_to_rounding_counts_as_zero(name: str) -> None:
    params = parameters()
    optimizer = make(name, params)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 0.0, 4)
    for t in range(4):
        run(optimizer, params, 1, start=t)
        scheduler.step()
    assert -1e-15 < optimizer.param_groups[0]["lr"] < 0
    before = flat(params)
    run(optimizer, params, 1, start=4)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.eval()
    optimizer.train()
    assert torch.equal(flat(params), before)
    optimizer.param_groups[0]["lr"] = -1e-6
    with pytest.raises(InputError, match="lr must be a finite number above 0, got -1e-06"):
        run(optimizer, params, 1, start=5)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"momentum": 0.9}, "not momentum"),
        ({"foreach": True}, "not foreach"),
    ],
)
def test_unsupported_group_options_are_refused(option, message) -> None:
    first, second = parameters()
    with pytest.raises(InputError, match=f"can set lr, mu and weight_decay, {message}"):
        FedAc([{"params": [first]}, {"params": [second], **option}], **NUMBERS)
    optimizer = FedAc([{"params": [first], "momentum": 0.0, "name": "mine"}], **NUMBERS)
    assert optimizer.param_groups[0]["name"] == "mine"


def test_an_lr_that_the_coupling_refuses_moves_nothing() -> None:
    params = parameters()
    optimizer = make("fedac-ii", params)
    run(optimizer, params, 2)
    before = flat(params)
    optimizer.param_groups[0]["lr"] = 9.0
    with pytest.raises(InputError, match="FedAc-II needs alpha > 1"):
        run(optimizer, params, 1, start=2)
    assert torch.equal(flat(params), before)


def test_every_group_falls_by_its_own_decay() -> None:
    first, second, third = (nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer = FedAc(
        [{"params": [first]}, {"params": [second], "lr": 0.1}],
        lr=Decay(0.5, "1/sqrt(r)"), mu=0.2, local_steps=4,
    )  # fmt: skip
    optimizer.add_param_group({"params": [third], "lr": Decay(0.4, "halve(1)")})
    again = copy.deepcopy(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1, 0.4]
    for each in (optimizer, again):
        each.lower_lr(3)
        assert [group["lr"] for group in each.param_groups] == [0.25, 0.1, 0.05]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_saved_decay_continues(dtype, tmp_path) -> None:
    results = []
    for save in (False, True):
        params = parameters(dtype)
        optimizer = FedAc(params, **NUMBERS | {"lr": Decay(0.3, "1/r")})
        for r in range(4):
            optimizer.lower_lr(r)
            optimizer.refresh()
            if save and r == 2:  # with the lr of this round, and its w_md
                torch.save(optimizer.state_dict(), tmp_path / "state.pt")
                optimizer = FedAc(params, **NUMBERS | {"lr": Decay(0.3, "1/r")})
                optimizer.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
                assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
            run(optimizer, params, 4, start=4 * r)
        results.append(flat(params))
    assert torch.equal(*results)


def test_an_output_that_assumes_a_constant_lr_is_refused() -> None:
    with pytest.raises(InputError, match="'fedavg-weighted' assumes a constant step size"):
        make("fedavg-weighted", parameters(), lr=Decay(0.3, "1/r"))


# -- eval and train ----------------------------------------------------------------------------


@every_algorithm
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("foreach", [True, False])
def test_eval_and_train_restore_exactly(name: str, dtype, foreach) -> None:
    params = parameters(dtype)
    optimizer = make(name, params, foreach=foreach)
    run(optimizer, params, 3)
    before = [p.detach().clone() for p in params]
    for _ in range(3):
        optimizer.eval()
        optimizer.eval()
        optimizer.train()
        optimizer.train()
    assert all(torch.equal(p, old) for p, old in zip(params, before, strict=True))
    run(optimizer, params, 1, start=3)


def test_eval_puts_w_ag_into_the_parameters() -> None:
    params = parameters()
    optimizer = FedAc(params, **NUMBERS)
    run(optimizer, params, 3)
    optimizer.eval()
    assert all(torch.equal(p, optimizer.state[p]["w_ag"]) for p in params)


def test_a_step_while_evaluating_is_refused() -> None:
    params = parameters()
    optimizer = FedAc(params, **NUMBERS)
    run(optimizer, params, 1)
    optimizer.eval()
    with pytest.raises(InputError, match=r"call optimizer.train\(\) after optimizer.eval\(\)"):
        run(optimizer, params, 1, start=1)
    optimizer.train()
    run(optimizer, params, 1, start=1)


@pytest.mark.parametrize("then", ["step", "eval", "train"])
def test_a_parameter_changed_by_something_else_is_refused(then: str) -> None:
    params = parameters()
    optimizer = FedAc(params, **NUMBERS)
    run(optimizer, params, 2)
    if then == "train":
        optimizer.eval()
    with torch.no_grad():
        params[1].mul_(0.9)
    changed = flat(params)
    give_gradient(params, 2)
    with pytest.raises(
        InputError, match=r"something other than this optimizer; call optimizer.restart\(\)"
    ):
        getattr(optimizer, then)()
    assert torch.equal(flat(params), changed)
    optimizer.restart()
    optimizer.step()
    w_ag = flat(optimizer.sequences(p)[0] for p in params)
    assert_close(w_ag, changed - NUMBERS["lr"] * gradient(changed, 2))


@pytest.mark.parametrize("then", ["step", "eval"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_converted_after_the_first_step_is_refused(then: str, dtype: torch.dtype) -> None:
    model = nn.ParameterList(parameters(torch.float32 if dtype == torch.float64 else torch.float64))
    params = list(model)
    optimizer = FedAc(params, **NUMBERS)
    run(optimizer, params, 1)
    model.to(dtype)
    give_gradient(params, 1)
    with pytest.raises(InputError, match="was changed, converted or moved by something other"):
        getattr(optimizer, then)()
    optimizer.restart()
    optimizer.step()
    optimizer.eval()
    assert {p.dtype for p in params} == {dtype}


def test_parameters_set_before_the_first_step_are_fine() -> None:
    params = parameters()
    optimizer = FedAc(params, **NUMBERS)
    with torch.no_grad():
        params[0].zero_()
    run(optimizer, params, 1)


def test_local_sgd_allows_changed_parameters() -> None:
    params = parameters()
    optimizer = LocalSGD(params, lr=0.3, local_steps=4)
    run(optimizer, params, 1)
    with torch.no_grad():
        params[0].zero_()
    run(optimizer, params, 1, start=1)


# -- precision and memory ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedac-i", "fedac-ii", "fedavg", "fedavg-weighted"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("foreach", [True, False])
def test_half_precision_parameters_keep_float32_sequences(name: str, dtype, foreach) -> None:
    params = parameters(dtype)
    optimizer = make(name, params, foreach=foreach)
    run(optimizer, params, 3)
    for p in params:
        assert p.dtype == dtype
        assert [s.dtype for s in optimizer.sequences(p)] == [torch.float32] * len(
            optimizer.algorithm.sequences
        )
        (group,) = optimizer.param_groups
        hp = optimizer.hyperparameters(group)
        w_md = optimizer.algorithm.query(tuple(optimizer.sequences(p)), hp)
        assert torch.equal(p, w_md.to(dtype))  # rounded once


@pytest.mark.parametrize("name", ["fedac-i", "fedavg"])
def test_small_steps_are_not_lost_in_bfloat16(name: str) -> None:
    # Steps of 1e-4 on a parameter at 1: below half a unit of bfloat16's last place.
    w = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    plain = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer, sgd = make(name, [w], lr=1e-4), torch.optim.SGD([plain], lr=1e-4)
    for _ in range(1000):
        w.grad = torch.ones_like(w)
        plain.grad = torch.ones_like(plain)
        optimizer.step()
        sgd.step()
    assert torch.equal(plain, torch.ones_like(plain))
    assert (w < 0.91).all()


@pytest.mark.parametrize(("name", "copies"), [("fedac-i", 2), ("fedac-ii", 2), ("fedavg", 0)])
def test_memory_is_two_copies_of_the_parameters(name: str, copies: int) -> None:
    params = [nn.Parameter(torch.randn(100, 100)) for _ in range(5)]
    optimizer = make(name, params)
    for t in range(2):
        for p in params:
            p.grad = torch.full_like(p, float(t))
        optimizer.step()
        optimizer.eval()
        optimizer.train()
    held = {
        tensor.data_ptr(): tensor.nbytes
        for state in optimizer.state.values()
        for tensor in state.values()
    }
    assert sum(held.values()) == copies * sum(p.nbytes for p in params)


@pytest.mark.parametrize("name", ["fedac-i", "fedac-ii", "fedavg"])
@pytest.mark.parametrize("foreach", [True, False])
def test_a_step_allocates_no_tensor(name: str, foreach) -> None:
    params = [nn.Parameter(torch.randn(100, 100)) for _ in range(5)]
    optimizer = make(name, params, foreach=foreach)
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    largest = max(abs(event.self_cpu_memory_usage) for event in profile.events())
    # A multi-tensor lerp takes one tensor's worth aside where it has no fused kernel.
    assert largest <= (params[0].nbytes if foreach else 64)


def test_steps_leak_no_python_objects() -> None:
    params = parameters()
    optimizer = FedAc(params, **NUMBERS)
    run(optimizer, params, 5)
    tracemalloc.start()
    run(optimizer, params, 5)
    before, _ = tracemalloc.get_traced_memory()
    run(optimizer, params, 50)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 20_000


# -- state dicts -------------------------------------------------------------------------------


def saved(optimizer, params):
    """Save model and optimizer, and load them again."""
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "model": [p.detach() for p in params]}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def restore(params, values) -> None:
    with torch.no_grad():
        for p, value in zip(params, values, strict=True):
            p.copy_(value)


@every_algorithm
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.parametrize("evaluating", [True, False])
def test_a_loaded_state_dict_continues_bit_for_bit(name, dtype, model_first, evaluating) -> None:
    params = parameters(dtype)
    optimizer = make(name, params)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    run(optimizer, params, 3)
    scheduler.step()
    if evaluating:
        optimizer.eval()
    kept = saved(optimizer, params)
    others = parameters(dtype)
    twin = make(name, others, lr=0.1)
    run(twin, others, 1)  # a state of its own, to be replaced
    if model_first:
        restore(others, kept["model"])
    twin.load_state_dict(kept["optimizer"])
    if not model_first:
        restore(others, kept["model"])
    for o, ps in ((optimizer, params), (twin, others)):
        o.train()
        run(o, ps, 3, start=3)
        o.eval()
    assert twin.steps == 6
    assert torch.equal(flat(params), flat(others))


def test_a_state_without_its_model_is_refused() -> None:
    params = parameters()
    optimizer = FedAc(params, **NUMBERS)
    run(optimizer, params, 3)
    others = parameters()
    twin = FedAc(others, **NUMBERS)
    twin.load_state_dict(saved(optimizer, params)["optimizer"])
    with pytest.raises(InputError, match="load the model that belongs to the optimizer's state"):
        run(twin, others, 1)


def without_steps(state):
    del state["steps"]


def reshape(state):
    state["state"][0]["w"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("fedac-ii", None, "cannot load this state: .* by algorithm 'fedac-i', not 'fedac-ii'"),
        ("fedavg", None, "by algorithm 'fedac-i', not 'fedavg'"),
        ("fedac-i", without_steps, "not the state of an optimizer of fedac.torch"),
        ("fedac-i", reshape, "cannot load this state: it belongs to another model"),
    ],
)
def test_a_state_of_another_kind_is_refused(name, damage, message) -> None:
    params = parameters()
    optimizer = FedAc(params, **NUMBERS)
    run(optimizer, params, 2)
    state = saved(optimizer, params)["optimizer"]
    if damage:
        damage(state)
    others = parameters()
    twin = make(name, others)
    run(twin, others, 1)
    before = flat(others)
    with pytest.raises(InputError, match=message):
        twin.load_state_dict(state)
    assert twin.steps == 1
    run(twin, others, 1, start=1)
    assert not torch.equal(flat(others), before)


def test_the_state_of_a_pytorch_optimizer_is_refused() -> None:
    params = parameters()
    with pytest.raises(InputError, match="not the state of an optimizer of fedac"):
        FedAc(params, **NUMBERS).load_state_dict(torch.optim.SGD(params, lr=0.1).state_dict())


def test_custom_coefficients_are_part_of_the_state() -> None:
    params = parameters()
    optimizer = make("own numbers", params)
    run(optimizer, params, 2)
    for name in (None, "fedac(gamma=0.4,alpha=3,beta=5)"):
        algorithm = fedac(gamma=0.5, alpha=3.0, beta=5.0, name=name)
        other = LocalOptimizer(parameters(), algorithm, **NUMBERS)
        with pytest.raises(InputError, match=r"gamma=0\.4.*, not .*0\.5"):
            other.load_state_dict(optimizer.state_dict())


def test_another_algorithm_of_the_same_name_is_refused() -> None:
    # The name is that of an algorithm of ours, which must not be taken instead.
    mine = replace(FEDAC_I, output=lambda state, hp, t: state[1])
    params = parameters()
    optimizer = LocalOptimizer(params, mine, **NUMBERS)
    run(optimizer, params, 2)
    LocalOptimizer(parameters(), mine, **NUMBERS).load_state_dict(optimizer.state_dict())
    with pytest.raises(InputError, match="another algorithm that is also called 'fedac-i'"):
        make("fedac-i", parameters()).load_state_dict(optimizer.state_dict())


def test_a_deep_copy_is_independent() -> None:
    model = nn.Linear(3, 2)
    optimizer = FedAc(model.parameters(), **NUMBERS)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    twin, other = copy.deepcopy((model, optimizer))
    for m, o in ((model, optimizer), (twin, other)):
        o.zero_grad()
        m(torch.ones(3)).sum().backward()
        o.step()
    assert torch.equal(model.weight, twin.weight)
    assert other.steps == 2
    other.step()
    assert not torch.equal(model.weight, twin.weight)


# -- mistakes and edge cases -------------------------------------------------------------------


def two_branches():
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    optimizer = FedAc(model.parameters(), lr=0.4, mu=0.1, local_steps=4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    x = torch.ones(1, 2)
    for branches in ([0, 1], [0, 1], [0], [0]):
        optimizer.zero_grad()
        sum(model[i](x).square().sum() for i in branches).backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer


def test_parameters_without_gradients_follow_a_scheduler() -> None:
    model, optimizer = two_branches()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.eval()
    optimizer.train()
    for p, value in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), value)
    optimizer.load_state_dict(optimizer.state_dict())
    (model[0](torch.ones(1, 2)) + model[1](torch.ones(1, 2))).square().sum().backward()
    optimizer.step()  # nobody has changed anything


def test_a_changed_mu_takes_effect_at_the_next_step() -> None:
    w = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=4)
    w.grad = torch.ones(2)
    optimizer.step()
    before = w.detach().clone()
    optimizer.param_groups[0]["mu"] = 0.5
    optimizer.eval()
    optimizer.train()
    torch.testing.assert_close(w.detach(), before)


def test_replaced_memory_of_a_parameter_is_detected() -> None:
    w = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=4)
    w.grad = torch.ones(2)
    optimizer.step()
    w.data = torch.zeros(2)
    with pytest.raises(InputError, match="was changed, converted or moved by something other"):
        optimizer.step()


@pytest.mark.parametrize(
    ("dtype", "size", "algorithm"),
    [
        (torch.float32, 1.0, "fedac-i"),
        (torch.float16, 1e-7, "fedac-i"),
        (torch.float16, 1e5, "fedac-i"),
        (torch.bfloat16, 1.0, "fedac-ii"),
        (torch.float32, 1.0, fedac(gamma=0.1, alpha=2.0, beta=0.05)),
        (torch.float64, float("nan"), "fedac-i"),
    ],
)
def test_a_loaded_state_is_compared_by_value_without_false_alarm(dtype, size, algorithm) -> None:
    torch.manual_seed(0)
    w = nn.Parameter(torch.zeros(2000, dtype=dtype))
    optimizer = LocalOptimizer([w], algorithm, lr=0.1, mu=0.1, local_steps=4)
    for _ in range(4):
        w.grad = torch.randn(2000).to(dtype)
        w.grad[7] *= size
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        copy.deepcopy(optimizer).eval()
    optimizer.eval()


def test_set_sequences_keep_their_w_md_when_lr_changes() -> None:
    w = nn.Parameter(torch.zeros(3))
    optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=4)
    optimizer.set_sequences(w, [torch.ones(3), torch.full((3,), 5.0)])
    optimizer.refresh()
    before = w.detach().clone()
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.eval()
    optimizer.train()
    torch.testing.assert_close(w.detach(), before)


def test_custom_coefficients_can_be_copied() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = LocalOptimizer([w], fedac(gamma=0.2, alpha=2.0, beta=3.0), **NUMBERS)
    again = copy.deepcopy(optimizer)
    assert again.hyperparameters(again.param_groups[0]) == optimizer.hyperparameters(
        optimizer.param_groups[0]
    )


@pytest.mark.parametrize("bad", [2.5, True, 0])
def test_invalid_local_steps_during_training_are_refused(bad) -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=4)
    optimizer.param_groups[0]["local_steps"] = bad
    w.grad = torch.ones(3)
    with pytest.raises(InputError, match="local_steps must be a whole number"):
        optimizer.step()


def test_evaluating_in_inference_mode_before_the_first_step() -> None:
    w = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=4)
    for _ in range(2):
        with torch.inference_mode():
            optimizer.eval()
        optimizer.train()
        w.grad = torch.ones(2)
        optimizer.step()


@every_algorithm
def test_an_optimizer_can_be_pickled(name: str) -> None:
    w = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = make(name, [w])
    w.grad = torch.ones(2)
    optimizer.step()
    again = pickle.loads(pickle.dumps(optimizer))
    (v,) = again.parameters()
    v.grad = torch.ones(2)
    optimizer.step()
    again.step()
    assert torch.equal(v, w)
    assert again.algorithm.name == optimizer.algorithm.name


def test_lr_may_be_a_tensor() -> None:
    w = nn.Parameter(torch.ones(2))
    assert FedAc([w], lr=torch.tensor(0.5), mu=0.1, local_steps=4).param_groups[0]["lr"] == 0.5


def test_an_invalid_lr_during_training_is_called_lr() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=4)
    optimizer.param_groups[0]["lr"] = -1.0
    w.grad = torch.ones(2)
    with pytest.raises(InputError, match=r"lr must be a finite number above 0, got -1\.0"):
        optimizer.step()


def test_fedac_that_is_local_sgd_is_announced_once() -> None:
    w = nn.Parameter(torch.ones(1))
    with pytest.warns(NotAcceleratedWarning) as caught:
        optimizer = FedAc([w], lr=0.1, mu=0.1, local_steps=128)
    assert [str(one.message) for one in caught] == [
        "FedAc-I degenerates to FedAvg with lr=0.1, mu=0.1, local_steps=128, because "
        "lr mu local_steps >= 1; to accelerate, use mu < 1/(lr local_steps) = 0.0781"
    ]
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "mu": 0.2})
    for lr in (0.2, 0.3):
        w.grad = torch.ones(1)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()


@pytest.mark.parametrize("algorithm", ["fedac-ii", "fedac-i+local"])
def test_a_scheduler_that_ends_the_acceleration_is_announced_once(algorithm: str) -> None:
    w = nn.Parameter(torch.ones(1))
    optimizer = LocalOptimizer([w], algorithm, lr=0.1, mu=0.1, local_steps=64)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.4 * t)
    for t in range(8):  # lr mu K is 0.256 t, so more than 1 from t = 4 on
        w.grad = torch.ones(1)
        if t == 4:
            with pytest.warns(NotAcceleratedWarning, match=r"lr=0\.16, mu=0\.1, local_steps=64"):
                optimizer.step()
        else:
            optimizer.step()
        warm_up.step()


@pytest.mark.parametrize("name", ["gpa(0.9,0.9)", "fedavg", "momentum(0.9)+cv+nesterov(1,0.3)"])
def test_mu_may_be_left_out_where_the_coupling_does_not_use_it(name: str) -> None:
    ends = []
    for mu in ({}, {"mu": 0.01}):
        params = parameters()
        optimizer = LocalOptimizer(params, name, lr=0.1, local_steps=4, **mu)
        run(optimizer, params, 5)
        ends.append(flat(params))
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], flat(parameters()))


@pytest.mark.parametrize("name", ["fedac-i", "fedac-ii+cv", "fedac-vanilla", "fedavg-weighted"])
def test_mu_is_asked_for_where_the_coupling_uses_it(name: str) -> None:
    with pytest.raises(InputError, match=r"needs mu, a strong-convexity estimate"):
        LocalOptimizer(parameters(), name, lr=0.1, local_steps=4)
    with pytest.raises(InputError, match="lr must be a finite number"):
        LocalOptimizer(parameters(), name, lr=-1.0, local_steps=4)
