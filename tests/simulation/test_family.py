# SPDX-License-Identifier: Apache-2.0
"""Compositions in both engines: equal to each other, to their identities, and to theory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import fedac
from fedac import simulate
from fedac.algorithms import Algorithm, get
from fedac.errors import InputError
from fedac.objectives import LeastSquares, LogisticRegression, optimum
from fedac.simulation import Result, Schedule
from fedac.simulation.engines.linear import client_rounds

# Of every kind: what travels, what is kept, what the server does.
COMPOSITIONS = (
    "fedavg+step(1.5)",
    "fedavgm",
    "slowmo",
    "diloco",
    "outer-nesterov",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fedprox(0.3)",
    "scaffold",
    "scaffnew",
    "momentum(0.8)",
    "gpa(0.8,0.6)",
    "fedac-i+local",
    "fedac-ii+local+slowmo(1,0.4)",
    "fedac-vanilla+nesterov(1,0.3)",
    "fedac-i+accelerated",
    "fedac-i+cv",
    "fedac-ii+cv+nesterov(1,0.3)",
    "fedac-i+local+cv+momentum(1,0.5)",
    "scaffold+nesterov(1,0.9)",
    "prox(0.3)+cv+adam",
    "momentum(0.8)+local+yogi",
    "momentum(0.8)+cv+adagrad",
    "gpa(0.8,0.6)+local+cv+step(1.2)",
    "feddyn(0.3)",
    "prox(0.3)+feddyn(0.2)",
    "fedcm(0.4)",
    "fedcm(0.4)+nesterov(1,0.3)",
    "scaffold-m(0.4)",
    "fedcm(0.4)+cv+exp",
    "fednova",
    "fednova+cv+exp",
    "fedexp",
    "fedac-i+exp(1e-6)",
    "fedac-ii+local+cv+exp(1e-6)",
    "mimelite(0.8)",
    "mimelite(0.8)+cv+nesterov(1,0.5)",
)
MINIBATCH = ("mb-sgd", "mb-ac-sgd")
both_engines = pytest.mark.parametrize("engine", ["reference", "fast"])


def rows(n: int = 60, d: int = 5, seed: int = 0) -> tuple[sp.csr_array, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.7)
    return sp.csr_array(X), np.where(rng.random(n) < 0.4, -1.0, 1.0)


X, y = rows()
LOGISTIC = LogisticRegression(X, y, l2=0.05)
DENSE = LogisticRegression(X.toarray(), y, l2=0.05)
SOFTMAX = fedac.SoftmaxRegression(X.toarray(), np.arange(60) % 3, l2=0.05)
OWNERS = np.random.default_rng(1).integers(0, 10, 60)  # clients of different sizes


def run(F, method, engine: str = "reference", **options) -> Result:
    # Two step sizes in every call: other numbers of lanes would have to be compiled.
    usual = {"clients": OWNERS, "K": 4, "T": 24, "eta": [0.3, 0.1], "mu": 0.05}
    return simulate(F, method, engine=engine, precision="float64", **(usual | options))


def assert_equal(one: Result, other: Result, tolerance: float) -> None:
    for mine, theirs in zip(one.runs, other.runs, strict=True):
        assert list(mine.state) == list(theirs.state)
        for name, vector in mine.state.items():
            size = max(1.0, np.abs(vector).max())
            np.testing.assert_allclose(theirs.state[name], vector, rtol=0, atol=tolerance * size)
        np.testing.assert_allclose(theirs.w, mine.w, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("F", "batch", "names"),
    [
        (LOGISTIC, 1, COMPOSITIONS[::6]),
        pytest.param(LOGISTIC, 1, COMPOSITIONS, marks=pytest.mark.slow),
        pytest.param(DENSE, 1, COMPOSITIONS, marks=pytest.mark.slow),
        *(
            pytest.param(F, batch, COMPOSITIONS[::3], marks=pytest.mark.slow)
            for F in (LOGISTIC, DENSE)
            for batch in (3, "full")
        ),
    ],
)
def test_engines_agree(F: LogisticRegression, batch: int | str, names: tuple[str, ...]) -> None:
    options = {"participation": 0.3, "batch": batch, "K": Schedule.at([5, 6, 13, 20]), "T": None}
    for name in names:
        options["participation"] = 1.0 if get(name).everybody else 0.3
        one, other = (run(F, name, engine, **options) for engine in ("reference", "fast"))
        assert_equal(one, other, 1e-9)


OWN_STEPS = {
    "own K": {"K": [1, 2, 3, 4, 5, 6, 7, 8, 9, 20]},
    "an epoch": {"K": None, "epochs": 1},
    "three epochs": {"K": None, "epochs": 3},
}


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize(
    ("F", "batch"),
    [
        (LOGISTIC, 4),
        *(
            pytest.param(F, batch, marks=pytest.mark.slow)
            for F, batch in [(LOGISTIC, 1), (DENSE, 4), (DENSE, "full"), (SOFTMAX, 4)]
        ),
    ],
)
@pytest.mark.parametrize("steps", OWN_STEPS.values(), ids=OWN_STEPS)
def test_engines_agree_where_clients_take_different_steps(steps, F, batch, weighting) -> None:
    names = [*COMPOSITIONS[-18:], "fedavg", "fedac-i+cv", *MINIBATCH]
    options = {"T": None, "rounds": 4, "batch": batch, "weighting": weighting, **steps}
    for some, participation in ((names, 0.3), (["scaffnew"], 1.0)):
        options["participation"] = participation
        one, other = (run(F, some, engine, **options) for engine in ("reference", "fast"))
        assert_equal(one, other, 1e-9)


@pytest.mark.parametrize("wire", ["int8", "bfloat16"])
def test_engines_agree_on_rounded_messages_of_different_steps(wire) -> None:
    # The sequences D of FedCM is not sent, so c is the second vector of a message.
    names = ["fedcm(0.4)+cv+exp", "feddyn(0.3)", "fednova", "fedac-i+cv+exp(1e-6)"]
    options = {"wire": wire, "participation": 0.5, "batch": 2, "T": None, "rounds": 3}
    for steps in OWN_STEPS.values():
        one, other = (run(LOGISTIC, names, e, **options, **steps) for e in ("reference", "fast"))
        assert_equal(one, other, 1e-9)


def test_epochs_of_equal_clients_in_every_kind_of_data() -> None:
    wide = sp.random_array((60, 3000), density=0.004, rng=np.random.default_rng(0), format="csr")
    for F in (LOGISTIC, DENSE, SOFTMAX, LogisticRegression(wide, y, l2=0.05)):
        for batch in (1, 4, "full"):
            options = {"clients": np.arange(60) % 6, "K": None, "T": None, "epochs": 2}
            options |= {"rounds": 3, "batch": batch, "participation": 0.5}
            names = ["fedavg", "fedac-i", "scaffold", "mb-sgd"]
            one, other = (run(F, names, e, **options) for e in ("reference", "fast"))
            assert_equal(one, other, 1e-9)


@pytest.mark.slow
@settings(max_examples=40, derandomize=True)
@given(
    name=st.sampled_from(COMPOSITIONS),
    participation=st.sampled_from([0.3, 0.5, 1.0]),
    batch=st.sampled_from([1, 2, "full"]),
    gaps=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    etas=st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=2),
    weighting=st.sampled_from(["examples", "uniform"]),
    decay=st.sampled_from([None, "1/sqrt(r)"]),
    seed=st.integers(0, 2**32),
)
def test_engines_agree_on_anything(
    name, participation, batch, gaps, etas, weighting, decay, seed
) -> None:
    participation = 1.0 if get(name).everybody else participation
    values = [fedac.Decay(eta, decay) for eta in etas] if decay else etas
    options = {
        "participation": participation, "batch": batch, "weighting": weighting, "seed": seed,
        "K": Schedule(tuple(gaps)), "T": None, "eta": values,
    }  # fmt: skip
    one, other = (run(LOGISTIC, name, engine, **options) for engine in ("reference", "fast"))
    assert_equal(one, other, 1e-9)


@both_engines
@pytest.mark.parametrize(
    ("method", "twin"),
    [
        ("fedavg+momentum(1,0)", "fedavg"),
        ("fedavg+nesterov(1,0)", "fedavg"),
        ("fedavg+step(1)", "fedavg"),
        ("slowmo(1,0)", "fedavg"),
        ("prox(0)", "fedavg"),
        ("momentum(0)", "fedavg"),
        ("fedac-i+nesterov(1,0)", "fedac-i"),
        ("slowmo(0.8,0.6)", "fedavgm(0.8,0.6)"),  # with a constant step size
        ("fednova", "fedavg"),
        ("fedavg+exp(1e300)", "fedavg"),  # the step is 1
        ("fedac-i+exp(1e300)", "fedac-i"),
        ("fedcm(1)", "fedavg"),
        ("fedcm(1)+cv", "scaffold"),
        ("mimelite(0)", "fedavg"),
        ("led", "scaffnew"),
        (fedac.fedac(gamma=0.3, alpha=1.0, beta=1.0), "fedavg"),
        # GPA is FedAc with 1/alpha = 0, beta = 1/(1 - m) and a smaller eta.
        ("gpa(0.75,0.75)", fedac.fedac(gamma=0.3, alpha=1e300, beta=4.0)),
    ],
    ids=lambda method: getattr(method, "name", method),
)
@pytest.mark.parametrize("K", [1, 4])
def test_identities(method: str | Algorithm, twin: str | Algorithm, K: int, engine: str) -> None:
    of_gpa = isinstance(twin, Algorithm)
    options = {"K": K, "participation": 1.0 if twin == "scaffnew" else 0.5}
    one = run(LOGISTIC, method, engine, eta=[0.3, 0.3], **options)
    other = run(LOGISTIC, twin, engine, eta=[0.3 / 4 if of_gpa else 0.3] * 2, **options)
    np.testing.assert_allclose(one.best.w, other.best.w, rtol=0, atol=1e-12)


@both_engines
def test_slowmo_is_not_fedavgm_where_the_step_size_falls(engine: str) -> None:
    falls = fedac.Decay(0.3, "1/r")
    one, other = (
        run(LOGISTIC, f"{name}(0.8,0.6)", engine, eta=falls) for name in ("slowmo", "fedavgm")
    )
    assert np.abs(one.best.w - other.best.w).max() > 1e-3


@both_engines
@pytest.mark.parametrize("rule", ["fedavg", "fedac-i", "momentum(0.9)"])
def test_control_variates_change_nothing_where_clients_are_alike(rule: str, engine: str) -> None:
    same = sp.vstack([X, X, X]).tocsr()
    F = LogisticRegression(same, np.tile(y, 3), l2=0.05)
    options = {"clients": np.repeat([0, 1, 2], 60), "batch": "full"}
    one, other = (run(F, name, engine, **options) for name in (rule, rule + "+cv"))
    np.testing.assert_allclose(one.best.w, other.best.w, rtol=0, atol=1e-12)


@both_engines
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "scaffnew"])
def test_one_step_is_gradient_descent(name: str, engine: str) -> None:
    w = np.ones(5)
    for _ in range(12):
        w = w - 0.3 * LOGISTIC.gradient(w)
    found = run(LOGISTIC, name, engine, K=1, T=12, batch="full", start=np.ones(5)).runs[0].w
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)


@both_engines
@pytest.mark.parametrize(("gamma", "beta"), [(1.0, 0.9), (0.7, 0.5)])
def test_one_step_with_nesterov_is_that_of_pytorch(gamma: float, beta: float, engine: str) -> None:
    torch = pytest.importorskip("torch")
    w = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
    # x - gamma (beta u + delta) with delta = eta g: the step sizes multiply.
    optimizer = torch.optim.SGD([w], lr=0.3 * gamma, momentum=beta, nesterov=True)
    rows_of, labels = torch.tensor(X.toarray()), torch.tensor(y)
    for _ in range(12):
        optimizer.zero_grad()
        losses = torch.nn.functional.softplus(-labels * (rows_of @ w))
        (losses.mean() + 0.05 / 2 * (w**2).sum()).backward()
        optimizer.step()
    found = run(
        LOGISTIC, f"fedavg+nesterov({gamma},{beta})", engine, K=1, T=12, batch="full",
        start=np.ones(5),
    ).runs[0].w  # fmt: skip
    np.testing.assert_allclose(found, w.detach().numpy(), rtol=0, atol=1e-12)


@both_engines
def test_scaffnew_is_scaffold_where_everybody_takes_part(engine: str) -> None:
    one, other = (run(LOGISTIC, name, engine) for name in ("scaffold", "scaffnew"))
    np.testing.assert_allclose(one.best.w, other.best.w, rtol=0, atol=1e-12)
    assert one.best.megabytes_per_worker == 2 * other.best.megabytes_per_worker


@pytest.mark.slow
@both_engines
@pytest.mark.parametrize(
    "F",
    [
        LeastSquares(sp.csr_array(np.diag([1.0, 2.0, 0.5, 1.5])), [1.0, -2.0, 3.0, 0.5], l2=0.1),
        LOGISTIC,
    ],
    ids=["quadratics", "logistic regression"],
)
def test_control_variates_find_the_optimum_and_fedavg_does_not(F, engine: str) -> None:
    best = optimum(F)
    n = F.n_samples
    result = run(
        F, ["fedavg", "scaffold", "scaffnew"], engine, clients=np.arange(n) % 4, batch="full", K=5,
        T=7000, eta=[0.2, 0.1], mu=F.strong_convexity,
    )  # fmt: skip
    distances = [float(np.linalg.norm(one.w - best.w)) for one in result.runs]
    assert max(distances[2:]) < 1e-12
    assert min(distances[:2]) > 1e-3  # the fixed point of FedAvg is elsewhere


def quadratics(n: int = 6, d: int = 4) -> LeastSquares:
    """Return least squares with rows of different curvature, a client each."""
    rng = np.random.default_rng(2)
    return LeastSquares(rng.standard_normal((n, d)), rng.standard_normal(n), l2=0.3)


@both_engines
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_methods_of_heterogeneous_clients_find_the_pooled_optimum(
    participation, weighting, engine
) -> None:
    F, owners = quadratics(12), np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
    names = ["fedavg", "feddyn(0.5)", "scaffold-m(0.5)", "prox(0.2)+feddyn(0.5)"]
    options = {
        "clients": owners, "batch": "full", "K": 5, "T": 5 * 3000, "eta": [0.1, 0.05],
        "participation": participation, "weighting": weighting,
    }  # fmt: skip
    result = run(F, names, engine, **options)
    weights = np.ones(12) if weighting == "examples" else 3 / np.bincount(owners)[owners]
    best = optimum(LeastSquares(F.X * np.sqrt(weights)[:, None], F.y * np.sqrt(weights), l2=0.3)).w
    distances = [float(np.linalg.norm(one.w - best)) for one in result.runs]
    assert max(distances[2:]) < 1e-10
    assert min(distances[:2]) > 1e-2  # the fixed point of FedAvg is elsewhere


@pytest.mark.parametrize("engine", [pytest.param("reference", marks=pytest.mark.slow), "fast"])
def test_steps_that_differ_bias_fedavg_and_not_fednova(engine) -> None:
    F = quadratics()
    best, etas = optimum(F).w, [0.08, 0.02, 0.005]
    names = ["fedavg", "fednova", "scaffold", "fednova+cv", "scaffnew", "feddyn(0.5)"]
    result = run(F, names, engine, clients=np.arange(6), batch="full", K=[1, 2, 3, 5, 8, 13],
                 T=None, rounds=6000, eta=etas)  # fmt: skip
    distance = np.reshape([np.linalg.norm(one.w - best) for one in result.runs], (6, 3))
    fedavg, fednova, *exact = distance
    # The bias of FedAvg stays as eta goes to 0; that of FedNova is drift, in proportion to eta.
    assert fedavg[2] > 0.8 * fedavg[0] > 0.1
    np.testing.assert_allclose(fednova[:2] / fednova[1:], 4, rtol=0.25)
    assert np.max(exact) < 1e-8


def test_dual_averaging_finds_the_sparse_optimum() -> None:
    # One step a round is dual averaging on the pooled loss; compare with proximal gradient steps.
    F, l1, w = LogisticRegression(X, y, l2=0.05), 0.02, np.zeros(5)
    for _ in range(4000):
        w = w - 0.3 * F.gradient(w)
        w = np.sign(w) * np.maximum(np.abs(w) - 0.3 * l1, 0)
    assert 0 < (w == 0).sum() < 5
    found = run(F, f"dualavg({l1})", K=1, T=4000, batch="full").runs[0].w
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-10)
    assert ((found == 0) == (w == 0)).all()


@both_engines
def test_an_average_over_steps_needs_equal_steps(engine) -> None:
    # Where all iterates are 1 the average is 1, but not divided by another number of steps.
    F = LeastSquares(np.ones((6, 1)), np.ones(6))
    options = {"clients": [0, 0, 1, 1, 2, 2], "batch": "full", "T": None, "rounds": 3}
    for steps in ({"K": [1, 2, 6]}, {"K": None, "epochs": 1, "batch": 1}):
        many = options | steps | {"start": [1.0]}
        if "epochs" in steps:  # clients of two rows each take two steps
            assert run(F, "fedavg-weighted", engine, **many).runs[0].w == pytest.approx(1.0)
            many["clients"] = [0, 1, 1, 2, 2, 2]
        with pytest.raises(InputError, match="'fedavg-weighted' counts local steps, so all client"):
            run(F, "fedavg-weighted", engine, **many)


def test_scaffnew_needs_everybody() -> None:
    with pytest.raises(InputError, match="'scaffnew' needs all clients in every round"):
        run(LOGISTIC, "scaffnew", participation=0.5)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    names = ["scaffold", "fedac-i+local+nesterov(1,0.3)", "fedadam"]
    options = {"clients": None, "M": 200, "K": 16, "T": 64, "eta": [0.1, 0.3]}
    one, three = (run(LOGISTIC, names, "fast", threads=threads, **options) for threads in (1, 3))
    assert all((a.w == b.w).all() for a, b in zip(one.runs, three.runs, strict=True))


@pytest.mark.filterwarnings("ignore::fedac.errors.StepSizeWarning")
def test_diverged_runs_disturb_no_other() -> None:
    # Twelve lanes are two chunks; those with large steps leave both, and take their memory along.
    good = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3]
    together = run(LOGISTIC, "scaffold", "fast", eta=[x for eta in good for x in (eta, 1e4)], T=40)
    alone = run(LOGISTIC, "scaffold", eta=good, T=40)
    assert [one.status for one in together.runs] == ["ok", "diverged"] * 6
    for mine, theirs in zip(together.runs[::2], alone.runs, strict=True):
        np.testing.assert_allclose(mine.w, theirs.w, rtol=0, atol=1e-12)


def test_server_numbers_are_lanes_of_one_pass() -> None:
    together = run(LOGISTIC, "fedavg+nesterov(0.7|1, 0.3|0.9)", "fast")
    names = list(dict.fromkeys(one.algorithm for one in together.runs))
    assert names == [f"fedavg+nesterov({g},{b})" for g in ("0.7", "1") for b in ("0.3", "0.9")]
    alone = [one for name in names for one in run(LOGISTIC, name, "fast").runs]
    for mine, theirs in zip(together.runs, alone, strict=True):
        np.testing.assert_allclose(mine.w, theirs.w, rtol=1e-12)


def test_memory_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_rounds, "free_bytes", lambda: 10**7)
    expected = r"takes 168 MB \(1,048,576 clients x 10 numbers x 2 runs\), but only 10 MB are free"
    with pytest.raises(InputError, match=expected):
        run(LOGISTIC, "scaffnew", "fast", clients=None, M=2**20)
    run(LOGISTIC, "fedprox(0.1)", "fast", clients=None, M=2**20, K=1, T=1, participation=1e-5)


def test_a_record_of_your_own_with_memory_runs_on_the_fast_engine() -> None:
    mine = replace(get("scaffold"), name="mine", label="mine")
    assert_equal(run(LOGISTIC, mine), run(LOGISTIC, "scaffold", "fast"), 1e-9)


def test_a_boundary_that_is_not_linear_needs_the_reference_engine() -> None:
    mine = replace(get("scaffold"), name="mine", enter=lambda s, m, hp: (s[0] ** 2, s[1], m[0]))
    with pytest.raises(InputError, match="does not enter and leave a round linearly"):
        run(LOGISTIC, mine, "fast")
