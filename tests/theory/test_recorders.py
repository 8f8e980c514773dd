import numpy as np
import pytest

from fedac import LogisticRegression, NoisyQuadratic, fedac, simulate
from fedac.theory.tracing import NoiseRecorder, PotentialRecorder


def test_noise_at_every_record() -> None:
    X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    objective = LogisticRegression(X, [1.0, -1.0, 1.0], l2=0.1)
    noise = NoiseRecorder(objective)
    outputs: list[np.ndarray] = []
    simulate(
        objective, "fedavg", M=4, K=2, T=8, eta=0.1,
        callbacks=[noise, lambda record: outputs.append(record.w)],
    )  # fmt: skip
    assert noise.noise[0] == [objective.noise(w) for w in outputs]
    assert min(noise.noise[0]) < max(noise.noise[0])


def test_potentials_by_hand() -> None:
    # F = (w - 1)^2 from w = 3, mu = 2. Psi = 4 + 2/2 * 4 and Phi = 4 + 2/6 * 4.
    # One step: w_md = 3, g = 4, w_ag = 3 - 4/2 = 1, w = 3 - 4/4 = 2.
    # Psi = 0 + 2/2 * 1, Phi = 0 + 2/6 * 1.
    algorithm = fedac(gamma=1 / 4, alpha=2.0, beta=4.0)
    objective = NoisyQuadratic([2.0], optimum=[1.0])
    of_objective = PotentialRecorder(objective)
    of_user = PotentialRecorder(objective, mu=1.0)
    simulate(
        objective, algorithm, M=4, K=1, T=1, eta=0.5, start=[3.0], engine="reference",
        callbacks=[of_objective, of_user],
    )  # fmt: skip
    assert of_objective.psi[0] == pytest.approx([8.0, 1.0], rel=1e-12)
    assert of_objective.phi[0] == pytest.approx([16 / 3, 1 / 3], rel=1e-12)
    # With mu = 1 of the user's own: 4 + 1/2 * 4, 4 + 1/6 * 4, 1/2 and 1/6.
    assert of_user.psi[0] == pytest.approx([6.0, 0.5], rel=1e-12)
    assert of_user.phi[0] == pytest.approx([14 / 3, 1 / 6], rel=1e-12)


def test_only_algorithms_with_w_ag_have_potentials() -> None:
    objective = NoisyQuadratic([2.0, 1.0])
    potentials = PotentialRecorder(objective)
    names = ["fedavg", "fedac-i", "fedavg-weighted", "mb-sgd"]
    result = simulate(
        objective, names, M=2, K=2, T=4, eta=0.25, engine="reference", callbacks=[potentials]
    )
    assert set(potentials.psi) == set(potentials.phi) == {1}
    assert len(potentials.psi[1]) == len(result.runs[1].steps)
