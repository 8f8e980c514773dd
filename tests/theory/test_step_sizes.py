# SPDX-License-Identifier: Apache-2.0
"""Step sizes: the paper's formulas in plain numbers, branch by branch, and their reductions."""

import math
from dataclasses import asdict
from itertools import product
from math import e, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.algorithms import hyperparameters
from fedac.errors import InputError
from fedac.theory import THEOREMS as ALL
from fedac.theory import StepSize, theorem

pytestmark = pytest.mark.slow

# The letters that every theorem needs.
COMMON = {"L": 2.0, "mu": 0.5, "sigma": 2.0, "M": 2, "K": 16, "T": 1024}
CONVEX = {"L": 2.0, "sigma": 2.0, "M": 2, "K": 16, "T": 1024, "D0": 3.0}
THEOREMS = {
    "fedaci:full": COMMON | {"Psi0": 1.0},
    "fedacii:a1:full": COMMON | {"Phi0": 1.0},
    "fedacii:a2:full": COMMON | {"Phi0": 1.0, "Q": 3.0},
    "fedavg:a1": COMMON | {"D0": 3.0},
    "fedavg:a2:full": COMMON | {"D0": 3.0, "Q": 3.0},
    "mb-sgd": COMMON | {"D0": 3.0},
    "mb-ac-sgd": COMMON | {"Psi0": 1.0},
    "ac-sgd": COMMON | {"Psi0": 1.0},
    "fedaci:a1:gcvx": CONVEX,
    "fedacii:a1:gcvx": CONVEX,
    "fedacii:a2:gcvx": CONVEX | {"Q": 3.0},
    "fedavg:a1:gcvx": CONVEX,
    "fedavg:a2:gcvx": CONVEX | {"Q": 3.0},
    "mb-sgd:gcvx": CONVEX,
    "mb-ac-sgd:gcvx": CONVEX,
    "ac-sgd:gcvx": CONVEX,
}
COUPLINGS = {
    "fedaci:": hyperparameters.fedac_i,
    "fedacii:": hyperparameters.fedac_ii,
    "fedavg:a1": hyperparameters.fedavg,
    "fedavg:a2": hyperparameters.fedavg_weighted,
    "mb-sgd": hyperparameters.fedavg,
    "mb-ac-sgd": hyperparameters.vanilla,
    "ac-sgd": hyperparameters.vanilla,
}
LEAST_STEPS = {
    "fedaci:a1:gcvx": 24,
    "fedacii:a1:gcvx": 1000,
    "fedacii:a2:gcvx": 1000,
    "fedavg:a2:gcvx": 100,
}
every_theorem = pytest.mark.parametrize("name", THEOREMS)
WITHOUT_LAM = [name for name in THEOREMS if not name.endswith(":gcvx")]
FEDAC = ["fedaci:full", "fedacii:a1:full", "fedacii:a2:full"]

repeatable = settings(deadline=None, derandomize=True, max_examples=60)


def step_size(name: str, **letters) -> StepSize:
    return theorem(name).step_size(**letters)


def coupling(name: str):
    return next(couple for prefix, couple in COUPLINGS.items() if name.startswith(prefix))


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


@st.composite
def constants(draw) -> dict[str, float]:
    """Draw all letters, over many orders of magnitude."""
    T = draw(st.integers(1, 10**6))
    L = draw(powers_of_ten(-3, 3))
    # FedAc-II refuses mu = L without noise: alpha = 1.
    kappa = draw(st.one_of(st.floats(1.001, 2), powers_of_ten(0.1, 6)))
    return {
        "L": L,
        "mu": L / kappa,
        "sigma": draw(powers_of_ten(-4, 4)),
        "Q": draw(powers_of_ten(-4, 4)),
        "M": draw(st.integers(1, 10**6)),
        "K": max(1, int(T ** draw(st.floats(0, 1)))),
        "T": T,
        "D0": draw(powers_of_ten(-3, 3)),
        "Psi0": draw(powers_of_ten(-6, 6)),
        "Phi0": draw(powers_of_ten(-6, 6)),
    }


def of(name: str, letters: dict[str, float]) -> dict[str, float]:
    """Choose the letters that a theorem needs, and enough steps."""
    chosen = {letter: value for letter, value in letters.items() if letter in THEOREMS[name]}
    return chosen | {"T": max(letters["T"], LEAST_STEPS.get(name, 1))}


