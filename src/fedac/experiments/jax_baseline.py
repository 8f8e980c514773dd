"""What a user of JAX would write: workers in a batch, local steps in a compiled scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedac.algorithms import FEDAC_I
from fedac.federation.sampling import sample_index
from fedac.objectives import LogisticRegression


def make_round(
    objective: LogisticRegression, *, workers: int, local_steps: int, eta: float
) -> Callable[[], Any]:
    """Return a function that simulates one round of FedAc-I with jax.jit and jax.lax.scan."""
    import jax
    import jax.numpy as jnp

    X = jnp.asarray(np.asarray((objective.X @ np.eye(objective.dim)), dtype=np.float32))
    y = jnp.asarray(objective.y, dtype=jnp.float32)
    hp = FEDAC_I.couple(eta=eta, mu=objective.l2, K=local_steps)
    steps = np.arange(local_steps)[:, None]
    rows = jnp.asarray(sample_index(1, np.arange(workers), steps, objective.n_samples))

    def step(state: Any, rows: Any) -> tuple[Any, None]:
        w_md = FEDAC_I.query(state, hp)
        x, labels = X[rows], y[rows]
        slopes = -labels * jax.nn.sigmoid(-labels * (x * w_md).sum(axis=1))
        g = slopes[:, None] * x + objective.l2 * w_md
        return FEDAC_I.update(state, w_md, g, hp), None

    def one_round(w: Any, rows: Any) -> Any:
        start = jnp.broadcast_to(w, (workers, objective.dim))
        state, _ = jax.lax.scan(step, FEDAC_I.start(start), rows)
        return [sequence.mean(axis=0) for sequence in state]

    w_0 = jnp.ones(objective.dim, dtype=jnp.float32)
    compiled = jax.jit(one_round)
    return lambda: jax.block_until_ready(compiled(w_0, rows))
