"""What a theorem is: a frozen record with its conditions and its three formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from fedac.algorithms.couplings import Hyperparameters
from fedac.errors import InputError
from fedac.theory.letters import evaluate
from fedac.theory.terms import Bound, Rate

R = TypeVar("R")

LETTERS = ("L", "mu", "sigma", "Q", "M", "K", "T", "D0", "Psi0", "Phi0")


@dataclass(frozen=True, slots=True)
class StepSize:
    """The hyperparameters that a theorem prescribes.

    Attributes
    ----------
    hp : Hyperparameters
        The algorithm's own record.
    lam : float
        The algorithm must run on F + lam/2 ||w - w_0||^2 (eq:aug); 0 means on F itself.
    """

    hp: Hyperparameters
    lam: float = 0.0

    @property
    def eta(self) -> float:
        """The step size."""
        return self.hp.eta


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem:
    """One convergence theorem: what it needs, and its rate, step size and bound.

    Its methods take the paper's letters as keywords: L and mu of the objective, sigma and Q of
    assumptions asm1 and asm2, M workers, K local steps per round, T steps in total, and the start
    (Psi0, Phi0, or D0 = ||w_0 - w*||). They ignore letters that the theorem does not need.

    Parameters
    ----------
    label : str
        The label in the paper's TeX source; for the minibatch baselines, a label of ours.
    name : str
        The name in the JSON output of ``fedac plan``.
    algorithm : str
        The name of the algorithm that the theorem is about.
    rate_formula, step_size_formula, bound_formula : callable
        The formulas; the last two get the rate as their first argument.
    strongly_convex : bool
        For strongly convex objectives; otherwise for general convex ones, where mu is not needed.
    assumption : 1 or 2
        Under asm1, or under asm2, which adds the letter Q.
    start : str
        The letter that describes the start.
    short_version : str
        The label of the simplified statement in the main text, if there is one.
    least_steps : int
        The theorem holds from this T on.
    paper_constants : bool
        Whether the bound's constants are the paper's; if not, they are unknown and set to 1.

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
    """

    label: str
    name: str
    algorithm: str
    rate_formula: Callable[..., Rate]
    step_size_formula: Callable[..., StepSize]
    bound_formula: Callable[..., Bound]
    strongly_convex: bool = True
    assumption: Literal[1, 2] = 1
    start: str = "D0"
    short_version: str = ""
    least_steps: int = 1
    paper_constants: bool = True

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters that the theorem needs."""
        needed = {"mu": self.strongly_convex, "Q": self.assumption == 2}
        needed |= {start: start == self.start for start in ("D0", "Psi0", "Phi0")}
        return tuple(letter for letter in LETTERS if needed.get(letter, True))

    def rate(self, **letters: float) -> Rate:
        """Return the terms without constants and logarithms."""
        return evaluate(self.rate_formula, self._needed(letters))

    def step_size(self, **letters: float) -> StepSize:
        """Return the hyperparameters for which the bound holds."""
        return self._evaluate(self.step_size_formula, letters)

    def bound(self, **letters: float) -> Bound:
        """Return the bound, term by term. It is a worst case; most runs are far below it."""
        return self._evaluate(self.bound_formula, letters)

    def _evaluate(self, formula: Callable[..., R], letters: Mapping[str, float]) -> R:
        def with_rate(*, T: float, **others: float) -> R:
            if self.least_steps > T:
                raise InputError(
                    f"theorem {self.label} needs T (steps) of at least {self.least_steps}, "
                    f"got {T:g}"
                )
            return formula(self.rate_formula(T=T, **others), T=T, **others)

        return evaluate(with_rate, self._needed(letters))

    def _needed(self, letters: Mapping[str, float]) -> dict[str, float]:
        unknown = [letter for letter in letters if letter not in LETTERS]
        missing = [letter for letter in self.letters if letter not in letters]
        for what, wrong in (("unknown", unknown), ("missing", missing)):
            if wrong:
                needed = f"theorem {self.label} needs the letters {', '.join(self.letters)}"
                raise InputError(f"{needed}; {what}: {', '.join(wrong)}")
        return {letter: letters[letter] for letter in self.letters}
