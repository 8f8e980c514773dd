"""Programs of linear combinations: what they compute, and in how many passes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.algorithms import FEDAC_I, FEDAVG, FEDAVG_WEIGHTED, get
from fedac.algorithms.linear import linear_form
from fedac.torch._fused_step import combination, query_program, run, step_program
from fedac.torch._optimizer import decayed_form

factors = st.sampled_from([0.0, 1.0, -1.0, 0.25, 0.75, 2.0]) | st.floats(1e-6, 3)


@settings(max_examples=200, deadline=None)
@given(out=st.integers(0, 3), coefficients=st.lists(factors, min_size=4, max_size=4))
def test_a_program_computes_the_sum(out: int, coefficients) -> None:
    slots = list(torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    many = [[slot.clone(), 2 * slot] for slot in slots]
    wanted = sum(c * slot for c, slot in zip(coefficients, slots, strict=True))
    program = combination(out, [(c, slot) for slot, c in enumerate(coefficients)])
    run(program, [[slot] for slot in slots])
    run(program, many)
    torch.testing.assert_close(slots[out], wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(many[out][0], slots[out])
    assert torch.equal(many[out][1], 2 * slots[out])


@pytest.mark.parametrize(
    ("terms", "kinds"),
    [
        ([(1.0, 1), (-0.1, 2)], ["add"]),
        ([(0.75, 1), (0.25, 2)], ["lerp"]),
        ([(0.75, 0), (0.25, 1)], ["lerp"]),
        ([(0.75, 0), (0.25, 1), (2.0, 2)], ["lerp", "add"]),
        ([(1.0, 0), (0.0, 1)], []),
        ([(0.5, 0), (0.5, 0), (0.1, 1)], ["add"]),
        ([(1.0, 1)], ["copy"]),
        ([(2.0, 1), (3.0, 2)], ["scale", "add"]),
        ([], ["scale"]),
    ],
)
def test_passes_over_memory(terms, kinds) -> None:
    assert [operation.kind for operation in combination(0, terms)] == kinds


def test_a_step_of_fedac_takes_four_passes_without_scratch_space() -> None:
    program = step_program(
        linear_form(FEDAC_I, FEDAC_I.couple(eta=0.1, mu=0.1, K=4)), in_place=False, many=False
    )
    assert [(operation.kind, operation.out) for operation in program] == [
        ("add", 0), ("lerp", 1), ("add", 1), ("lerp", 2),
    ]  # fmt: skip


def test_many_tensors_take_one_copy() -> None:
    form = linear_form(FEDAC_I, FEDAC_I.couple(eta=0.1, mu=0.1, K=4))
    program = step_program(form, in_place=False, many=True)
    assert [(operation.kind, operation.out) for operation in program] == [
        ("lerp", 1), ("add", 1), ("add", 2), ("copy", 0), ("lerp", 2),
    ]  # fmt: skip
    assert all(operation.x == operation.out for operation in program if operation.kind != "copy")


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["fedac-i", "fedac-ii", "gpa(0.5,0.75)", "momentum(0.9)",
                                  "fedavg-weighted", "fedac-i+cv", "fedprox(0.5)"])  # fmt: skip
def test_programs_for_one_and_for_many_tensors_are_bit_identical(name, weight_decay) -> None:
    algorithm = get(name)
    form = decayed_form(algorithm, algorithm.couple(eta=0.1, mu=0.1, K=4), weight_decay)
    one, many = (step_program(form, in_place=False, many=many) for many in (False, True))
    slots = 2 * len(form.query) + 2
    values = torch.randn(slots, 9, generator=torch.Generator().manual_seed(0))
    single, double = ([[v.clone()] for v in values], [[v.clone(), v.clone()] for v in values])
    run(one, single)
    run(many, double)
    for (mine,), (first, second) in zip(single, double, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(mine, first)


def test_a_step_of_fedavg_takes_one_pass() -> None:
    program = step_program(
        linear_form(FEDAVG, FEDAVG.couple(eta=0.1, mu=0.1, K=4)), in_place=True, many=False
    )
    assert [(operation.kind, operation.out) for operation in program] == [("add", 0)]


def test_the_old_value_of_a_sequence_is_kept_for_later_ones() -> None:
    hp = FEDAVG_WEIGHTED.couple(eta=0.1, mu=0.1, K=4)
    program = step_program(linear_form(FEDAVG_WEIGHTED, hp), in_place=False, many=False)
    assert (program[0].kind, program[0].out, program[0].x) == ("copy", 4, 0)
    assert query_program((1.0, 0.0))[0].kind == "copy"
