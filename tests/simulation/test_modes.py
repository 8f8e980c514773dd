# SPDX-License-Identifier: Apache-2.0
"""Deadlines, availability and asynchronous rounds, against an event loop written plainly here."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import fedac
from fedac import Link, simulate
from fedac.errors import InputError
from fedac.objectives import LeastSquares, LogisticRegression, SoftmaxRegression

RNG = np.random.default_rng(3)
D, MU, ETA, K = 4, 0.3, 0.1, 3
X, Y = RNG.standard_normal((14, D)), RNG.standard_normal(14)
OWNERS = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 4])  # five clients of different sizes
SPEEDS = [1.0, 2.0, 3.5, 1.25, 6.0]
F = LeastSquares(X, Y, l2=MU)
METHODS = ("fedavg", "fedac-i", "scaffold", "fedavg+nesterov(0.7,0.9)")
LINK = Link(latency=0.25, gradient=1.0, speeds=SPEEDS)


def gradient(m: int, w: np.ndarray) -> np.ndarray:
    rows = m == OWNERS
    return X[rows].T @ (X[rows] @ w - Y[rows]) / rows.sum() + MU * w


class Plain:
    """FedAvg, FedAc-I, SCAFFOLD and FedAvg with a Nesterov server, typed from their papers."""

    def __init__(self, method: str, start: np.ndarray, weighting: str) -> None:
        self.method, self.x = method, start.copy()
        self.ag, self.c, self.u = start.copy(), np.zeros(D), np.zeros(D)
        self.c_m = {m: np.zeros(D) for m in range(5)}
        sizes = np.bincount(OWNERS)
        self.p = sizes / sizes.sum() if weighting == "examples" else np.full(5, 0.2)

    def broadcast(self) -> tuple[np.ndarray, ...]:
        return self.x.copy(), self.ag.copy(), self.c.copy()

    def work(self, m: int, sent: tuple[np.ndarray, ...], steps: int) -> tuple[np.ndarray, ...]:
        x, ag, c = sent
        if self.method == "fedac-i":
            gamma = max(math.sqrt(ETA / (MU * K)), ETA)
            alpha, beta = 1 / (gamma * MU), 1 / (gamma * MU) + 1
            w = x.copy()
            for _ in range(steps):
                md = w / beta + (1 - 1 / beta) * ag
                g = gradient(m, md)
                ag = md - ETA * g
                w = (1 - 1 / alpha) * w + md / alpha - gamma * g
            return w - x, ag - sent[1], np.zeros(D)
        y, total = x.copy(), np.zeros(D)
        for _ in range(steps):
            g = gradient(m, y)
            total += g
            y = y - ETA * (g - self.c_m[m] + c if self.method == "scaffold" else g)
        change = total / steps - self.c_m[m]
        if self.method == "scaffold":
            self.c_m[m] = total / steps
        return y - x, np.zeros(D), change

    def step(self, arrived: list[tuple[int, tuple[np.ndarray, ...], int]]) -> None:
        """Take a step of the server with messages (client, moves and change, staleness)."""
        total = sum(self.p[m] for m, _, _ in arrived)
        scaled = [(self.p[m] / total, (1 + t) ** -0.5, what) for m, what, t in arrived]
        move, move_ag = (sum(p * s * what[i] for p, s, what in scaled) for i in (0, 1))
        self.c = self.c + total * sum(p * what[2] for p, _, what in scaled)
        if self.method.startswith("fedavg+nesterov"):
            self.u = 0.9 * self.u - move
            self.x = self.x - 0.7 * (0.9 * self.u - move)
            return
        self.x, self.ag = self.x + move, self.ag + move_ag

    @property
    def w(self) -> np.ndarray:
        return self.ag if self.method == "fedac-i" else self.x


def play_buffer(
    plain: Plain, Z: int, updates: int, at_work: int, who: Callable[[float, list[int]], list[int]]
) -> tuple[list[float], np.ndarray]:
    """Play an asynchronous run, event by event, and return the times of the server's steps.

    `who` chooses the clients that get free places at a time.
    """
    idle, busy, times, version, buffer = list(range(5)), [], [], 0, []
    now = 0.0
    while version < updates:
        for m in who(now, idle)[: at_work - len(busy)]:
            idle.remove(m)
            heapq.heappush(busy, (now + 0.25 + K * SPEEDS[m], m, version, plain.broadcast()))
        now = busy[0][0]
        while busy and busy[0][0] == now and version < updates:
            _, m, started, sent = heapq.heappop(busy)
            idle.append(m)
            # A client works again only after this, so its memory is that of its start.
            buffer.append((m, plain.work(m, sent, K), started))
            if len(buffer) == Z:
                plain.step([(m, what, version - v) for m, what, v in buffer])
                version, buffer = version + 1, []
                times.append(now)
    return times, plain.w


def run(method, **options) -> fedac.Result:
    usual = {"clients": OWNERS, "batch": "full", "K": K, "eta": ETA, "mu": MU, "link": LINK,
             "precision": "float64", "start": np.ones(D), "engine": "reference"}  # fmt: skip
    return simulate(F, method, **(usual | options))


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("Z", "at_work"), [(1, 5), (2, 5), (4, 5), (3, 3), (1, 2)])
def test_asynchronous_rounds_are_those_of_a_plain_event_loop(Z, at_work, method, weighting) -> None:
    result = run(method, mode=f"buffer({Z})", participation=at_work, rounds=25, weighting=weighting)
    frame = result.timeline

    def who(now: float, idle: list[int]) -> list[int]:
        # All that may be chosen by chance: which of the idle clients start at this time.
        started = frame.loc[np.isclose(frame["begun"], now, atol=1e-9), "client"].tolist()
        assert {*started} <= {*idle}
        return started

    plain = Plain(method, np.ones(D), weighting)
    times, w = play_buffer(plain, Z, 25, at_work, who)
    (one,) = result.runs
    np.testing.assert_allclose(one.timeline.seconds[1:], times, rtol=0, atol=1e-8)
    np.testing.assert_allclose(one.w, w, rtol=0, atol=1e-9)
    if method == "scaffold":
        mean = sum(p * plain.c_m[m] for m, p in enumerate(plain.p))
        np.testing.assert_allclose(plain.c, mean, atol=1e-12)
        np.testing.assert_allclose(one.state["c"], plain.c, rtol=0, atol=1e-9)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("method", METHODS)
def test_a_deadline_loses_the_slow_clients(method, weighting) -> None:
    # Steps of 1 to 6 seconds, three a round: 3.25, 6.25, 10.75, 4 and 18.25 seconds.
    result = run(method, mode="deadline(11s)", rounds=20, weighting=weighting)
    plain = Plain(method, np.ones(D), weighting)
    for _ in range(20):
        sent = plain.broadcast()
        plain.step([(m, plain.work(m, sent, K), 0) for m in (0, 1, 2, 3)])
    (one,) = result.runs
    np.testing.assert_allclose(one.w, plain.w, rtol=0, atol=1e-9)
    assert one.timeline.seconds.tolist() == [11.0 * r for r in range(21)]
    assert (plain.c_m[4] == 0).all()  # the memory of a lost client does not change
    assert result.timeline.query("lost")["client"].unique().tolist() == [4]


@pytest.mark.parametrize("method", ["scaffold", "fedac-i+cv"])
def test_a_deadline_is_biased_towards_fast_clients(method) -> None:
    """Clients that are always late are not in the optimum that control variates find."""
    found = {
        mode: run(method, mode=mode, rounds=2000).best.w for mode in ("rounds", "deadline(11s)")
    }
    here = OWNERS != 4
    everybody, some = (
        fedac.objectives.optimum(LeastSquares(X[rows], Y[rows], l2=MU)).w
        for rows in (slice(None), here)
    )
    np.testing.assert_allclose(found["rounds"], everybody, atol=1e-9)
    np.testing.assert_allclose(found["deadline(11s)"], some, atol=1e-9)
    assert np.linalg.norm(everybody - some) > 0.05


def test_a_round_ends_when_the_wanted_number_has_replied() -> None:
    result = run("fedavg", mode="deadline(30s)", oversample=1.7, participation=3, rounds=4,
                 clients=OWNERS)  # fmt: skip
    ends = result.timeline.groupby("version")["ended"]
    assert (ends.count() == 5).all()  # ceil(1.7 * 3) = 6, but there are five clients
    # The third to reply needs 6.25 seconds.
    assert result.runs[0].timeline.seconds.tolist() == [0, 6.25, 12.5, 18.75, 25]
    assert (result.timeline.query("not lost").groupby("update")["client"].count() == 3).all()


def test_nobody_in_time_leaves_the_state_and_passes_the_time() -> None:
    result = run("fedac-i", mode="deadline(2s)", rounds=3)
    assert (result.best.w == 1).all()
    assert result.seconds_of(result.best).tolist() == [0, 2, 4, 6]
    assert (result.best.loss == result.best.loss[0]).all()


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("method", METHODS)
def test_everybody_takes_the_steps_that_fit(method, weighting) -> None:
    result = run(method, mode="until(8s)", rounds=15, weighting=weighting)
    plain = Plain(method, np.ones(D), weighting)
    for _ in range(15):
        sent = plain.broadcast()
        fit = {m: int((8 - 0.25) // SPEEDS[m]) for m in range(5)}
        assert list(fit.values()) == [7, 3, 2, 6, 1]
        plain.step([(m, plain.work(m, sent, k), 0) for m, k in fit.items()])
    np.testing.assert_allclose(result.best.w, plain.w, rtol=0, atol=1e-9)
    assert (result.timeline["steps"].to_numpy()[:5] == [*fit.values()]).all()


def test_until_ends_when_the_last_has_replied_or_is_lost() -> None:
    # Steps of 1 to 6 seconds: client 4 has no full step in five seconds.
    result = run("fedavg", mode="until(5s)", rounds=2)
    assert result.runs[0].timeline.seconds.tolist() == [0, 5, 10]
    assert result.timeline.query("lost")[["client", "ended"]].to_numpy().tolist() == [
        [4, 5],
        [4, 10],
    ]
    # Without it, the others end after 4.25 seconds; client 0 goes away after 2 in the first round.
    table = [(0, 0, 2), (0, 4, 99), (1, 0, 99), (3, 0, 99)]
    result = run("fedavg", mode="until(5s)", rounds=2, availability=table)
    assert result.runs[0].timeline.seconds.tolist() == [0, 4.25, 8.5]


@pytest.mark.parametrize("mode", ["buffer(5)", "deadline(60s)", "rounds"])
@pytest.mark.parametrize("batch", [1, "full"])
def test_clients_of_one_speed_are_synchronous_to_the_last_bit(mode, batch) -> None:
    methods = [*METHODS, "fedac-i+cv+nesterov(1,0.3)", "mimelite(0.9)", "fedexp", "fedcm(0.3)",
               "fednova"]  # fmt: skip
    options = {"rounds": 12, "batch": batch, "wire": "int8"}
    usual = run(methods, link=None, **options)
    found = run(methods, link=Link(gradient=1.0), mode=mode, **options)
    for one, other in zip(usual.runs, found.runs, strict=True):
        assert all((one.state[name] == other.state[name]).all() for name in one.state)
        assert (one.loss == other.loss).all()


def test_speeds_slow_rounds_down() -> None:
    result = run("fedavg", rounds=4)
    assert result.seconds_of(result.best).tolist() == [18.25 * r for r in range(5)]
    usual = run("fedavg", rounds=4, link=None)
    assert usual.seconds_of(usual.best, LINK) == pytest.approx(result.seconds_of(result.best))
    assert (usual.best.w == result.best.w).all()


def test_methods_of_other_sizes_have_other_timelines() -> None:
    slow = Link(gradient=1.0, up=8 * 16 * D, speeds=SPEEDS)  # four bytes a number: 0.25 s a vector
    result = run(["fedavg", "fedac-i"], mode="buffer(2)", rounds=10, link=slow)
    alone = run("fedac-i", mode="buffer(2)", rounds=10, link=slow)
    assert set(result.timeline["algorithm"]) == {"fedavg", "fedac-i"}
    assert (result.runs[1].w == alone.best.w).all()
    first, second = (one.timeline.seconds[1] for one in result.runs)
    assert second == pytest.approx(first + 0.25)


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        ({"mode": "buffer"}, r"mode is rounds, until\(10s\), deadline\(30s\) or buffer\(10\)"),
        ({"mode": "buffer(0)"}, "the messages of a buffer must be"),
        ({"mode": "buffer(2.5)"}, "mode is rounds"),
        ({"mode": "buffer(6)"}, "more messages than the 5 clients"),
        ({"mode": "deadline(-1s)"}, "the time of deadline"),
        ({"mode": "deadline(10)"}, "a number with a unit"),
        ({"mode": "deadline(1e-12s)"}, "is from a nanosecond to 70 years, got '1e-12s'"),
        ({"mode": "deadline(1e300s)"}, "is from a nanosecond to 70 years"),
        ({"mode": "until(1e30s)"}, "is from a nanosecond to 70 years"),
        ({"availability": "share(1e-12)"}, "needs 0 < p <= 1 .at least 1e-06. and a period"),
        ({"availability": "share(0.5, 1e30s)"}, "and a period"),
        ({"availability": [(0, 0, 1e300)]}, "a run ends within 70 years, got 1e.300 s"),
        ({"availability": [(1e30, 0, 5)]}, "is the number of the client, from 0"),
        ({"mode": "buffer(2)", "oversample": 1.3}, "oversample needs mode deadline"),
        ({"mode": "deadline(9s)", "oversample": 0.5}, "oversample must be at least 1"),
        ({"mode": "buffer(2)", "algorithm": "scaffnew"}, "needs all clients in every round"),
        ({"mode": "buffer(2)", "algorithm": "feddyn"}, "stale moves count less"),
        ({"mode": "until(9s)", "epochs": 1, "K": None}, "decides on the steps of every client"),
        ({"mode": "until(9s)", "link": Link(latency=1.0)}, "local steps take time"),
        ({"link": Link(gradient=1.0, speeds=[1, 2])}, "speeds has 2 numbers for 5 clients"),
        ({"mode": "until(9s)", "algorithm": "fedavg-weighted"}, "counts local steps"),
        ({"mode": "deadline(9s)", "oversample": "1.3"}, "oversample must be a finite number"),
        ({"availability": "sometimes"}, "availability is always, share"),
        ({"availability": "share(1.5)"}, "needs 0 < p <= 1"),
        ({"availability": "diurnal(8)"}, "availability is always"),
        ({"availability": [(0, 5, 3)]}, "0 <= from < to"),
        ({"availability": [(0, 0, 3)]}, "ever available again"),
        ({"availability": [(m, 0, 20) for m in range(5)]}, "after 18.25 seconds|after 20 seconds"),
        ({"mode": "buffer(2)", "availability": "share(0.2, 100ms)"}, "ends before its client goes"),
        ({"availability": "diurnal(width=2, hours=8)"}, "availability is always"),
        ({"availability": "diurnal(30, 2)"}, "hours of diurnal is a number up to 24"),
        ({"availability": "missing.csv"}, "there is no file 'missing.csv'"),
        ({"availability": [(0, 0, 900), (5, 0, 9)]}, "lists client 5, but the clients are 0 to 4"),
        ({"availability": pd.DataFrame({"from": [0], "to": [9], "client": [0]})}, "in this order"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(options, saying) -> None:
    method = options.pop("algorithm", "fedavg")
    with pytest.raises(InputError, match=saying):
        run(method, rounds=30, **options)


@pytest.mark.parametrize(
    ("text", "saying"),
    [
        ("", "cannot read '.*' as CSV: No columns"),
        ("client,from,to\n", "has rows of client number, from and to"),
        ("0,1,900\n1,0,900\n", "columns client, from, to, in this order; got 0, 1, 900"),
        ("from,to,client\n0,900,1\n", "in this order; got from, to, client"),
        ("client,from,to\nanna,0,900\n", "has rows of client number, from and to"),
        ("client,from,to\n0,,900\n", "0 <= from < to"),
    ],
)
def test_files_of_availability_that_cannot_be_read(tmp_path, text, saying) -> None:
    file = tmp_path / "when.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=saying):
        run("fedavg", availability=str(file), rounds=3)


def test_speeds_are_a_number_per_client() -> None:
    with pytest.raises(InputError, match="a number per client, got 3"):
        Link(gradient=1.0, speeds=3)


def test_a_table_of_availability_is_the_same_from_file_frame_and_rows(tmp_path) -> None:
    frame = pd.DataFrame({"client": [0, 1, 1], "from": [0, 0, 40.0], "to": [900, 5, 900]})
    file = tmp_path / "when (1).csv"
    frame.to_csv(file, index=False)
    rows = [(0, 0, 900), (1, 0, 5), (1, 40, 900)]
    first, *others = (run("fedavg", availability=each, rounds=3, link=None).timeline
                      for each in (rows, frame, str(file)))  # fmt: skip
    assert all(first.equals(other) for other in others)


def test_only_available_clients_work_and_who_leaves_loses_it() -> None:
    table = [(0, 0, 100), (1, 0, 5), (1, 40, 300), (2, 0, 300), (3, 10, 12), (3, 12, 90), (4, 0, 9)]
    result = run("scaffold", availability=table, mode="buffer(1)", rounds=40)
    for work in result.timeline.itertuples():
        inside = [a <= work.begun and work.ended <= b for m, a, b in
                  [*table, (3, 10, 90)] if m == work.client]  # fmt: skip
        assert any(inside)
    frame = result.timeline
    assert frame.query("client == 1 and begun == 0")["lost"].all()  # 6.25 seconds, but it left at 5
    assert frame.query("client == 4")["lost"].all()
    # A client that left gets new work when it is back.
    assert 40 in frame.query("client == 1")["begun"].tolist()


@pytest.mark.parametrize("availability", ["share(0.3, 40s)", "diurnal(6, 24)"])
@pytest.mark.parametrize("mode", ["rounds", "deadline(12s)", "buffer(2)"])
def test_chances_of_availability_are_kept(mode, availability) -> None:
    hours = 0.0005 if "share" in availability else 1.0
    link = Link(latency=0.25 * hours, gradient=2000.0 * hours / 100)
    result = run("fedavg", availability=availability, mode=mode.replace("12s", "40min"),
                 clients=None, M=40, participation=5, rounds=40, link=link, batch=1)  # fmt: skip
    rule = fedac.federation.availability.Availability.parse(availability).for_seed(1)
    for work in result.timeline.itertuples():
        begun, ended = (np.array([round(t * 1e9)]) for t in (work.begun, work.ended))
        leaves = int(rule.leaves(np.array([work.client]), begun, ended + 1)[0])
        assert leaves >= ended[0] - 1 if not work.lost else True
        assert leaves > begun[0]


# --- The fast engine ----------------------------------------------------------------------------

SOME = 9  # clients, of 1 to about 12 rows
FEW_ROWS = np.random.default_rng(0)
HOLDERS = np.sort(np.r_[np.arange(SOME), FEW_ROWS.choice(SOME, 51, p=np.arange(1, SOME + 1) / 45)])
DENSE = FEW_ROWS.standard_normal((60, 7))
SPARSE = sp.random_array((60, 7), density=0.5, rng=1, format="csr")
SIGNS, CLASSES = np.where(FEW_ROWS.random(60) < 0.5, -1.0, 1.0), FEW_ROWS.integers(0, 3, 60)
OBJECTIVES = {
    "sparse": LogisticRegression(SPARSE, SIGNS, l2=0.1),
    "dense": LogisticRegression(DENSE, SIGNS, l2=0.1),
    "softmax": SoftmaxRegression(DENSE, CLASSES, l2=0.1),
    "sparse softmax": SoftmaxRegression(SPARSE, CLASSES, l2=0.1),
}
COMPOSITIONS = (
    "fedavg", "fedac-i", "fedac-ii", "mb-sgd", "mb-ac-sgd", "scaffold", "fedavg+nesterov(0.7,0.9)",
    "fedac-i+cv", "fedac-i+cv+nesterov(1,0.3)", "mimelite(0.9)", "fedexp", "fedcm(0.3)", "fednova",
    "fedprox(0.1)", "fedac-ii+exp", "diloco",
)  # fmt: skip
ALL_MODES = (
    {"mode": "deadline(6s)", "oversample": 1.5, "participation": 4},
    {"availability": "share(0.5, 20s)"},
    {"mode": "buffer(1)", "participation": 6},
    {"mode": "buffer(3)", "participation": 6},
    {"mode": "until(6s)"},
)
WORKS = (
    {"batch": 1},
    {"batch": 3, "weighting": "uniform", "participation": 5},
    {"batch": "full"},
    {"batch": 3, "epochs": 2, "K": None},
    {"batch": 2, "K": [1, 2, 3, 4, 5, 3, 2, 1, 2]},
    {"batch": 2, "wire": "int8"},
    {"batch": "full", "wire": "bfloat16"},
)
UNEQUAL = Link(
    gradient=1.0, latency=0.1, row=0.01, speeds=[0.4, 2.5, 1.0, 0.7, 4.0, 1.3, 0.9, 3, 1]
)


def simulated(kind: str, method, engine: str = "fast", **options) -> fedac.Result:
    usual = {"clients": HOLDERS, "K": 4, "eta": [0.05, 0.3], "mu": 0.1, "link": UNEQUAL, "seed": 5,
             "rounds": 14, "precision": "float64", "record_every": 3, "batch": 1}  # fmt: skip
    return simulate(OBJECTIVES[kind], method, engine=engine, **(usual | options))


def assert_equal_runs(kind: str, method, **options) -> None:
    usual, found = (simulated(kind, method, engine, **options) for engine in ("reference", "fast"))
    assert found.engine == "fast"
    assert found.gradient_queries == usual.gradient_queries
    assert found.timeline.equals(usual.timeline)
    for one, other in zip(usual.runs, found.runs, strict=True):
        np.testing.assert_allclose(other.loss, one.loss, rtol=0, atol=1e-9)
        for name in one.state:
            np.testing.assert_allclose(other.state[name], one.state[name], rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore::fedac.errors.StepSizeWarning")
@pytest.mark.filterwarnings("ignore::fedac.errors.NotAcceleratedWarning")
class TestFastEngine:
    @pytest.mark.parametrize("mode", ALL_MODES, ids=str)
    @pytest.mark.parametrize("method", COMPOSITIONS)
    def test_engines_agree(self, method, mode) -> None:
        assert_equal_runs("sparse", method, **mode)

    @pytest.mark.slow
    @pytest.mark.parametrize("work", WORKS, ids=str)
    @pytest.mark.parametrize("mode", ALL_MODES, ids=str)
    @pytest.mark.parametrize("kind", OBJECTIVES)
    def test_engines_agree_on_all_kinds_of_work(self, kind, mode, work) -> None:
        if "until" in str(mode) and {*work} & {"epochs", "K"}:
            pytest.skip("until decides on the steps")
        methods = [name for name in COMPOSITIONS if name != "mimelite(0.9)" or "wire" not in work]
        assert_equal_runs(kind, methods, **(work | mode))

    @pytest.mark.parametrize("kind", OBJECTIVES)
    def test_decaying_step_sizes_are_those_of_the_version(self, kind) -> None:
        decay = fedac.Decay(0.3, "1/sqrt(r)")
        for method in ("fedac-i", "scaffold"):
            assert_equal_runs(kind, method, eta=[decay, 0.1], mode="buffer(2)", participation=6)

    def test_lanes_that_diverge_leave_the_others_alone(self) -> None:
        F = LeastSquares(DENSE, SIGNS, l2=0.1)
        options = {"clients": HOLDERS, "K": 4, "rounds": 60, "mode": "buffer(2)", "link": UNEQUAL,
                   "engine": "fast", "precision": "float64", "mu": 0.1}  # fmt: skip
        for method in ("fedac-i", "scaffold"):
            alone = simulate(F, method, eta=0.02, **options)
            found = simulate(F, method, eta=[3.0, 0.02, 20.0], **options)
            assert [run.status for run in found.runs] == ["diverged", "ok", "diverged"]
            np.testing.assert_allclose(found.runs[1].w, alone.best.w, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("mode", ALL_MODES, ids=str)
    def test_the_number_of_threads_changes_no_bit(self, mode) -> None:
        rng = np.random.default_rng(2)
        holders = np.sort(rng.integers(0, 150, 4000))
        F = LogisticRegression(rng.standard_normal((4000, 5)), np.sign(rng.random(4000) - 0.5))
        most = {"participation": 120} | ({"mode": "buffer(60)"} if "buffer" in str(mode) else {})
        one, three = (
            simulate(
                F, ["fedac-i", "scaffold"], clients=holders, K=40, eta=0.1, mu=0.1, threads=threads,
                link=Link(gradient=0.2, speeds="lognormal(1.5)"), rounds=8, **(mode | most),
            )
            for threads in (1, 3)
        )  # fmt: skip
        if "buffer" in str(mode):  # some clients are in a buffer twice
            taken = one.timeline.query("not lost")
            assert taken.duplicated(["client", "update"]).any()
        for run_one, run_three in zip(one.runs, three.runs, strict=True):
            assert all((run_one.state[k] == run_three.state[k]).all() for k in run_one.state)

    def test_works_of_a_client_in_one_buffer_follow_each_other(self) -> None:
        # One client is much faster than the others: its memory passes from work to work.
        link = Link(gradient=1.0, speeds=[0.05] + [1.0] * 8)
        for kind in ("sparse", "softmax"):
            for batch in (1, "full"):
                assert_equal_runs(kind, "scaffold", mode="buffer(9)", link=link, batch=batch)
        frame = simulated("sparse", "scaffold", mode="buffer(9)", link=link).timeline
        assert frame.query("not lost").duplicated(["client", "update"]).any()

    def test_equally_fast_clients_are_synchronous_to_the_last_bit(self) -> None:
        methods = [m for m in COMPOSITIONS if m != "mimelite(0.9)"]
        for options in ({"batch": 1}, {"batch": "full"}, {"batch": 2, "wire": "int8"}):
            usual = simulated("sparse", methods, link=None, **options)
            found = [
                simulated("sparse", methods, link=Link(gradient=1.0), mode=mode, **options)
                for mode in ("buffer(9)", "deadline(60s)", "rounds")
            ]
            for result in found:
                for one, other in zip(usual.runs, result.runs, strict=True):
                    if "mb-" in one.algorithm and result is found[0]:  # on clients in a buffer
                        continue
                    assert all((one.state[k] == other.state[k]).all() for k in one.state)

    def test_nobody_in_time_leaves_the_state(self) -> None:
        result = simulated("sparse", ["fedac-i", "scaffold"], mode="deadline(100ms)", rounds=5)
        assert all(len(run.loss) == 6 and not np.ptp(run.loss) for run in result.runs)
        assert result.gradient_queries == 0

    def test_no_clock_on_a_cluster(self) -> None:
        pytest.importorskip("ray")
        with pytest.raises(InputError, match="has no clock: omit mode"):
            simulated("sparse", "fedavg", on="ray", mode="deadline(6s)")

    @pytest.mark.slow
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.data())
    def test_engines_agree_in_random_modes(self, data) -> None:
        draw = data.draw
        at_work = draw(st.integers(1, SOME))
        buffer, seconds = draw(st.integers(1, at_work)), f"{draw(st.floats(1.5, 20)):.2f}s"
        modes = ["rounds", f"buffer({buffer})", f"deadline({seconds})", f"until({seconds})"]
        mode = draw(st.sampled_from(modes))
        options = {
            "mode": mode, "participation": at_work if at_work > 1 else 1 / SOME,
            "seed": draw(st.integers(0, 99)), "rounds": draw(st.integers(1, 12)),
            "batch": draw(st.sampled_from([1, 3, "full"])),
            "weighting": draw(st.sampled_from(["examples", "uniform"])),
            "availability": draw(st.sampled_from(["always", "share(0.6, 60s)"])),
            "link": Link(
                gradient=draw(st.sampled_from([0.2, 1.0])), latency=0.1,
                speeds=draw(st.sampled_from(["lognormal(0.5)", "lognormal(1.5)"])),
            ),
        }  # fmt: skip
        methods = draw(st.lists(st.sampled_from(COMPOSITIONS), min_size=1, max_size=4, unique=True))
        assert_equal_runs(draw(st.sampled_from([*OBJECTIVES])), methods, **options)


def test_one_worker_does_not_stand_for_others_that_differ() -> None:
    # Full batches of all rows; but memories, or numbers of steps, differ.
    usual = {"M": 4, "batch": "full", "eta": ETA, "rounds": 6, "precision": "float64"}
    for method, options in (("scaffold", {"participation": 2}), ("fedavg", {"K": [1, 2, 3, 4]})):
        wanted = usual | {"K": K, "start": np.ones(D)} | options
        one, other = (simulate(F, method, engine=e, **wanted) for e in ("reference", "fast"))
        np.testing.assert_allclose(other.best.w, one.best.w, rtol=0, atol=1e-9)
