# SPDX-License-Identifier: Apache-2.0
"""The public call: what it refuses, what it warns about, what it reports while it runs."""

import math
import warnings

import numpy as np
import pytest

from fedac.algorithms import ALGORITHMS, fedac
from fedac.errors import InputError, NotAcceleratedWarning, SlowEngineWarning, StepSizeWarning
from fedac.federation.schedule import Decay
from fedac.objectives import LeastSquares, LogisticRegression, NoisyQuadratic
from fedac.simulation import Record, Schedule, SimulationInterrupted, simulate

F = NoisyQuadratic([1.0, 0.25], sigma=0.1)  # L = 1, mu = 1/4
GOOD = {"objective": F, "algorithm": "fedac-i", "M": 4, "K": 2, "T": 8, "eta": 0.5}


def run(**changes):
    return simulate(**(GOOD | changes))


@pytest.mark.parametrize("eta", [0, math.nan, math.inf, [0.1, -0.1]])
def test_eta_must_be_positive_and_finite(eta) -> None:
    with pytest.raises(InputError, match="eta must be a finite number above 0, got"):
        run(eta=eta)


@pytest.mark.parametrize("eta", [[], (), np.array([])])
def test_there_must_be_a_step_size(eta) -> None:
    with pytest.raises(InputError, match="at least one algorithm and at least one step size"):
        run(eta=eta)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"K": [2, 2]}, "K has 2 numbers of steps for 4 clients: give one for each"),
        ({"K": []}, "K has 0 numbers of steps for 4 clients"),
        ({"K": np.ones((4, 1), int)}, "K has 4 numbers of steps for 4 clients"),
        ({"K": [0, 2, 2, 2]}, r"K \(local steps\) must be a whole number, at least 1, got 0"),
        ({"K": [1.5, 2, 2, 2]}, r"K \(local steps\) must be a whole number, at least 1, got 1[.]5"),
        ({"K": ["a", 2, 2, 2]}, r"K \(local steps\) must be a whole number, at least 1, got 'a'"),
        ({"K": [10**30, 2, 2, 2]}, r"K \(local steps\) must be below 2\^63, got 1000000"),
        ({"K": [2, 2, 2, 2], "rounds": None, "T": 8}, "K of every client needs rounds"),
        ({"K": [2, 2, 2, 3], "algorithm": "fedavg-weighted"}, "clients must take the same number"),
        ({"K": None, "epochs": 0}, "epochs must be a whole number, at least 1, got 0"),
        ({"K": None, "epochs": 0.5}, "epochs must be a whole number, at least 1, got 0[.]5"),
        ({"epochs": 1}, "epochs and K both give the steps of a round: use one"),
        ({"K": Schedule.every(2, steps=8), "epochs": 1, "rounds": None}, "epochs and a Schedule"),
        ({"l1": 0.1}, r"use the method 'dualavg\(l1\)'"),
    ],
)
def test_steps_of_clients_that_cannot_be(changes, message) -> None:
    objective = LeastSquares(np.eye(4), np.ones(4))
    with pytest.raises((InputError, TypeError), match=message):
        run(**{"objective": objective, "T": None, "rounds": 3, "mu": 1.0, **changes})


def test_there_must_be_an_algorithm() -> None:
    with pytest.raises(InputError, match="at least one algorithm and at least one step size"):
        run(algorithm=[])


@pytest.mark.parametrize(
    ("mu", "algorithm"), [(0.0, "fedac-i"), (-1.0, "fedavg"), (math.nan, "fedac-i")]
)
def test_mu_must_be_positive_and_finite(mu: float, algorithm: str) -> None:
    with pytest.raises(InputError, match="mu must be a finite number above 0, got"):
        run(mu=mu, algorithm=algorithm)


def test_an_objective_without_strong_convexity_needs_a_mu() -> None:
    flat = LeastSquares([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0])
    with pytest.raises(InputError, match=r"mu must be a finite number above 0, got 0\.0"):
        run(objective=flat)
    assert run(objective=flat, mu=0.1).runs[0].status == "ok"
    assert run(objective=flat, algorithm=["fedavg", "mb-sgd"]).runs[0].status == "ok"


@pytest.mark.parametrize("name", ["M", "K", "T"])
@pytest.mark.parametrize("value", [0, 2.0, "2", True])
def test_counts(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"{name} must be a whole number, at least 1, got"):
        run(**{name: value})


@pytest.mark.parametrize("value", [0, -1, 2.0])
def test_record_every(value: object) -> None:
    with pytest.raises(InputError, match="record_every must be a whole number, at least 1, got"):
        run(record_every=value)


def test_K_must_divide_T() -> None:
    with pytest.raises(InputError, match=r"K=3 does not divide T=8.*Use T=6 or T=9"):
        run(K=3)


