# SPDX-License-Identifier: Apache-2.0
"""Data as people have it: tables and arrays of every origin, and what is wrong with bad ones."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import fedac
from fedac.data.registry import load_with_test
from fedac.errors import ColumnsWarning, DataError, InputError

FRAME = pd.DataFrame(
    {
        "age": [31.0, 54.0, 47.0, 60.0, 22.0, 39.0],
        "city": ["oslo", "rome", "rome", "bonn", "oslo", "bonn"],
        "smoker": [True, False, False, True, False, True],
        "hospital": ["A", "A", "B", "B", "B", "A"],
        "outcome": ["well", "ill", "ill", "well", "ill", "well"],
    }
)
MNIST = Path(os.environ.get("FEDAC_DATA", "")) / "mnist_5k.csv.gz"
X = np.array([[0.5, 2.0], [1.0, -1.0], [3.0, 0.0], [0.0, 1.0]])


def expected_rows() -> np.ndarray:
    """The features of FRAME, typed by hand: age, three cities, smoker."""
    return np.array(
        [
            [31, 0, 1, 0, 1],
            [54, 0, 0, 1, 0],
            [47, 0, 0, 1, 0],
            [60, 1, 0, 0, 1],
            [22, 0, 1, 0, 0],
            [39, 1, 0, 0, 1],
        ],
        dtype=float,
    )


def dense(rows) -> np.ndarray:
    return rows if isinstance(rows, np.ndarray) else rows.toarray()


def check_frame(data: fedac.Dataset) -> None:
    assert data.features == ("age", "city=bonn", "city=oslo", "city=rome", "smoker")
    np.testing.assert_array_equal(dense(data.X), expected_rows())
    assert (data.kind, data.classes) == ("binary", ("ill", "well"))
    np.testing.assert_array_equal(data.y, [1, -1, -1, 1, -1, 1])
    np.testing.assert_array_equal(data.labels, FRAME["outcome"])
    assert data.clients is not None
    assert data.clients.names == ("A", "B")
    np.testing.assert_array_equal(data.clients.owners, [0, 0, 1, 1, 1, 0])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("t.csv", lambda frame, path: frame.to_csv(path, index=False)),
        ("index.csv", lambda frame, path: frame.to_csv(path)),
        ("semicolons.csv", lambda frame, path: frame.to_csv(path, index=False, sep=";")),
        ("t.tsv", lambda frame, path: frame.to_csv(path, index=False, sep="\t")),
        ("t.csv.gz", lambda frame, path: frame.to_csv(path, index=False)),
        ("t.csv.bz2", lambda frame, path: frame.to_csv(path, index=False)),
        ("t.csv.xz", lambda frame, path: frame.to_csv(path, index=False)),
        ("t.parquet", lambda frame, path: frame.to_parquet(path)),
    ],
)
def test_tables_in_files(tmp_path, name, write):
    write(FRAME, tmp_path / name)
    check_frame(fedac.load(str(tmp_path / name), client="hospital"))


def test_a_file_without_a_header(tmp_path):
    path = tmp_path / "t.csv"
    FRAME.to_csv(path, index=False, header=False)
    data = fedac.load(path, client="4")
    assert data.features == ("1", "2=bonn", "2=oslo", "2=rome", "3")
    np.testing.assert_array_equal(dense(data.X), expected_rows())


def test_letters_only_and_no_header(tmp_path):
    path = tmp_path / "mushrooms.csv"
    path.write_text("p,x,x\ne,b,s\np,s,s\n")
    assert fedac.load(path, target="1").features == ("2=b", "2=s", "2=x", "3=s", "3=x")


def test_a_frame_and_what_converts_to_one():
    check_frame(fedac.load(FRAME, target="outcome", client="hospital"))
    check_frame(fedac.load(SimpleNamespace(to_pandas=lambda: FRAME), client="hospital"))
    features = FRAME[["age", "city", "smoker"]]
    check_frame(fedac.load((features, FRAME["outcome"]), client=FRAME["hospital"].to_numpy()))


@pytest.mark.parametrize("column", ["Target", "label", "CLASS", "y"])
def test_the_target_column_by_its_name(column):
    data = fedac.load(pd.DataFrame({"a": [1.0, 2.0], column: [0, 1], "b": [3.0, 4.0]}))
    assert data.features == ("a", "b")


def test_many_categories_are_sparse():
    frame = pd.DataFrame({"zip": [f"z{i % 40}" for i in range(400)], "y": np.arange(400) % 2})
    data = fedac.load(frame)
    assert sp.issparse(data.X)
    assert data.X.shape == (400, 40)
    np.testing.assert_array_equal(data.X.toarray(), pd.get_dummies(frame["zip"]).to_numpy(float))


@pytest.mark.parametrize("rows", [X, X.tolist(), sp.coo_array(X), sp.csr_matrix(X), X[:, :, None]])
def test_pairs_of_arrays(rows):
    data = fedac.load((rows, [0, 1, 1, 0]))
    np.testing.assert_array_equal(dense(data.X), X)
    assert (data.classes, data.y.tolist()) == ((0, 1), [-1, 1, 1, -1])
    np.testing.assert_array_equal(fedac.load(np.array(X), target=[0, 1, 1, 0]).y, data.y)


def test_numpy_files(tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.array(["a", "b", "b", "a"]))
    np.savez(tmp_path / "t.npz", X=X, y=["a", "b", "b", "a"], client=[1, 1, 2, 2])
    one = fedac.load(tmp_path / "X.npy", target=tmp_path / "y.npy")
    two = fedac.load((tmp_path / "X.npy", str(tmp_path / "y.npy")))
    three = fedac.load(tmp_path / "t.npz")
    for data in (one, two, three):
        np.testing.assert_array_equal(data.X, X)
        assert data.y.tolist() == [-1, 1, 1, -1]
    assert three.clients is not None
    assert three.clients.names == ("1", "2")


def test_libsvm_with_many_classes_and_real_targets(tmp_path):
    text = "".join(f"{i % 4 + 1} 1:{i}.5\n" for i in range(20)).encode()
    for suffix, pack in (("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress),
                         (".xz", lzma.compress)):  # fmt: skip
        path = tmp_path / f"t.libsvm{suffix}"
        path.write_bytes(pack(text))
        data = fedac.load(path)
        assert (data.kind, data.classes) == ("multiclass", (1, 2, 3, 4))
        assert data.y.tolist() == [i % 4 for i in range(20)]
    (tmp_path / "real").write_text("0.5 1:1\n-2 1:3\n7 2:1\n")
    assert fedac.load(tmp_path / "real").y.tolist() == [0.5, -2, 7]


def test_scikit_learn_speaks_in_its_target_names():
    from sklearn.datasets import load_iris

    for as_frame in (False, True):
        bunch = load_iris(as_frame=as_frame)
        data = fedac.load(bunch)
        assert data.classes == ("setosa", "versicolor", "virginica")
        assert data.features[0] == "sepal length (cm)"
        np.testing.assert_array_equal(dense(data.X), np.asarray(bunch.data))
        np.testing.assert_array_equal(data.y, bunch.target)


def test_pytorch_datasets():
    torch = pytest.importorskip("torch")

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 15

        def __getitem__(self, i):
            return torch.full((2, 2), float(i)), i % 3

    data = fedac.load(Images())
    assert (data.X.shape, data.kind) == ((15, 4), "multiclass")
    assert data.X[7].tolist() == [7, 7, 7, 7]
    pair = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor([1, 0, 1, 0]))
    np.testing.assert_array_equal(fedac.load(pair).X, X)


@pytest.mark.parametrize(
    ("values", "kind", "classes", "y"),
    [
        ([0, 1, 1], "binary", (0, 1), [-1, 1, 1]),
        ([7.5, -2, 7.5], "binary", (-2, 7.5), [1, -1, 1]),
        ([True, False, True], "binary", (False, True), [1, -1, 1]),
        (["b", "a", "c"], "multiclass", ("a", "b", "c"), [1, 0, 2]),
        ([b"no", b"yes", b"no"], "binary", ("no", "yes"), [-1, 1, -1]),
        (pd.Categorical(["lo", "hi", "mid"], ["lo", "mid", "hi"]), "multiclass",
         ("lo", "mid", "hi"), [0, 2, 1]),
        (pd.Series(["b", "a", "b"], dtype="string"), "binary", ("a", "b"), [1, -1, 1]),
        ([3, 4, 5] * 5, "multiclass", (3, 4, 5), [0, 1, 2] * 5),
        ([3.0, 4.0, 5.0] * 5, "multiclass", (3, 4, 5), [0, 1, 2] * 5),
        ([3, 4, 5] * 4, "real", (), [3, 4, 5] * 4),  # four rows of each are too few
        ([3, 4, 6] * 9, "real", (), [3, 4, 6] * 9),  # a gap
        (list(range(101)) * 5, "real", (), list(range(101)) * 5),  # too many
        (list(range(100)) * 5, "multiclass", tuple(range(100)), list(range(100)) * 5),
        ([0.5, 1.5, 2.5], "real", (), [0.5, 1.5, 2.5]),
    ],
)  # fmt: skip
def test_what_targets_are(values, kind, classes, y):
    given = pd.Series(values) if isinstance(values, pd.Categorical) else values
    data = fedac.load((np.eye(len(y)), given))
    assert (data.kind, data.classes, data.y.tolist()) == (kind, classes, y)


def test_standardized_by_the_training_rows():
    train, test = load_with_test(FRAME, 1 / 3, client="hospital", standardize=True)
    assert test is not None
    ages = expected_rows()[:, 0]
    mine = [row in dense(train.X)[:, 0] for row in dense(train.X)[:, 0]]
    assert all(mine)
    np.testing.assert_allclose(dense(train.X)[:, 0].mean(), 0, atol=1e-12)
    np.testing.assert_allclose(dense(train.X)[:, 0].std(), 1)
    # Undo the scaling of the test rows with the mean and deviation of the training rows.
    _, held_out = load_with_test(FRAME, 1 / 3)
    assert held_out is not None
    left = np.array(sorted(set(ages) - set(dense(held_out.X)[:, 0])))
    back = dense(test.X)[:, 0] * left.std() + left.mean()
    np.testing.assert_allclose(back, dense(held_out.X)[:, 0])
    assert set(dense(train.X)[:, 1:4].ravel()) == {0.0, 1.0}  # categories stay


def test_a_test_file_is_read_like_the_training_file(tmp_path):
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    shuffled = FRAME[["outcome", "smoker", "city", "age"]].iloc[[3, 1]]
    shuffled.to_csv(tmp_path / "test.csv", index=False)
    train, test = load_with_test(
        str(tmp_path / "train.csv"), str(tmp_path / "test.csv"), client="hospital"
    )
    assert test is not None
    np.testing.assert_array_equal(dense(test.X), dense(train.X)[[3, 1]])
    np.testing.assert_array_equal(test.y, train.y[[3, 1]])
    shuffled.assign(city="paris").to_csv(tmp_path / "test.csv", index=False)
    with pytest.warns(ColumnsWarning, match="2 rows have values .* such as 'paris'"):
        _, test = load_with_test(
            str(tmp_path / "train.csv"), str(tmp_path / "test.csv"), client="hospital"
        )
    assert not dense(test.X)[:, 1:4].any()


def with_value(column: str, row: int, value: object) -> pd.DataFrame:
    frame = FRAME.astype({column: object})
    frame.loc[row, column] = value
    return frame


def in_file(text: str | bytes, name: str = "t.csv"):
    return lambda folder: _write(folder / name, text)


def _write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def archive(**arrays):
    def write(folder):
        np.savez(folder / "t.npz", **arrays)
        return folder / "t.npz"

    return write


def array_file(array):
    def write(folder):
        np.save(folder / "X.npy", array, allow_pickle=True)
        return folder / "X.npy"

    return write


MANY = pd.DataFrame({"id": [f"row {i}" for i in range(50)], "y": np.arange(50) % 2})
AGES = pd.DataFrame({"age": [*map(str, range(49)), "12a"], "y": np.arange(50) % 2})
PARQUET = io.BytesIO()
FRAME.to_parquet(PARQUET)

BAD = [
    # Files
    (lambda folder: folder / "none.csv", {}, "none.csv cannot be read: no such file"),
    (lambda folder: folder, {}, "cannot be read"),
    (lambda folder: folder / "none.parquet", {}, "no such file"),
    (lambda folder: folder / "none.npz", {}, "no such file"),
    (lambda folder: "no-such-data", {}, "unknown data set 'no-such-data'"),
    (lambda folder: "a9", {}, "did you mean 'a9a'"),
    (in_file(""), {}, "t.csv: the file has no rows"),
    (in_file("a,b,y\n"), {}, "no rows"),
    (in_file("a,b,y\n1,2,0\n1,2,3,1\n"), {}, "line 3 has 4 fields, but the lines before have 3"),
    (in_file(b"\xff\xfe\x00bad"), {}, "not a text file in UTF-8"),
    (in_file("a,a,y\n1,2,0\n3,4,1\n"), {}, "the column 'a' occurs twice"),
    (in_file("1 2 3\n", "t.libsvm"), {}, "'2' is not of the form index:value"),
    (in_file("y\n1\n0\n"), {}, "there are no features, only y"),
    (in_file(b"PAR1 not really", "t.parquet"), {}, "is not a Parquet file"),
    (in_file(b"PK not really", "t.npz"), {}, "is not an archive of arrays"),
    (in_file(b"not an array", "X.npy"), {"target": [1]}, "is not an array of numbers"),
    (in_file(PARQUET.getvalue()[:200], "t.parquet"), {}, "is not a Parquet file"),
    (in_file(gzip.compress(b"a,y\n1,0\n2,1\n")[:20], "t.csv.gz"), {}, "cannot be read"),
    (in_file(b"not gzip", "t.csv.gz"), {}, "cannot be read"),
    (array_file(np.array([{}, []], dtype=object)), {"target": [0, 1]}, "is not an array"),
    (array_file(X), {}, "give the file of the targets (--label, target=)"),
    (archive(X=X), {}, "must hold rows X and targets y; it holds X (4, 2)"),
    (archive(X=X, Z=X, y=[0, 1, 0, 1]), {}, "must hold rows X and targets y"),
    (archive(X=X, a=[0, 1, 0, 1], b=[1, 1, 0, 0]), {}, "must hold rows X and targets y"),
    (archive(X=X, y=[0, 1, 0, 1]), {"target": "z"}, "unknown target column 'z'"),
    (archive(X=X, y=[0, 1, 0]), {}, "4 rows but 3 targets"),
    # Columns
    (FRAME, {"target": "outcom"}, "unknown target column 'outcom'; did you mean 'outcome'?"),
    (FRAME, {"client": "Hospital"}, "unknown client column 'Hospital'; did you mean 'hospital'?"),
    (FRAME, {"target": [1, 0]}, "6 rows but 2 targets"),
    (FRAME, {"client": ["A", "B"]}, "6 rows but 2 names of clients"),
    (pd.concat([FRAME, FRAME], axis=1), {}, "the column 'age' occurs twice"),
    (FRAME.head(0), {}, "the table has no rows"),
    # Values
    (with_value("age", 2, np.nan), {}, "row 3, column 'age': the value is missing"),
    (with_value("city", 1, None), {}, "row 2, column 'city': the value is missing"),
    (with_value("outcome", 4, None), {}, "row 5: the target is missing"),
    (with_value("hospital", 5, None), {"client": "hospital"}, "row 6: the client is missing"),
    (in_file("a,y\n1,0\n,1\n?,0\n"), {}, "row 2, column 'a': the value is missing, as in 1 more"),
    (FRAME.assign(age=[1, 2, np.inf, 4, 5, 6]), {}, "row 3, column 'age': the value is inf"),
    (FRAME.assign(age=[1, 2, 3, 4e300, 5, 6]), {}, "row 4, column 'age': the value is 4e+300"),
    (AGES, {}, "row 50, column 'age': '12a' is not a number"),
    (MANY, {}, "column 'id' has 50 different texts in 50 rows, such as 'row 0': drop it"),
    (FRAME.assign(born=pd.Timestamp("2020-01-01")), {"target": "outcome"}, "holds dates or times"),
    (in_file("born,age,y\n2020-01-31,1,0\n2020-01-31,2,1\n"), {}, "holds dates or times"),
    (FRAME.assign(tags=[["a"]] * 6), {"target": "outcome"}, "it holds list such as ['a']"),
    # Targets
    (MANY, {"target": "id"}, "50 different texts in 50 rows, too many for classes"),
    ((X, [1, 1, 1, 1]), {}, "every row has the target 1; two different ones are needed"),
    ((X, ["a", "a", "a", "a"]), {}, "every row has the target 'a'"),
    ((X, [0, 1, np.nan, np.nan]), {}, "row 3: the target is missing, as in 1 more rows"),
    ((X, [0, 1.5, np.inf, 2]), {}, "row 3: the target is infinite"),
    ((X, [0, 1]), {}, "4 rows but 2 targets"),
    ((X, [1, "a", 2, "b"]), {}, None),  # NumPy makes texts of them: four classes
    ((X, np.array([1, "a", 2.5, None], dtype=object)), {}, "row 4: the target is missing"),
    ((X, np.array([1, "a", 2.5, (1,)], dtype=object)), {}, "labels of one type, got float, int"),
    ((X, np.array([1j, 2, 3, 4])), {}, "targets must be numbers or labels, got complex128"),
    # Rows
    ((X[0], [0, 1]), {}, "X must be a matrix"),
    ((X[:0], []), {}, "X must be a matrix"),
    ((X * np.nan, [0, 1, 1, 0]), {}, "X has NaN or infinite entries"),
    ((sp.csr_array(X * np.nan), [0, 1, 1, 0]), {}, "X has NaN or infinite entries"),
    (([["a"], ["b"]], [0, 1]), {}, "X must be numbers"),
    (X, {}, "the rows have no column names: give the targets as an array"),
    (X, {"target": "y"}, "the rows have no column names"),
    (sp.csr_array(X), {}, "give the targets as an array"),
    # Other things
    (3, {}, "int is not a data set"),
    (None, {}, "NoneType is not a data set"),
    ([1, 2, 3], {}, "list is not a data set"),
    ({"a": [1, 2]}, {}, "dict is not a data set"),
    ("synthetic", {"target": "y"}, "synthetic has its own targets"),
    ((sp.csr_array(X), [0, 1, 1, 0]), {"standardize": True}, "is sparse: standardizing would"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_data_gets_one_clear_line(tmp_path, number):
    source, how, message = BAD[number]
    source = source(tmp_path) if callable(source) else source
    if message is None:
        assert fedac.load(source, **how).n_samples == 4
        return
    with pytest.raises(InputError) as caught:
        fedac.load(source, **how)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text


def test_labels_of_a_test_set(tmp_path):
    (tmp_path / "train").write_text("0 1:1\n1 1:2\n")
    (tmp_path / "test").write_text("-1 1:1\n1 1:2\n")
    _, test = load_with_test(str(tmp_path / "train"), str(tmp_path / "test"))
    assert test.y.tolist() == [-1, 1]  # {-1, +1} and {0, 1} mean the same
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    FRAME.assign(outcome="dead").to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(DataError, match=r"row 1: the label 'dead' is not one of .*: ill, well"):
        load_with_test(str(tmp_path / "train.csv"), str(tmp_path / "test.csv"))
    FRAME.drop(columns="age").to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(DataError, match="the column 'age' of the training data is missing"):
        load_with_test(str(tmp_path / "train.csv"), str(tmp_path / "test.csv"))


def test_splits_of_many_classes_and_real_targets():
    y = np.repeat(np.arange(5), 20)
    five = fedac.split(fedac.load((np.eye(100), y)), 5, "label")
    assert [len(set(y[five.rows_of(m)])) for m in range(5)] == [1] * 5
    targets = np.random.default_rng(0).normal(size=500)
    real = fedac.load((np.ones((500, 1)), targets))
    by_label = fedac.split(real, 5, "label")
    means = [targets[by_label.rows_of(m)].mean() for m in range(5)]
    assert means == sorted(means)
    uneven = fedac.split(real, 5, "dirichlet(0.1)")
    counts = np.stack(list(uneven.count_labels().values()))
    assert counts.shape == (10, 5)
    np.testing.assert_array_equal(counts.sum(axis=1), [50] * 10)
    assert (counts.max(axis=1) > 25).sum() >= 5  # most tenths are mostly with one client
    lowest, highest = (f"{end:.3g}" for end in (targets.min(), targets.max()))
    names = list(uneven.count_labels())
    assert names[0].startswith(f"{lowest} to ")
    assert names[-1].endswith(f" to {highest}")
    assert f"share of target {lowest} to " in str(uneven)


def test_ranges_of_targets_that_differ_in_late_digits_have_names_of_their_own():
    near = 1e6 + np.linspace(0, 1, 200)
    counts = fedac.split(near, 4, "iid").count_labels(5)
    assert next(iter(counts)) == "1000000 to 1000000.2"
    assert [rows.sum() for rows in counts.values()] == [40] * 5


@pytest.mark.skipif(not MNIST.is_file(), reason="there is no mnist_5k.csv.gz in $FEDAC_DATA")
def test_five_thousand_rows_of_mnist():
    data = fedac.load(MNIST)
    assert (data.X.shape, data.kind, len(data.classes)) == ((5000, 784), "multiclass", 10)
