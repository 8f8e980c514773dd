# SPDX-License-Identifier: Apache-2.0
"""AdamW as a local rule (arXiv 1711.05101): DiLoCo's inner optimizer.

A client keeps its moments between its rounds, as DiLoCo does, and sends only w. The step is not
linear in the gradient, so it runs in the reference and network engines. In PyTorch and Flower, use
`torch.optim.AdamW` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.algorithm import Algorithm, ClientWork, State, Vector, override
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.local.fedavg import FEDAVG
from fedac.validate import require_fraction, require_nonnegative, require_positive


@dataclass(frozen=True)
class _AdamW:
    b1: float
    b2: float
    eps: float
    wd: float

    def enter(self, sequences: State, memory: State, hp: Any) -> State:
        (w,) = sequences
        return (w, *memory)

    def update(self, local: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
        w, m, v, steps = local
        steps = steps + 1
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * g**2
        m_hat, v_hat = m / (1 - self.b1**steps), v / (1 - self.b2**steps)
        w = (1 - hp.eta * self.wd) * w - hp.eta * m_hat / (v_hat**0.5 + self.eps)
        return w, m, v, steps

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        w, *kept = local
        return (w,), tuple(kept)


def make_adamw(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, wd: float = 0.01
) -> Algorithm:
    """Return AdamW with momenta b1 and b2 and weight decay wd.

    The first step of any gradient is eta times its sign, but for eps and the decay:

    >>> adamw = make_adamw(wd=0.0)
    >>> hp = adamw.couple(eta=0.5, mu=1.0, K=1)
    >>> local = adamw.enter((3.0,), (0.0, 0.0, 0.0), hp)
    >>> round(adamw.update(local, 3.0, 2.0, hp)[0], 6)
    2.5
    """
    rule = _AdamW(
        require_fraction("b1", b1), require_fraction("b2", b2), require_positive("eps", eps),
        require_nonnegative("wd", wd),
    )  # fmt: skip
    kept = ("m", "v", "steps")
    return override(FEDAVG, rule, name="adamw", label="AdamW", local=("w", *kept), memory=kept)
