# SPDX-License-Identifier: Apache-2.0
"""Fingerprints follow what an algorithm computes and nothing else."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedac.algorithms import ALGORITHMS, FEDAC_I, FEDAVG, fedac
from fedac.algorithms.checks import fingerprint


def test_algorithms_that_differ_have_different_fingerprints() -> None:
    prints = {name: fingerprint(algorithm) for name, algorithm in ALGORITHMS.items()}
    assert len(set(prints.values())) == len(prints)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_copy_under_another_name_has_the_same(name: str) -> None:
    copy = replace(ALGORITHMS[name], name="mine", label="Mine")
    assert fingerprint(copy) == fingerprint(ALGORITHMS[name])


def test_the_same_update_written_differently_has_the_same() -> None:
    def query(state, hp):
        w_ag, w = state
        return w_ag + (w - w_ag) / hp.beta

    def update(state, w_md, g, hp):
        w = state[1]
        return w_md - g * hp.eta, w + (w_md - w) / hp.alpha - g * hp.gamma

    assert fingerprint(replace(FEDAC_I, query=query, update=update)) == fingerprint(FEDAC_I)


@pytest.mark.parametrize(
    "changes",
    [
        {"update": lambda state, w_md, g, hp: (w_md - 1.000001 * hp.eta * g,)},
        {"update": lambda state, w_md, g, hp: (w_md - hp.eta * np.clip(g, -100.0, 100.0),)},
        {"query": lambda state, hp: 0.99 * state[0]},
        {"output": lambda state, hp, t: state[0] / (1 + t)},
        {"start": lambda w_0: (2 * w_0,)},
        {"couple": lambda *, eta, mu, K: FEDAVG.couple(eta=eta / K, mu=mu, K=K)},
        {"sequences": ("x",)},
        {"minibatch": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_any_change_shows(changes: dict) -> None:
    assert fingerprint(replace(FEDAVG, **changes)) != fingerprint(FEDAVG)


def test_coefficients_count() -> None:
    one, other = (fedac(gamma=gamma, alpha=2.0, beta=3.0, name="mine") for gamma in (0.1, 0.2))
    assert fingerprint(one) != fingerprint(other)


def test_functions_that_work_in_place_disturb_no_probe() -> None:
    def update(state, w_md, g, hp):
        g *= -hp.eta
        g += w_md
        return (g,)

    assert fingerprint(replace(FEDAVG, update=update)) == fingerprint(FEDAVG)


def test_every_process_finds_the_same() -> None:
    code = (
        "from fedac.algorithms import FEDAC_I; "
        "from fedac.algorithms.checks import fingerprint; print(fingerprint(FEDAC_I))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(FEDAC_I)
