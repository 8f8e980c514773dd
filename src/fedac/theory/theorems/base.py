# SPDX-License-Identifier: Apache-2.0
"""A theorem as a frozen record of its conditions and formulas, and the step size that suits it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log, sqrt
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeVar

from fedac.algorithms import get
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError
from fedac.theory.bounds import Bound, Rate, valid
from fedac.validate import require_positive

R = TypeVar("R")

LETTERS = ("L", "mu", "sigma", "sigma4", "Q", "M", "K", "T", "D0", "Psi0", "Phi0")
# Step sizes are found to 5%. A bound is flat around its minimum, so it is then much closer.
PRECISION = 0.05
GOLDEN = (sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class StepSize:
    """The hyperparameters that a theorem prescribes.

    Attributes
    ----------
    hp : Hyperparameters
        The hyperparameters of the algorithm.
    lam : float
        The algorithm must run on F + lam/2 ||w - w_0||^2 (eq:aug); 0 means on F itself.
    """

    hp: Hyperparameters
    lam: float = 0.0

    @property
    def eta(self) -> float:
        """The step size."""
        return self.hp.eta


class Best(NamedTuple):
    """The least bound over all step sizes, with its step size and lam."""

    eta: float
    lam: float
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem:
    """One convergence theorem: its conditions, rate, step size and bound.

    Its methods take the paper's letters as keywords: L and mu of the objective, sigma and Q of
    assumptions asm1 and asm2, M workers, K local steps per round, T steps in total, and the start
    (Psi0, Phi0, or D0 = ||w_0 - w*||). Letters that the theorem does not need are ignored. Under
    asm2 the discrepancy needs the fourth moment sigma4 >= sigma. Default: sigma, because the paper
    has one letter for both.

    Parameters
    ----------
    label : str
        The label in the paper's TeX source; for the minibatch baselines, our own.
    name : str
        The name in the JSON output of ``fedac plan``.
    algorithm : str
        The name of the algorithm.
    rate_formula, eta_formula, bound_formula : callable
        The formulas of `rate`, of `step_size`, which gives eta, or (eta, lam) if augmented, and of
        `bound`. The rate is the first argument of the last two.
    at_formula : callable
        The formula of `at`: the bound for any step size eta (and lam, if augmented).
    eta_limit : float
        The largest step size allowed, times L.
    strongly_convex : bool
        Whether it is for strongly convex objectives; if not, for general convex ones, without mu.
    assumption : 1 or 2
        Whether it holds under asm1, or needs asm2 with its Q.
    start : str
        The letter that describes the start.
    short_version : str
        The label of the simplified statement in the main text, if there is one.
    least_steps : int
        `step_size` and `bound` hold from this T on, `best` for every T.
    title : str
        The name in the tables of ``fedac plan``. Default: the label.
    augmented : bool
        Whether the algorithm runs on F + lam/2 ||w - w_0||^2.
    communicates : bool
        False for a single worker, for which M and K do not matter.

    Examples
    --------
    >>> from fedac.theory import theorem
    >>> letters = dict(L=1.0, mu=0.01, sigma=1.0, M=64, K=16, T=2**20, Psi0=1.0)
    >>> full = theorem("fedaci:full")
    >>> f"{full.step_size(**letters).eta:.3g}"
    '2.62e-07'
    >>> bound = full.bound(**letters)
    >>> f"{bound.variance:.2g}", f"{bound.discrepancy:.2g}", bound.dominant
    ('0.00054', '0.00046', 'variance')
    >>> best = full.best(**letters)
    >>> f"{best.eta:.2g}", f"{best.bound.total:.2g}"
    ('2.9e-07', '1.1e-05')
    """

    label: str
    name: str
    algorithm: str
    rate_formula: Callable[..., Rate]
    eta_formula: Callable[..., Any]
    bound_formula: Callable[..., Bound]
    at_formula: Callable[..., Bound]
    eta_limit: float = 1.0
    strongly_convex: bool = True
    assumption: Literal[1, 2] = 1
    start: str = "D0"
    short_version: str = ""
    least_steps: int = 1
    title: str = ""
    augmented: bool = False
    communicates: bool = True

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters that the theorem needs."""
        needed = {"mu": self.strongly_convex, "Q": self.assumption == 2, "sigma4": False}
        needed |= {start: start == self.start for start in ("D0", "Psi0", "Phi0")}
        return tuple(letter for letter in LETTERS if needed.get(letter, True))

    def rate(self, **letters: float) -> Rate:
        """Return the terms without constants and logarithms."""
        with valid(self._needed(letters)) as values:
            return self.rate_formula(**values)

    def step_size(self, **letters: float) -> StepSize:
        """Return the hyperparameters for which `bound` holds."""

        def couple(rate: Rate, **values: float) -> StepSize:
            eta = self.eta_formula(rate, **values)
            return self.coupled(*(eta if self.augmented else (eta, 0.0)), **values)

        return self._with_rate(couple, letters)

    def bound(self, **letters: float) -> Bound:
        """Return the closed form, term by term. It is a worst case; most runs are far below it."""
        return self._with_rate(self.bound_formula, letters)

    def at(self, eta: float, lam: float = 0.0, **letters: float) -> Bound:
        """Return the bound for any step size, and for any lam > 0 if the theorem uses one."""
        given = self._needed(letters) | self._gap(letters) | {"eta": eta}
        if self.augmented:
            given["lam"] = require_positive("lam", lam)
        with valid(given) as values:
            return self.at_formula(**values)

    def best(self, **letters: float) -> Best:
        """Minimize `at` over all step sizes that it allows, and over lam."""
        minimize = self._best_lam if self.augmented else self._best_eta
        with valid(self._needed(letters) | self._gap(letters)) as values:
            return minimize(**values)[1]

    def coupled(self, eta: float, lam: float = 0.0, **letters: float) -> StepSize:
        """Return all hyperparameters of the algorithm at a step size."""
        needed: dict[str, Any] = self._needed(letters)
        mu = needed.get("mu", lam or 1.0)
        return StepSize(get(self.algorithm).couple(eta=eta, mu=mu, K=needed["K"]), lam)

    def _best_lam(self, *, L: float, T: float, D0: float, **letters: float) -> tuple[float, Best]:
        def at_lam(lam: float) -> tuple[float, Best]:
            return self._best_eta(L=L, T=T, D0=D0, lam=lam, **letters)

        # Below the smallest lam, T steps make no progress. The bound is at least lam D0^2/2, so
        # if it is large, lam above L is worth trying, up to this one.
        largest = max(L, min(2 * at_lam(L)[0] / D0**2, sys.float_info.max))
        return golden_section(at_lam, L / (100 * T**2), largest)

    def _best_eta(self, **letters: float) -> tuple[float, Best]:
        lam = letters.get("lam", 0.0)

        def at_eta(eta: float) -> tuple[float, Best]:
            bound = self.at_formula(eta=eta, **letters)
            return bound.total, Best(eta, lam, bound)

        largest = self.eta_limit / (letters["L"] + lam)
        # T steps of this size make no progress.
        smallest = largest / (100 * letters["T"] ** 2)
        # FedAc's gamma has a kink where it changes from sqrt(eta/(mu K)) to eta: the bound may
        # have a minimum on either side.
        kink = largest
        if self.algorithm in ("fedac-i", "fedac-ii"):
            kink = min(max(1 / (letters.get("mu", lam) * letters["K"]), smallest), largest)
        sides = [(low, high) for low, high in ((smallest, kink), (kink, largest)) if low < high]
        return min((golden_section(at_eta, *side) for side in sides), key=itemgetter(0))

    def _with_rate(self, formula: Callable[..., R], letters: Mapping[str, float]) -> R:
        with valid(self._needed(letters)) as values:
            if self.least_steps > values["T"]:
                raise InputError(
                    f"theorem {self.label} needs T (steps) of at least {self.least_steps}, "
                    f"got {values['T']:g}"
                )
            return formula(self.rate_formula(**values), **values)

    def _gap(self, letters: Mapping[str, float]) -> dict[str, float]:
        """Return the letter gap, a bound on F(w_0) - F*, if a potential at the start is known."""
        known = [letters[start] for start in ("Psi0", "Phi0") if start in letters]
        return {"gap": min(known)} if self.augmented and known else {}

    def _needed(self, letters: Mapping[str, float]) -> dict[str, float]:
        unknown = [letter for letter in letters if letter not in LETTERS]
        missing = [letter for letter in self.letters if letter not in letters]
        for what, wrong in (("unknown", unknown), ("missing", missing)):
            if wrong:
                needed = f"theorem {self.label} needs the letters {', '.join(self.letters)}"
                raise InputError(f"{needed}; {what}: {', '.join(wrong)}")
        values = {letter: letters[letter] for letter in self.letters}
        if self.assumption == 2:
            values["sigma4"] = letters.get("sigma4", values["sigma"])
        return values


def golden_section(
    evaluate: Callable[[float], tuple[float, R]], low: float, high: float
) -> tuple[float, R]:
    """Minimize the first element of `evaluate(x)` over [low, high]; return the whole pair.

    It must be unimodal. The search is over log x, and includes the end `high`.

    >>> golden_section(lambda x: (1 / x, x), 1e-6, 8.0)
    (0.125, 8.0)
    """
    a, b = log(low), log(high)
    x, y = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    at_x, at_y, at_end = evaluate(exp(x)), evaluate(exp(y)), evaluate(high)
    while b - a > PRECISION:
        if at_x[0] <= at_y[0]:
            b, y, at_y = y, x, at_x
            x = b - GOLDEN * (b - a)
            at_x = evaluate(exp(x))
        else:
            a, x, at_x = x, y, at_y
            y = a + GOLDEN * (b - a)
            at_y = evaluate(exp(y))
    return min(at_end, at_x, at_y, key=itemgetter(0))
