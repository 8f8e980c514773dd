# SPDX-License-Identifier: Apache-2.0
"""Double buffering: the state alternates between two flat buffers, with the same values."""

import copy
import io

import pytest
import torch
from torch import nn

from fedac.torch import FedAc, NonFiniteStateError, _averaging, synchronize
from fedac.torch._averaging import move_state

CPU = torch.device("cpu")


def train(params, *, steps: int = 1, optimizer: FedAc | None = None) -> FedAc:
    """Take steps with gradients that differ by step."""
    optimizer = optimizer or FedAc(params, lr=0.1, mu=1e-8, local_steps=10**6)
    for _ in range(steps):
        for i, p in enumerate(params):
            p.grad = torch.full_like(p, float(i + optimizer.steps))
        optimizer.step()
    return optimizer


def new_params(**kwargs) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, **kwargs)) for shape in ((3, 4), (5,), ())]


def memories(optimizer: FedAc) -> set[int]:
    return {
        tensor.untyped_storage().data_ptr()
        for state in optimizer.state.values()
        for tensor in state.values()
    }


def everything(optimizer: FedAc) -> list[torch.Tensor]:
    params = optimizer.parameters()
    return [t.detach().clone() for p in params for t in (p, *optimizer.sequences(p))]


def same(one, other) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


# -- the buffers -------------------------------------------------------------------------------


def test_tensors_of_another_kind_get_copies() -> None:
    ours = [
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(1, 2, 2, 2).to(memory_format=torch.channels_last),
        torch.zeros(2, 2),
    ]
    places = [tensor.data_ptr() for tensor in ours]
    mean, other = torch.arange(15.0), torch.zeros(1)
    left = move_state(mean, ours, [other])
    values = torch.cat([*(tensor.reshape(-1).float() for tensor in ours), other])
    assert torch.equal(values, mean)
    assert [t.data_ptr() == place for t, place in zip(ours, places, strict=True)] == [1, 1, 0]
    assert ours[1].is_contiguous(memory_format=torch.channels_last)
    assert left is not None
    assert left.data_ptr() == places[2]


@pytest.mark.parametrize("chunk", [1, 4, 7, 1000])
@pytest.mark.parametrize("factor", [1.0, 0.5, 3.0])
def test_flat_tensors_are_filled_in_chunks(chunk: int, factor: float, monkeypatch) -> None:
    monkeypatch.setattr(_averaging, "CHUNK", chunk)
    whole = torch.arange(20.0)
    tensors = [
        whole[:3],
        whole[3:9].view(2, 3),
        whole[9:],  # neighbours until here
        torch.empty(0),
        whole.view(4, 5).t(),
        whole.bfloat16(),
        whole[12:13],
        whole[12:13],
    ]
    found, norm = _averaging.flatten_again(tensors, CPU, zeros=2, reuse=None, factor=factor)
    expected = factor * torch.cat([*(t.reshape(-1).float() for t in tensors), torch.zeros(2)])
    assert torch.equal(found, expected)
    assert norm.item() == pytest.approx(expected.double().norm().item())
    again, _ = _averaging.flatten_again(tensors[::-1], CPU, zeros=2, reuse=found, factor=factor)
    assert again is found


# -- rounds ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("alone")
def test_two_buffers_alternate() -> None:
    params = new_params()
    optimizer = train(params)
    averages = synchronize(optimizer)
    found = []
    for _ in range(6):
        averages.synchronize()
        found.append(memories(optimizer))
        train(params, optimizer=optimizer)
    assert [len(memory) for memory in found] == [1] * 6
    assert found[0] == found[2] == found[4] != found[1] == found[3] == found[5]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", [{}, {"dtype": torch.float64}, {"dtype": torch.bfloat16}])
def test_steps_after_a_round_are_the_same(kind) -> None:
    plain, params = new_params(**kind), new_params(**kind)
    alone, optimizer = train(plain), train(params)
    averages = synchronize(optimizer)
    kept = optimizer.state[params[0]]["w"]
    for _ in range(3):
        averages.synchronize()
        train(plain, steps=2, optimizer=alone)
        train(params, steps=2, optimizer=optimizer)
    assert same(everything(alone), everything(optimizer))
    assert kept is optimizer.state[params[0]]["w"]


@pytest.mark.usefixtures("alone")
def test_a_failed_round_leaves_the_state_where_it_is() -> None:
    params = new_params()
    optimizer = train(params)
    averages = synchronize(optimizer)
    averages.synchronize()
    train(params, optimizer=optimizer)
    optimizer.state[params[1]]["w"][0] = torch.nan
    before, where = everything(optimizer), memories(optimizer)
    with pytest.raises(NonFiniteStateError):
        averages.synchronize()
    assert memories(optimizer) == where
    assert all(
        map(
            torch.equal, map(torch.nan_to_num, before), map(torch.nan_to_num, everything(optimizer))
        )
    )


@pytest.mark.usefixtures("alone")
def test_copies_and_loaded_states_have_memory_of_their_own() -> None:
    params = new_params()
    optimizer = train(params)
    averages = synchronize(optimizer)
    averages.synchronize()
    saved, before = optimizer.state_dict(), everything(optimizer)
    twin = copy.deepcopy(optimizer)
    assert not memories(twin) & memories(optimizer)
    for _ in range(2):
        train(params, steps=2, optimizer=optimizer)
        averages.synchronize()
    after = everything(optimizer)
    assert same(everything(twin), before)
    optimizer.load_state_dict(saved)
    assert same(
        [t for p in params for t in optimizer.sequences(p)],
        [t for i in range(3) for t in before[3 * i + 1 : 3 * i + 3]],
    )
    with torch.no_grad():
        for p, value in zip(params, before[::3], strict=True):
            p.copy_(value)
    for _ in range(2):
        train(params, steps=2, optimizer=optimizer)
        averages.synchronize()
    assert same(everything(optimizer), after)


@pytest.mark.usefixtures("alone")
def test_a_saved_tensor_is_saved_without_the_others() -> None:
    params = [nn.Parameter(torch.ones(10_000)), nn.Parameter(torch.ones(2))]
    optimizer = train(params)
    synchronize(optimizer).synchronize()
    file = io.BytesIO()
    torch.save(optimizer.state_dict()["state"][1], file)
    assert file.tell() < 5_000


@pytest.mark.usefixtures("alone")
def test_rounds_in_inference_mode_leave_tensors_that_steps_can_use() -> None:
    params = new_params()
    optimizer = train(params)
    averages = synchronize(optimizer)
    with torch.inference_mode():
        averages.synchronize()
    train(params, optimizer=optimizer)
    assert not any(t.is_inference() for p in params for t in optimizer.sequences(p))
