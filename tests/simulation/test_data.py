# SPDX-License-Identifier: Apache-2.0
"""`simulate` on data: tables, their clients, held-out rows and clients."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedac
from fedac.errors import InputError

HELD_OUT = (0, 0x7E57)  # the seed of held-out rows, which never changes
rng = np.random.default_rng(0)
ROWS = 120
TABLE = pd.DataFrame(
    {
        "age": rng.normal(size=ROWS),
        "hospital": rng.choice([2, 9, 10, 11, 30], ROWS),
        "dose": rng.normal(size=ROWS),
    }
)
TABLE["state"] = np.where(TABLE.age + rng.normal(size=ROWS) > 0, "well", "sick")
OWNERS = TABLE["hospital"].to_numpy()
X, SIGNS = TABLE[["age", "dose"]].to_numpy(), np.where(TABLE["state"] == "well", 1.0, -1.0)
DATA = fedac.load(TABLE, client="hospital")
OPTIONS = {"K": 2, "rounds": 4, "eta": 0.3}


def run(data=DATA, algorithm="fedavg", **options):
    return fedac.simulate(data, algorithm, **{**OPTIONS, **options})


def test_a_table_is_the_objective_made_of_it():
    F = fedac.LogisticRegression(X, SIGNS, l2=1e-3)
    expected = fedac.simulate(F, "fedavg", clients=OWNERS, K=2, T=8, eta=0.3)
    for given in (run(TABLE, clients="hospital"), run(), run(clients=OWNERS)):
        np.testing.assert_array_equal(given.best.w, expected.best.w)
    assert run(M=3).M == 3
    assert run(loss="squared-hinge", l2=0.5).objective.l2 == 0.5
    far = run((X, 100 + X[:, 0]), M=2, intercept=True, test=0.2, rounds=200, eta=0.2)
    assert far.best.metrics["r2"][-1] > 0.9


@pytest.mark.parametrize(
    ("y", "loss"),
    [
        ([0, 1, 2] * 40, fedac.SoftmaxRegression),
        (rng.normal(size=ROWS), fedac.LeastSquares),
        (["a", "b"] * 60, fedac.LogisticRegression),
    ],
)
def test_the_loss_follows_from_the_targets(y, loss):
    assert isinstance(run((X, y), M=2).objective, loss)


def test_every_way_to_name_clients(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(map(str, OWNERS)))
    same = [OWNERS, OWNERS.tolist(), pd.Series(OWNERS), str(names), names, "hospital", DATA.clients]
    prints = {run(clients=each).federation.clients.fingerprint() for each in same}
    assert len(prints) == 1
    F = fedac.LogisticRegression(X, SIGNS, l2=1e-3)
    for clients, M, by in (("label", 7, "label"), (7, None, "iid"), ("dirichlet(0.3)", 7, None)):
        expected = fedac.split(DATA, 7, by or clients).fingerprint()
        for given in (DATA, F, (X, TABLE["state"])):
            found = run(given, clients=clients, M=M).federation.clients
            assert found.fingerprint() == expected


def test_held_out_rows_keep_their_clients():
    result = run(TABLE, clients="hospital", test=0.25)
    order = np.random.default_rng(HELD_OUT).permutation(ROWS)
    train = np.sort(order[ROWS // 4 :])
    np.testing.assert_array_equal(result.objective.X, X[train])
    names = np.array(result.federation.clients.names, int)[result.federation.clients.owners]
    np.testing.assert_array_equal(names, OWNERS[train])
    test = np.sort(order[: ROWS // 4])
    right = (X[test] @ result.best.w > 0) == (SIGNS[test] > 0)
    assert result.best.test_accuracy[-1] == right.mean()


def test_held_out_clients():
    result = run(TABLE, clients="hospital", test_clients=0.4)
    # Clients are numbered in the order of their names: 9 before 10.
    out = np.unique(OWNERS)[np.random.default_rng(HELD_OUT).permutation(5)[:2]]
    test = np.isin(OWNERS, out)
    np.testing.assert_array_equal(result.objective.X, X[~test])
    assert result.federation.clients.names == tuple(map(str, np.setdiff1d(OWNERS, out)))
    right = (X[test] @ result.best.w > 0) == (SIGNS[test] > 0)
    assert result.best.test_accuracy[-1] == right.mean()
    # A split of all rows comes first.
    clients = fedac.split(DATA, 10, "label")
    result = run(clients="label", M=10, test_clients=0.3)
    kept = np.sort(np.random.default_rng(HELD_OUT).permutation(10)[3:])
    np.testing.assert_array_equal(result.objective.X, X[np.isin(clients.owners, kept)])
    np.testing.assert_array_equal(result.federation.clients.sizes, clients.sizes[kept])


def test_a_test_set_is_read_like_the_data():
    test = TABLE.iloc[::-1][:50]
    result = run(TABLE, clients="hospital", test=test)
    assert run(test=fedac.load(test, client="hospital")).best.test_loss.tolist() == (
        result.best.test_loss.tolist()
    )
    assert (
        run(test=(X[-50:], TABLE["state"][-50:])).best.test_accuracy[-1]
        == (result.best.test_accuracy[-1])
    )


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        ({"lr": 0.1}, "simulate has no keyword lr: use eta"),
        ({"batch_size": 2}, "no keyword batch_size: use batch"),
        ({"num_rounds": 2}, "no keyword num_rounds: use rounds"),
        ({"n_clients": 2}, "no keyword n_clients: use clients"),
        ({"epochs": 2}, "epochs and K both give the steps of a round: use one"),
        ({"momentum": 0.9}, "no keyword momentum: use a method that has it, such as 'fedavgm'"),
        ({"eta": None}, "eta is missing"),
        ({"K": None}, "K is missing"),
        ({"T": 8}, "rounds and T both give the length of a run: use one"),
        ({"rounds": None}, "T is missing"),
        ({"rounds": 0}, "rounds must be a whole number, at least 1, got 0"),
        ({"clients": "hospitl"}, "unknown split 'hospitl'; .* nor is 'hospitl' a file"),
        ({"clients": "label"}, "clients is missing: give the number of clients"),
        ({"clients": "hospital", "M": 3}, r"there are 5 clients \(by hospital\), not 3: omit it"),
        ({"clients": 0}, "clients must be a whole number, at least 1, got 0"),
        ({"clients": [1, 2]}, "clients hold 2 rows, but data has 120"),
        ({"test": 0.2, "test_clients": 0.2}, "use either test or test_clients, not both"),
        ({"test_clients": 0.2, "M": 3}, "test_clients needs clients, and M workers draw from all"),
        ({"test_clients": 0.01}, "a share of 0.01 of 5 clients leaves none to train or to test"),
        ({"l2": -1.0}, "l2 must be a finite number, at least 0"),
        ({"loss": "softmx"}, "unknown loss 'softmx'"),
    ],
)
def test_bad_options(options, saying):
    with pytest.raises(InputError, match=saying):
        run(**options)


@pytest.mark.parametrize(
    ("data", "options", "saying"),
    [
        (TABLE, {"clients": "hospitl"}, "did you mean 'hospital'.* nor is it a split or a file"),
        ((X, SIGNS), {"clients": "hospital"}, "data has no client column 'hospital': read a table"),
        ((X, SIGNS), {"clients": None}, "M is missing"),
        ((X, SIGNS), {"test_clients": 0.2}, "data has no clients to hold out"),
        ("no-such-data", {"M": 2}, "unknown data set 'no-such-data'"),
        (fedac.LeastSquares(X, SIGNS), {"M": 2, "l2": 0.1}, "l2 needs data instead of an objecti"),
        (fedac.LeastSquares(X, SIGNS), {"M": 2, "intercept": True}, "intercept needs data instead"),
    ],
)
def test_bad_data(data, options, saying):
    with pytest.raises(InputError, match=saying):
        run(data, **options)


def test_keywords_that_nobody_has():
    with pytest.raises(TypeError, match="unexpected keyword argument 'etaa'"):
        run(etaa=1)


def test_held_out_clients_may_have_a_class_of_their_own():
    labels = np.repeat(["ash", "elm", "fir", "oak"], 5)
    data = fedac.load((np.random.default_rng(0).standard_normal((20, 3)), labels))
    clients = fedac.split(data, 4, "label")
    result = fedac.simulate(
        data, "fedavg", clients=clients, test_clients=0.25, K=2, rounds=20, eta=0.1
    )
    # Nobody trains on the class of the held-out client, yet it has parameters.
    (missing,) = set(range(4)) - set(result.objective.y)
    W = result.best.w.reshape(3, 4)
    right = (data.X[data.y == missing] @ W).argmax(axis=1) == missing
    assert result.best.metrics["accuracy"][-1] == right.mean()