def test_T_must_be_given_once() -> None:
    with pytest.raises(InputError, match="T is missing"):
        run(T=None)
    with pytest.raises(InputError, match="T=9 contradicts the schedule, which ends after 8 steps"):
        run(K=Schedule.at([3, 8]), T=9)
    assert run(K=Schedule.at([3, 8]), T=8).schedule.T == 8
    assert run(K=Schedule.at([3, 8]), T=None).schedule.T == 8


def test_an_unknown_algorithm_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown algorithm 'fedac-1'; did you mean 'fedac-i'"):
        run(algorithm=["fedavg", "fedac-1"])


@pytest.mark.parametrize("start", [[1.0], [1.0, 2.0, 3.0], 0.0, [[1.0, 2.0]]])
def test_shape_of_start(start) -> None:
    with pytest.raises(InputError, match=r"start must be 2 numbers .*got shape"):
        run(start=start)


@pytest.mark.parametrize("start", [[1.0, math.nan], [math.inf, 0.0]])
def test_entries_of_start(start) -> None:
    with pytest.raises(InputError, match="start has NaN or infinite entries"):
        run(start=start)


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_a_start_beyond_all_bounds(engine: str) -> None:
    flat = LeastSquares([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], l2=0.1)
    with pytest.raises(InputError, match=r"start must be 2 numbers of size at most 1e\+10"):
        run(objective=flat, start=[1e200, 0.0], engine=engine)
    with pytest.raises(InputError, match=r"start must be 2 numbers of size at most 1e\+10"):
        run(objective=flat, start=[0.0, -1.1e10], engine=engine)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None, True])
def test_seed(seed) -> None:
    with pytest.raises(InputError, match=r"seed must be"):
        run(seed=seed)


@pytest.mark.parametrize("seed", [0, 2**64 - 1, np.int64(3)])
def test_good_seeds(seed) -> None:
    assert run(seed=seed).runs[0].status == "ok"


def test_the_default_seed_is_that_of_the_commands() -> None:
    assert run().seed == 1


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"algorithm": 3}),
        {"algorithm": [3]},
        {"eta": "fast"},
        {"eta": [[0.1, 0.2]]},
        {"start": ["a", "b"]},
    ],
    ids=str,
)
def test_what_has_the_wrong_type_is_an_input_error(changes: dict) -> None:
    with pytest.raises(InputError):
        run(**changes)


def test_one_warning_beyond_the_theory() -> None:
    with pytest.warns(StepSizeWarning) as caught:
        run(algorithm=["fedac-i", "fedavg"], eta=[0.5, 1.0, 1.25, 1.5], engine="reference")
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.startswith("2 of 4 step sizes exceed 1/L = 1 (largest: 1.5)")
    assert caught[0].filename.endswith("test_simulate.py"), "points at the caller"


def test_one_warning_for_all_runs_that_are_fedavg() -> None:
    several = ["fedac-i", "fedavg", "fedac-i+cv", "mb-ac-sgd"]
    with pytest.warns(NotAcceleratedWarning) as caught:
        result = run(algorithm=several, eta=[0.1, 0.5, 1.0], K=8, engine="reference")
    assert [str(one.message) for one in caught] == [
        "FedAc-I, FedAc-I + cv degenerate to FedAvg with eta=0.5, 1, mu=0.25, K=8, because "
        "eta mu K >= 1; to accelerate, use mu < 1/(eta K) = 0.125"
    ]
    assert caught[0].filename.endswith("test_simulate.py"), "points at the caller"
    losses = {(one.algorithm, one.eta): one.loss for one in result.runs}
    for eta in (0.5, 1.0):
        assert losses["fedac-i", eta] == pytest.approx(losses["fedavg", eta], rel=1e-12)
    assert losses["fedac-i", 0.1] != pytest.approx(losses["fedavg", 0.1], rel=1e-3)


def test_a_step_size_that_falls_counts_as_it_begins() -> None:
    with pytest.warns(NotAcceleratedWarning, match=r"with eta=0\.5, mu=0\.25, K=8"):
        run(eta=Decay(0.5, "1/r"), K=8, engine="reference")


def test_no_warning_at_one_over_L() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(eta=[1.0, 0.1], engine="reference")


def test_the_result_says_which_engine_ran_and_a_warning_why() -> None:
    rows = LogisticRegression(np.eye(2), [1.0, -1.0], l2=0.1)
    assert run(objective=rows).engine == "fast"
    assert run(objective=rows, engine="reference").engine == "reference"
    with pytest.warns(SlowEngineWarning, match="up to 500 times slower.*NoisyQuadratic") as caught:
        assert run().engine == "reference"
    assert caught[0].filename.endswith("test_simulate.py"), "points at the caller"