# Every theorem, every branch: letters, what is expected, and the paper's formula in numbers.
ONE, TWO = {"L": 2, "mu": 1 / 2, "T": 64}, {"L": 2, "mu": 1 / 2, "T": 256}
BY_HAND = {
    # K/(mu T^2) = 4/(1/2 4096) = 1/512; mu M T Psi0/sigma^2 = 64/4; mu^2 T^3/(L K^2 sigma^2) = 512
    "fedaci:full, variance": (
        ONE | {"sigma": 2, "M": 2, "K": 4, "Psi0": 1},
        {"eta": log(e + 16) ** 2 / 512},
    ),
    # the first ratio is now 1/2 1024 64/4 = 8192
    "fedaci:full, discrepancy": (
        ONE | {"sigma": 2, "M": 1024, "K": 4, "Psi0": 1},
        {"eta": log(e + 512) ** 2 / 512},
    ),
    # log^2(e + 512) K/(mu T^2) = 38.98/32 is above 1/L
    "fedaci:full, smoothness": (
        ONE | {"sigma": 1 / 8, "M": 2, "K": 64, "Psi0": 1},
        {"eta": 1 / 2},
    ),
    # 9 K/(mu T^2) = 9/2048; mu M T Phi0/sigma^2 = 64; mu^3 T^4/(L^2 K^3 sigma^2) = 2^29/2^16 = 8192
    "fedacii:a1:full, variance": (
        TWO | {"sigma": 2, "M": 2, "K": 16, "Phi0": 1},
        {"eta": 9 / 2048 * log(e + 64) ** 2},
    ),
    # 1/2 1024 256/4 = 32768. A sum of both ratios, as printed, would be 40960.
    "fedacii:a1:full, discrepancy": (
        TWO | {"sigma": 2, "M": 1024, "K": 16, "Phi0": 1},
        {"eta": 9 / 2048 * log(e + 8192) ** 2},
    ),
    "fedacii:a1:full, smoothness": (
        TWO | {"sigma": 1 / 8, "M": 1024, "K": 16, "Phi0": 1},
        {"eta": 1 / 2},
    ),
    # mu^2 M T^3/(L K^2 sigma^2) = 2^23/2^11 = 4096; mu^5 T^8/(Q^2 K^6 sigma^4) = 2^59/2^28
    "fedacii:a2:full, variance": (
        TWO | {"sigma": 2, "Q": 1, "M": 2, "K": 16, "Phi0": 1},
        {"eta": 9 / 2048 * log(e + 64) ** 2},
    ),
    # 9 256/(1/2 65536) = 9/128; ratios 256/16, 2^23/2^21 = 4 and 2^59/(2^-2 2^48 2^8) = 32
    "fedacii:a2:full, accelerated variance": (
        TWO | {"sigma": 4, "Q": 1 / 2, "M": 2, "K": 256, "Phi0": 1},
        {"eta": 9 / 128 * log(e + 4) ** 2},
    ),
    # ratios 64, 4096 and 2^59/(2^28 2^24 2^4) = 8
    "fedacii:a2:full, discrepancy": (
        TWO | {"sigma": 2, "Q": 2**14, "M": 2, "K": 16, "Phi0": 1},
        {"eta": 9 / 2048 * log(e + 8) ** 2},
    ),
    "fedacii:a2:full, smoothness": (
        TWO | {"sigma": 1 / 8, "Q": 1, "M": 1024, "K": 16, "Phi0": 1},
        {"eta": 1 / 2},
    ),
    # 1/(mu T) = 1/32; mu T D0^2 = 2; over sigma^2/(mu M T) = 1/16: 32; over the discrepancy
    # L K sigma^2/(mu T)^2 = 1/8: 16
    "fedavg:a1, discrepancy": (
        ONE | {"sigma": 2, "M": 2, "K": 16, "D0": 1 / 4},
        {"eta": log(e + 16) / 32},
    ),
    # the discrepancy is 1/128
    "fedavg:a1, variance": (
        ONE | {"sigma": 2, "M": 2, "K": 1, "D0": 1 / 4},
        {"eta": log(e + 32) / 32},
    ),
    "fedavg:a1, smoothness": (
        ONE | {"sigma": 2, "M": 2, "K": 1, "D0": 2**24},
        {"eta": 1 / 8},
    ),
    # 2/(mu T) = 1/128; mu^2 M T^2 D0^2/sigma^2 = 2^19/2^4;
    # mu^6 T^5 D0^2/(Q^2 K^2 sigma^4) = 2^41/2^14
    "fedavg:a2:full, variance": (
        {"L": 2, "mu": 1 / 2, "T": 512, "sigma": 4, "Q": 1 / 4, "M": 2, "K": 32, "D0": 2},
        {"eta": log(e + 2**15) / 128, "rho": 1 - log(e + 2**15) / 512},
    ),
    # the second ratio is now 2^41/(2^16 2^10 2^8) = 128
    "fedavg:a2:full, discrepancy": (
        {"L": 2, "mu": 1 / 2, "T": 512, "sigma": 4, "Q": 2**8, "M": 2, "K": 32, "D0": 2},
        {"eta": log(e + 128) / 128},
    ),
    # 1/(4 L); rho = 1 - 1/2 1/8 1/2
    "fedavg:a2:full, smoothness": (
        {"L": 2, "mu": 1 / 2, "T": 64, "sigma": 1 / 4, "Q": 1 / 4, "M": 2, "K": 32, "D0": 1},
        {"eta": 1 / 8, "rho": 31 / 32},
    ),
    # K/(mu T) = 1/8; mu T/K D0^2 = 2; over sigma^2/(mu M T) = 1
    "mb-sgd, variance": (
        ONE | {"sigma": 8, "M": 2, "K": 4, "D0": 1 / 2},
        {"eta": log(e + 2) / 8},
    ),
    "mb-sgd, smoothness": (ONE | {"sigma": 2, "M": 2, "K": 16, "D0": 4}, {"eta": 1 / 4}),
    # K^2/(mu T^2) = 1/128
    "mb-ac-sgd, variance": (
        ONE | {"sigma": 8, "M": 2, "K": 4, "Psi0": 8},
        {"eta": log(e + 8) ** 2 / 128},
    ),
    "mb-ac-sgd, smoothness": (ONE | {"sigma": 2, "M": 2, "K": 16, "Psi0": 32}, {"eta": 1 / 2}),
    # 1/(mu T^2) = 1/2048; mu T Psi0/sigma^2 = 32 16/64, whatever M and K
    "ac-sgd, variance": (
        ONE | {"sigma": 8, "M": 2, "K": 4, "Psi0": 16},
        {"eta": log(e + 8) ** 2 / 2048},
    ),
    "ac-sgd, smoothness": (ONE | {"sigma": 2, "M": 2, "K": 16, "Psi0": 2**60}, {"eta": 1 / 2}),
    # lam = sigma/sqrt(M T)/D0 = 2/8; lam L M T D0^2/sigma^2 = 1; K/(lam T^2) = 4/4096
    "fedaci:a1:gcvx, lam of the variance": (
        {"L": 1 / 4, "sigma": 2, "M": 1, "K": 1, "T": 64, "D0": 1},
        {"lam": 1 / 4, "eta": log(e + 1) ** 2 / 1024},
    ),
    # lam = (1/2 64/4)^1/3/512 = 2/512; lam^2 T^3 D0^2/(K^2 sigma^2) = 2^-16 2^29/64; 8 256/2^18
    "fedaci:a1:gcvx, lam of the discrepancy": (
        {"L": 1 / 2, "sigma": 1, "M": 64, "K": 8, "T": 512, "D0": 2},
        {"lam": 1 / 256, "eta": log(e + 128) ** 2 / 128},
    ),
    # lam = 2 L K/T^2 log^2(e^2 + T^2/K) = 16/4096 log^2(e^2 + 1024)
    "fedaci:a1:gcvx, smoothness": (
        {"L": 2, "sigma": 1 / 8, "M": 1, "K": 4, "T": 64, "D0": 4},
        {
            "lam": log(e**2 + 1024) ** 2 / 256,
            "eta": 1 / (2 + log(e**2 + 1024) ** 2 / 256),
        },
    ),
    # lam = (2^10 2^4 2^4)^1/3/64; (L K D0^2/(lam sigma)^2)^1/3/T = 2^(5 - 4 - 4)/3/64
    "fedaci:a1:gcvx, first cap": (
        {"L": 1, "sigma": 4, "M": 8, "K": 32, "T": 64, "D0": 1 / 4},
        {"lam": 1, "eta": 1 / 128},
    ),
    # lam = (2^20 16)^1/3/1024 = 2^(8 - 10); (L K D0^2/lam^3)^1/4/T = (2^10 2^-4 2^6)^1/4/1024
    "fedaci:a1:gcvx, second cap": (
        {"L": 1, "sigma": 1, "M": 1, "K": 1024, "T": 1024, "D0": 1 / 4},
        {"lam": 1 / 4, "eta": 1 / 128},
    ),
    # lam = 1/32 1/2; lam L M T D0^2/sigma^2 = 1/64 4096; 9 64/2^20
    "fedacii:a1:gcvx, lam of the variance": (
        {"L": 1, "sigma": 1, "M": 1, "K": 1, "T": 1024, "D0": 2},
        {"lam": 1 / 64, "eta": 9 / 16384 * log(e + 64) ** 2},
    ),
    # lam = K^3/4 (L sigma/D0)^1/2/T = 8 2/8192; lam^3 T^4 D0^2/(L K^3 sigma^2) = 2^19/2^10;
    # 9 16 512/2^26
    "fedacii:a1:gcvx, lam of the discrepancy": (
        {"L": 1, "sigma": 1 / 2, "M": 1024, "K": 16, "T": 8192, "D0": 1 / 8},
        {"lam": 1 / 512, "eta": 9 / 8192 * log(e + 512) ** 2},
    ),
    # lam = 18 L K/T^2 log^2(e^2 + T^2/K) = 4608/2^20 log^2(e^2 + 2^14)
    "fedacii:a1:gcvx, smoothness": (
        {"L": 4, "sigma": 1 / 16, "M": 1, "K": 64, "T": 1024, "D0": 2},
        {
            "lam": 9 / 2048 * log(e**2 + 2**14) ** 2,
            "eta": 1 / (4 + 9 / 2048 * log(e**2 + 2**14) ** 2),
        },
    ),
    # lam = 4/32; (L D0^2/(lam T sigma)^2)^1/3 = 512^-2/3
    "fedacii:a1:gcvx, cap": (
        {"L": 1, "sigma": 4, "M": 1, "K": 64, "T": 1024, "D0": 1},
        {"lam": 1 / 8, "eta": 1 / 64},
    ),
    # lam = 1/32 2; lam L M T D0^2/sigma^2 = 128/16; 9 2 16/2^20
    "fedacii:a2:gcvx, lam of the variance": (
        {"L": 1 / 2, "sigma": 1, "Q": 1, "M": 1, "K": 2, "T": 1024, "D0": 1 / 2},
        {"lam": 1 / 16, "eta": 9 / 32768 * log(e + 8) ** 2},
    ),
    # lam = (L K^2 sigma^2/(M D0^2))^1/3/T = 2^(35 - 2)/3/2^13;
    # (L K M D0^2/(lam sigma)^2)^1/3/T = 2^(13 + 2 + 4 - 10)/3/2^13
    "fedacii:a2:gcvx, lam of the accelerated variance, cap": (
        {"L": 2, "sigma": 32, "Q": 1, "M": 1, "K": 4096, "T": 8192, "D0": 2},
        {"lam": 1 / 4, "eta": 1 / 1024},
    ),
    # lam = K (Q sigma^2/(T^4 D0))^1/3 = 8 2^(2 - 2 - 40 - 2)/3;
    # lam^5 L T^8 D0^2/(Q^2 K^6 sigma^4) = 2^(-55 - 6 + 80 + 4)/2^18; 9 8 2048/2^20
    "fedacii:a2:gcvx, lam of the discrepancy": (
        {"L": 1 / 64, "sigma": 1 / 2, "Q": 4, "M": 256, "K": 8, "T": 1024, "D0": 4},
        {"lam": 1 / 2048, "eta": 9 / 64 * log(e + 32) ** 2},
    ),
    # lam = 18 64 4096/2^32 log^2(e^2 + 2^20); lam^2 M T^3 D0^2/(K^2 sigma^2) = 2^48/2^16 lam^2;
    # 9 4096/(lam 2^32)
    "fedacii:a2:gcvx, ratio of the accelerated variance": (
        {"L": 64, "sigma": 1 / 16, "Q": 1, "M": 4, "K": 4096, "T": 65536, "D0": 1 / 2},
        {
            "lam": 9 / 8192 * log(e**2 + 2**20) ** 2,
            "eta": log(e + 2**32 * (9 / 8192 * log(e**2 + 2**20) ** 2) ** 2) ** 2
            / (2**7 * log(e**2 + 2**20) ** 2),
        },
    ),
    # lam = 18 64 8/2^20 log^2(e^2 + 2^17)
    "fedacii:a2:gcvx, smoothness": (
        {"L": 64, "sigma": 1 / 16, "Q": 1, "M": 2, "K": 8, "T": 1024, "D0": 1},
        {
            "lam": 9 / 1024 * log(e**2 + 2**17) ** 2,
            "eta": 1 / (64 + 9 / 1024 * log(e**2 + 2**17) ** 2),
        },
    ),
    # D0 sqrt(M/T)/sigma = 1/2 1/8 1/2
    "fedavg:a1:gcvx, variance": (
        {"L": 1, "sigma": 2, "M": 1, "K": 1, "T": 64, "D0": 1 / 2},
        {"lam": 0, "eta": 1 / 32},
    ),
    # (D0^2/(L K T sigma^2))^1/3 = 512^-1/3
    "fedavg:a1:gcvx, discrepancy": (
        {"L": 1, "sigma": 1, "M": 64, "K": 8, "T": 64, "D0": 1},
        {"lam": 0, "eta": 1 / 8},
    ),
    "fedavg:a1:gcvx, smoothness": (
        {"L": 2, "sigma": 1 / 8, "M": 64, "K": 1, "T": 64, "D0": 1},
        {"lam": 0, "eta": 1 / 8},
    ),
    # lam = 2/16 8; lam^2 M T^2 D0^2/sigma^2 = 2^16/2^8; rho = 1 - 1/2 eta
    "fedavg:a2:gcvx, lam of the variance": (
        {"L": 1, "sigma": 2, "Q": 1 / 4, "M": 1, "K": 1, "T": 256, "D0": 1 / 8},
        {"lam": 1, "eta": log(e + 256) / 128, "rho": 1 - log(e + 256) / 256},
    ),
    # lam = (Q K sigma^2/(T^2 D0))^1/3 = 2^(7 - 16)/3; lam^6 T^5 D0^2/(Q^2 K^2 sigma^4) = 2^22/2^14
    "fedavg:a2:gcvx, lam of the discrepancy": (
        {"L": 1 / 8, "sigma": 2, "Q": 16, "M": 2, "K": 2, "T": 256, "D0": 1},
        {"lam": 1 / 8, "eta": log(e + 256) / 16},
    ),
    # lam = 16 L/T log(e + T) = 32/256 log(e + 256)
    "fedavg:a2:gcvx, smoothness": (
        {"L": 2, "sigma": 1 / 2, "Q": 1, "M": 1, "K": 1, "T": 256, "D0": 1},
        {"lam": log(e + 256) / 8, "eta": 1 / (8 + log(e + 256) / 2)},
    ),
    # D0 K sqrt(M/T)/sigma = 1/2 1/8 1/2
    "mb-sgd:gcvx, variance": (
        {"L": 1, "sigma": 2, "M": 1, "K": 1, "T": 64, "D0": 1 / 2},
        {"lam": 0, "eta": 1 / 32},
    ),
    # D0 K sqrt(M/T)/sigma = 4
    "mb-sgd:gcvx, smoothness": (
        {"L": 2, "sigma": 1, "M": 64, "K": 4, "T": 64, "D0": 1},
        {"lam": 0, "eta": 1 / 4},
    ),
    # R = 64; lam = 2/16 1/2; lam L M T D0^2/sigma^2 = 16/4; lam R^2 = 256
    "mb-ac-sgd:gcvx, lam of the variance": (
        {"L": 1 / 4, "sigma": 2, "M": 1, "K": 4, "T": 256, "D0": 2},
        {"lam": 1 / 16, "eta": log(e + 4) ** 2 / 256},
    ),
    # lam = 2 L/R^2 log^2(e^2 + R^2) = 4/4096 log^2(e^2 + 4096)
    "mb-ac-sgd:gcvx, smoothness": (
        {"L": 2, "sigma": 0, "M": 1, "K": 4, "T": 256, "D0": 1},
        {
            "lam": log(e**2 + 4096) ** 2 / 1024,
            "eta": 1 / (2 + log(e**2 + 4096) ** 2 / 1024),
        },
    ),
    # lam = 2/8 1/2; lam L T D0^2/sigma^2 = 8/4; lam T^2 = 512
    "ac-sgd:gcvx, lam of the variance": (
        {"L": 1 / 4, "sigma": 2, "M": 1, "K": 4, "T": 64, "D0": 2},
        {"lam": 1 / 8, "eta": log(e + 2) ** 2 / 512},
    ),
    "ac-sgd:gcvx, smoothness": (
        {"L": 2, "sigma": 0, "M": 1, "K": 4, "T": 64, "D0": 1},
        {
            "lam": log(e**2 + 4096) ** 2 / 1024,
            "eta": 1 / (2 + log(e**2 + 4096) ** 2 / 1024),
        },
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_numbers_by_hand(case: str) -> None:
    letters, expected = BY_HAND[case]
    chosen = step_size(case.partition(",")[0], **letters)
    got = {"lam": chosen.lam} | asdict(chosen.hp)
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-13)


def test_every_theorem_is_covered_here() -> None:
    labels = {one.label for one in ALL}
    assert labels == set(THEOREMS) == {case.partition(",")[0] for case in BY_HAND}


@every_theorem
def test_the_letters_that_a_theorem_needs(name: str) -> None:
    assert set(theorem(name).letters) == set(THEOREMS[name])
    assert theorem(name).least_steps == LEAST_STEPS.get(name, 1)


@every_theorem
def test_all_hyperparameters_are_coupled_as_the_theorem_says(name: str) -> None:
    letters = THEOREMS[name]
    chosen = step_size(name, **letters)
    mu = letters.get("mu") or chosen.lam or 1.0
    assert chosen.hp == coupling(name)(eta=chosen.eta, mu=mu, K=letters["K"])
    assert (chosen.lam > 0) == (name not in [*WITHOUT_LAM, "mb-sgd:gcvx", "fedavg:a1:gcvx"])


@repeatable
@given(letters=constants(), value=st.integers(-8, 8), length=st.integers(-8, 8))
def test_step_sizes_have_the_right_units(letters, value, length) -> None:
    # Values in units of c, lengths in units of s: L and mu are c/s^2, sigma is c/s, Q is c/s^3.
    c, s = 2.0**value, 2.0**length
    units = {"L": c / s**2, "mu": c / s**2, "sigma": c / s, "Q": c / s**3, "D0": s}
    units |= {"Psi0": c, "Phi0": c, "M": 1, "K": 1, "T": 1}
    scaled = {letter: value * units[letter] for letter, value in letters.items()}
    for name in THEOREMS:
        one = step_size(name, **of(name, letters))
        other = step_size(name, **of(name, scaled))
        assert other.eta * c / s**2 == pytest.approx(one.eta, rel=1e-9), name
        gamma, expected = (hyperparameters.as_fedac(each.hp).gamma for each in (other, one))
        assert gamma * c / s**2 == pytest.approx(expected, rel=1e-9), name
        assert other.lam / c * s**2 == pytest.approx(one.lam, rel=1e-9), name


@repeatable
@given(letters=constants())
def test_no_step_size_exceeds_what_its_lemma_allows(letters) -> None:
    for name in THEOREMS:
        chosen = step_size(name, **of(name, letters))
        assert 0 < chosen.eta <= largest(name, letters["L"], chosen), name


def largest(name: str, L: float, chosen: StepSize) -> float:
    """1/L of the (augmented) objective, less where the bound is for an average."""
    times = {"fedavg": 4, "mb-sgd": 2}.get(name.partition(":")[0], 1)
    return 1 / (times * (L + chosen.lam))


@every_theorem
def test_without_noise_the_step_size_is_the_largest_allowed(name: str) -> None:
    letters = THEOREMS[name] | {"sigma": 0.0}
    chosen = step_size(name, **letters)
    assert chosen.eta == pytest.approx(largest(name, 2.0, chosen), rel=1e-15)
    # ... and it is reached, not only approached.
    assert step_size(name, **letters | {"sigma": 1e-150}) == chosen


@repeatable
@given(letters=constants())
def test_without_third_derivative_its_ratio_drops_out(letters) -> None:
    for name in (name for name in THEOREMS if "Q" in THEOREMS[name]):
        rough = of(name, letters)
        quadratic = step_size(name, **rough | {"Q": 0.0})
        assert step_size(name, **rough | {"Q": 1e-80}) == quadratic, name
        # A third derivative can only lower the step size at a given strong convexity.
        if name in WITHOUT_LAM:
            assert step_size(name, **rough).eta <= quadratic.eta, name


@repeatable
@given(letters=constants())
def test_more_workers_allow_larger_steps(letters) -> None:
    more = letters | {"M": 2 * letters["M"]}
    for name in WITHOUT_LAM:
        assert step_size(name, **of(name, more)).eta >= step_size(name, **of(name, letters)).eta


# --- reductions -----------------------------------------------------------------------------


@repeatable
@given(letters=constants())
def test_fedac_i_that_synchronizes_at_every_step_is_accelerated_sgd(letters) -> None:
    # gamma = sqrt(eta/mu), alpha = 1/(gamma mu), beta = alpha + 1, the choice of Ghadimi & Lan
    hp = step_size("fedaci:full", **of("fedaci:full", letters) | {"K": 1}).hp
    assert hp == hyperparameters.vanilla(eta=hp.eta, mu=letters["mu"])


@repeatable
@given(letters=constants(), fraction=st.floats(0.001, 0.999))
def test_fedac_of_one_round_is_not_accelerated(letters, fraction) -> None:
    # K = T and L <= mu T: eta >= 1/(mu T), hence sqrt(eta/(mu K)) <= eta
    T = letters["T"] + 1
    letters |= {"T": T, "K": T, "mu": letters["L"] / T**fraction}
    for name in FEDAC:
        hp = step_size(name, **of(name, letters)).hp
        assert hp.gamma == hp.eta, name


# At K = 1 the printed numbers of T steps on M workers: 1/(mu T^2) = 1/2048 and mu M T/sigma^2 = 16;
# the other ratios are 8192 (FedAc-I), 131072 (FedAc-II), 16384 and 2^39 (FedAc-II under asm2).
@pytest.mark.parametrize(
    ("name", "more", "eta"),
    [
        ("fedaci:full", {"Psi0": 1}, log(e + 16) ** 2 / 2048),
        ("fedacii:a1:full", {"Phi0": 1}, 9 / 2048 * log(e + 16) ** 2),
        ("fedacii:a2:full", {"Phi0": 1, "Q": 1}, 9 / 2048 * log(e + 16) ** 2),
    ],
)
def test_fedac_at_one_local_step(name: str, more: dict, eta: float) -> None:
    letters = ONE | {"sigma": 2, "M": 2, "K": 1} | more
    assert step_size(name, **letters).eta == pytest.approx(eta, rel=1e-14)


@repeatable
@given(letters=constants(), K=st.integers(1, 64), R=st.integers(1, 10**4))
def test_minibatches_are_fewer_steps_of_more_workers(letters, K, R) -> None:
    letters |= {"K": K, "T": K * R}
    same = letters | {"M": letters["M"] * K, "K": 1, "T": R}
    for name in ("mb-sgd", "mb-ac-sgd", "mb-sgd:gcvx", "mb-ac-sgd:gcvx"):
        expected = step_size(name, **of(name, letters)).eta
        assert step_size(name, **of(name, same)).eta == pytest.approx(expected, rel=1e-12), name


@repeatable
@given(letters=constants(), kappa=st.floats(1, 1000))
def test_minibatches_of_one_step_are_the_local_algorithms_without_drift(letters, kappa) -> None:
    # K = M = 1 and T >= L/mu: the variance is the larger noise of FedAvg and of FedAc-I, whose
    # step sizes then only depend on it, and on what is allowed: 1/(2L) for minibatches, 1/(4L).
    L, D0 = letters["L"], letters["D0"]
    letters |= {"M": 1, "K": 1, "T": 1000 + letters["T"], "mu": L / kappa, "Psi0": L * D0**2}
    for one_step, local, twice in [("mb-sgd", "fedavg:a1", 2), ("mb-ac-sgd", "fedaci:full", 1)]:
        expected = step_size(one_step, **of(one_step, letters | {"L": twice * L})).eta
        assert step_size(local, **of(local, letters)).eta == pytest.approx(expected, rel=1e-12)


# Without M: mu T Psi0/sigma^2 = 1/2 256/4 = 32; the other ratios are 2048 and more.
@pytest.mark.parametrize("name", FEDAC)
def test_one_worker_leaves_the_sequential_ratio(name: str) -> None:
    letters = TWO | {"sigma": 2, "Q": 1, "M": 1, "K": 16, "Psi0": 1, "Phi0": 1, "D0": 1}
    constant = 1 if name == "fedaci:full" else 9
    expected = constant / 2048 * log(e + 32) ** 2
    assert step_size(name, **of(name, letters)).eta == pytest.approx(expected, rel=1e-14)


# --- bad input ------------------------------------------------------------------------------

NOT_POSITIVE = [0.0, -1.0, math.nan, math.inf]
NEGATIVE = [-1.0, math.nan, math.inf]
BAD = {
    "L": NOT_POSITIVE,
    "mu": [*NOT_POSITIVE, 2.1],
    "sigma": NEGATIVE,
    "Q": NEGATIVE,
    "M": [*NOT_POSITIVE, 0.5],
    "K": [*NOT_POSITIVE, 0.5, 1025],
    "T": [*NOT_POSITIVE, 0.5],
    "D0": NOT_POSITIVE,
    "Psi0": NEGATIVE,
    "Phi0": NEGATIVE,
}


both_formulas = pytest.mark.parametrize("formula", ["step_size", "bound"])


@pytest.mark.parametrize("letter", BAD)
def test_impossible_letters_are_refused_by_name(letter: str) -> None:
    for name, letters in THEOREMS.items():
        for formula in ("step_size", "bound"):
            for value in BAD[letter] if letter in letters else []:
                with pytest.raises(InputError, match=rf"^{letter} |needs {letter} "):
                    getattr(theorem(name), formula)(**letters | {letter: value})


@both_formulas
@pytest.mark.parametrize("name", LEAST_STEPS)
def test_too_few_steps_for_a_theorem(formula, name: str) -> None:
    least = LEAST_STEPS[name]
    evaluate, letters = getattr(theorem(name), formula), THEOREMS[name] | {"K": 1}
    evaluate(**letters | {"T": least})
    with pytest.raises(
        InputError, match=rf"needs T \(steps\) of at least {least}, got {least - 1}"
    ):
        evaluate(**letters | {"T": least - 1})


@every_theorem
def test_letters_that_are_missing_or_unknown_are_named(name: str) -> None:
    few = {letter: value for letter, value in THEOREMS[name].items() if letter not in ("L", "T")}
    with pytest.raises(InputError, match=rf"theorem {name} needs the letters .*; missing: L, T$"):
        step_size(name, **few)
    with pytest.raises(InputError, match=r"; unknown: gamma$"):
        step_size(name, **THEOREMS[name], gamma=1.0)


@every_theorem
def test_letters_that_a_theorem_does_not_need_are_ignored(name: str) -> None:
    more = {"mu": 0.25, "Q": 1.0, "D0": 2.0, "Psi0": 3.0, "Phi0": 4.0} | THEOREMS[name]
    assert theorem(name).bound(**more) == theorem(name).bound(**THEOREMS[name])


def test_an_unknown_theorem_is_refused_with_the_nearest_label() -> None:
    with pytest.raises(InputError, match=r"unknown theorem 'fedaci:ful'.* mean 'fedaci:full'\?"):
        theorem("fedaci:ful")


@pytest.mark.parametrize("name", ["fedacii:a1:full", "fedacii:a2:full"])
def test_fedac_ii_has_no_coupling_where_mu_is_L_and_eta_is_one_over_L(name: str) -> None:
    # gamma mu = 1 gives alpha = 1, and beta divides by alpha - 1.
    letters = THEOREMS[name] | {"mu": 2.0, "sigma": 0.0}
    with pytest.raises(InputError, match=r"alpha > 1"):
        step_size(name, **letters)


# --- extreme constants ----------------------------------------------------------------------


@every_theorem
def test_extreme_constants(name: str) -> None:
    sizes = [(1, 1e-12, 1e-6), (10**6, 1e6, 1e6)]
    for sigma, K, kappa, size in product((1e-12, 1e6), (1, 31623, 10**9), (1e4, 1e12), sizes):
        M, Q, scale = size
        letters = {"L": 1e3, "mu": 1e3 / kappa, "sigma": sigma, "Q": Q, "M": M, "K": K}
        letters |= {"T": 10**9, "D0": scale, "Psi0": scale**2, "Phi0": scale**2}
        chosen = step_size(name, **letters)
        for value in (asdict(chosen.hp) | asdict(hyperparameters.as_fedac(chosen.hp))).values():
            assert 0 < value < math.inf
        assert chosen.eta <= 1e-3
        assert 0 <= chosen.lam < math.inf


@both_formulas
def test_numpy_integers_are_numbers(formula) -> None:
    for name, letters in THEOREMS.items():
        plain = letters | {"M": 4, "K": 2**10, "T": 2**20}
        counts = {letter: np.int64(plain[letter]) for letter in ("M", "K", "T")}
        evaluate = getattr(theorem(name), formula)
        assert evaluate(**plain | counts) == evaluate(**plain), name