# 1 - 3 h doubles the first coordinate with every step at h = 1: 2^34 > 1e10 > 2^33.
def _diverge(**changes):
    quiet = NoisyQuadratic([1.0, 0.25])
    more = {"objective": quiet, "algorithm": "fedavg", "M": 2, "K": 1, "T": 64, "record_every": 8}
    with pytest.warns(StepSizeWarning):
        return run(**({"eta": [0.5, 3.0], "start": [1.0, 1.0]} | more | changes))


def test_a_diverged_run_keeps_its_trace() -> None:
    good, bad = _diverge().runs
    assert (good.status, bad.status) == ("ok", "diverged")
    assert good.steps.tolist() == list(range(0, 65, 8))
    assert bad.steps.tolist() == [0, 8, 16, 24, 32]
    assert np.isfinite(bad.loss).all()
    assert bad.loss[-1] == pytest.approx(2.0**63, rel=1e-9)  # (2^32)^2 / 2
    assert bad.w[0] == 2.0**32
    assert bad.best_loss == bad.loss[0]
    assert math.isnan(bad.final_loss)
    assert math.isnan(bad.trained_loss)


def test_a_run_diverges_at_the_first_synchronization_beyond_1e10() -> None:
    assert _diverge(record_every=1).runs[1].steps[-1] == 33
    assert _diverge(record_every=1, K=4).runs[1].steps[-1] == 32


def test_a_diverged_run_disturbs_no_other() -> None:
    etas = [3.0, 0.5, 1e200, 0.25]
    with pytest.warns(NotAcceleratedWarning, match=r"with eta=1e\+200, mu=0\.25, K=1"):
        together = _diverge(eta=etas, objective=F, algorithm=["fedavg", "fedac-i"], mu=0.25)
    assert [r.status for r in together.runs] == ["diverged", "ok"] * 4
    for one in together.runs:
        if one.status == "ok":
            alone = run(
                algorithm=one.algorithm,
                eta=one.eta,
                mu=0.25,
                M=2,
                K=1,
                T=64,
                record_every=8,
                start=[1.0, 1.0],
            )
            assert np.array_equal(alone.runs[0].loss, one.loss)


@pytest.mark.parametrize("name", [*ALGORITHMS, "general"])
@pytest.mark.parametrize("K", [1, 64])
def test_every_algorithm_diverges_without_a_noise(name: str, K: int) -> None:
    # Warnings are errors here, so NumPy says nothing on the way to infinity. Step sizes of
    # FedAc-II and of the weighted average are bounded by mu; hence the small one.
    algorithm = fedac(gamma=1e120, alpha=2.0, beta=3.0) if name == "general" else name
    with pytest.warns(StepSizeWarning):
        (bad,) = run(algorithm=algorithm, eta=1e100, mu=1e-102, K=K, T=256, record_every=1).runs
    assert bad.status == "diverged"
    assert np.isfinite(bad.loss).all()
    assert bad.steps[0] == 0


def test_an_infinite_sequence_diverges_without_a_noise() -> None:
    # beta = 1 multiplies w_ag = -inf by zero when the query point is judged.
    with pytest.warns(StepSizeWarning):
        result = run(
            algorithm=fedac(gamma=0.1, alpha=1.0, beta=1.0), eta=1e308, start=[100, 100], K=1
        )
    assert result.runs[0].status == "diverged"


def test_a_loss_that_overflows_at_the_start_is_refused() -> None:
    steep = NoisyQuadratic([1e300, 1.0])
    with pytest.raises(InputError, match="loss at the start point is not finite"):
        run(objective=steep, start=[1e10, 0.0], eta=1e-301)


def test_a_loss_that_overflows_later_is_divergence() -> None:
    # w' = (1 - 5) w, and 1e300 w^2 passes the largest number, 1.8e308, at 4^7 = 16384 < 1e10.
    with pytest.warns(StepSizeWarning):
        result = run(
            objective=NoisyQuadratic([1e300, 1e300]),
            algorithm="fedavg",
            K=1,
            T=12,
            eta=5e-300,
            start=[1.0, 0.0],
            record_every=1,
        )
    (bad,) = result.runs
    assert bad.status == "diverged"
    assert bad.steps.tolist() == list(range(7))
    assert np.isfinite(bad.loss).all()


@pytest.mark.parametrize("algorithm", ["fedac-i", "fedavg-weighted", "mb-sgd"])
def test_callbacks_get_every_record(algorithm: str) -> None:
    records: list[Record] = []
    also: list[Record] = []
    result = run(
        algorithm=algorithm,
        eta=[0.5, 0.25],
        record_every=4,
        callbacks=[records.append, also.append],
    )
    assert records == also
    assert [(r.eta, r.step) for r in records] == [
        (eta, t) for eta in (0.5, 0.25) for t in (0, 4, 8)
    ]
    assert {r.algorithm for r in records} == {algorithm}
    assert [r.loss for r in records] == [loss for r in result.runs for loss in r.loss]
    assert np.array_equal(records[-1].state[0], next(iter(result.runs[-1].state.values())))


@pytest.mark.parametrize("K", [4, Schedule.at([1, 2, 8, 16])])
def test_progress_adds_up(K) -> None:
    queries: list[int] = []
    result = run(
        algorithm=["fedac-i", "mb-sgd"],
        eta=[0.1, 0.2, 0.3],
        M=5,
        K=K,
        T=16,
        on_progress=queries.append,
    )
    assert sum(queries) == result.gradient_queries == 5 * 16 * 6
    assert min(queries) > 0


def test_an_interrupted_run_hands_over_what_it_has() -> None:
    def stop(record: Record) -> None:
        if record.eta == 0.25 and record.step == 4:
            raise KeyboardInterrupt

    whole = run(eta=[0.5, 0.25, 0.1], record_every=4)
    with pytest.raises(SimulationInterrupted) as caught:
        run(eta=[0.5, 0.25, 0.1], record_every=4, callbacks=[stop])
    assert isinstance(caught.value, KeyboardInterrupt)
    result = caught.value.result
    assert [r.eta for r in result.runs] == [0.5, 0.25]
    assert [r.steps.tolist() for r in result.runs] == [[0, 4, 8], [0, 4]]
    for part, full in zip(result.runs, whole.runs, strict=False):
        assert np.array_equal(part.loss, full.loss[: len(part.loss)])
    assert len(result.to_frame()) == 5


def test_an_interrupt_between_records() -> None:
    def stop(queries: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SimulationInterrupted) as caught:
        run(on_progress=stop)
    assert caught.value.result.runs[0].steps.tolist() == [0]


def test_an_interrupt_within_a_record_leaves_whole_records() -> None:
    class Slow(NoisyQuadratic):
        calls = 0

        def value(self, w):
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().value(w)

    with pytest.raises(SimulationInterrupted) as caught:
        run(objective=Slow([1.0, 0.25]), record_every=2)
    (part,) = caught.value.result.runs
    assert part.steps.tolist() == [0, 2]
    assert len(part.loss) == 2


def test_other_errors_of_callbacks_pass_through() -> None:
    def fail(record: Record) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(callbacks=[fail])


def test_the_default_start_is_that_of_the_published_runs() -> None:
    # RandomState(1).randn(2)
    w_0 = np.array([1.6243453636632417, -0.6117564136500754])
    records: list[Record] = []
    run(callbacks=[records.append])
    assert np.array_equal(records[0].state[0], w_0)


def test_by_default_about_eight_records() -> None:
    assert run(T=64).runs[0].steps.tolist() == list(range(0, 65, 8))
    assert run(T=4).runs[0].steps.tolist() == [0, 2, 4]


def test_the_users_start_is_left_alone() -> None:
    w_0 = np.array([1.0, 2.0])
    run(algorithm=list(ALGORITHMS), start=w_0)
    assert w_0.tolist() == [1.0, 2.0]


def test_numpy_counts_and_step_sizes() -> None:
    plain = run(eta=[0.1, 0.25])
    numpys = run(
        M=np.int64(4), K=np.int32(2), T=np.int64(8), eta=np.array([0.1, 0.25]), seed=np.uint8(1)
    )
    for a, b in zip(plain.runs, numpys.runs, strict=True):
        assert np.array_equal(a.loss, b.loss)


def test_every_algorithm_may_have_its_own_step_sizes():
    F = NoisyQuadratic([1.0, 0.1], sigma=0.1)
    options = {"M": 4, "K": 2, "T": 8, "engine": "reference"}
    together = simulate(F, ["fedavg", "fedac-i"], eta={"fedac-i": 0.2, "fedavg": [0.1, 0.3]},
                        **options)  # fmt: skip
    assert [(run.algorithm, run.eta) for run in together.runs] == [
        ("fedavg", 0.1), ("fedavg", 0.3), ("fedac-i", 0.2),
    ]  # fmt: skip
    alone = simulate(F, "fedac-i", eta=0.2, **options)
    assert together.runs[2].w.tolist() == alone.best.w.tolist()
    with pytest.raises(InputError, match="eta has no step sizes for 'fedac-i', only for fedavg"):
        simulate(F, ["fedavg", "fedac-i"], eta={"fedavg": 0.1}, **options)
    with pytest.raises(InputError, match=r"eta has no step sizes for 'fedavg', only for 0\.1"):
        simulate(F, "fedavg", eta={0.1: 1}, **options)


def test_what_is_neither_an_objective_nor_data() -> None:
    for given in (3, None, object(), [1, 2, 3]):
        with pytest.raises(InputError, match="is not a data set: a file, a table, a pair"):
            run(objective=given)
