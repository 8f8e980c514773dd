# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import csr_array, issparse

from fedac.data import load_libsvm, readers
from fedac.data.readers import parse_lines
from fedac.errors import DataError, InputError

TEXT = b"# header\n+1 1:0.5 4:2  # note\n\n-1 3:1e-3\n+1\n"
DENSE_FORM = [[0.5, 0, 0, 2], [0, 0, 1e-3, 0], [0, 0, 0, 0]]


@pytest.fixture
def write(tmp_path):
    def write(content: bytes, name: str = "file") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def assert_refused(path, message, **kwargs):
    with pytest.raises(DataError) as caught:
        load_libsvm(path, **kwargs)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_reads_plain_and_compressed(write, suffix, compress):
    data = load_libsvm(write(compress(TEXT), "tiny.txt" + suffix))
    assert data.name == "tiny.txt"
    assert isinstance(data.X, csr_array)
    assert data.X.dtype == np.float64
    assert data.X.indices.dtype == data.X.indptr.dtype == np.int32
    assert data.X.toarray().tolist() == DENSE_FORM
    assert data.y.tolist() == [1, -1, 1]


def test_name_and_width_can_be_given(write):
    data = load_libsvm(write(TEXT), n_features=9, name="mine")
    assert (data.name, data.n_samples, data.n_features) == ("mine", 3, 9)


@pytest.mark.parametrize("chunk", [1, 20, 1 << 20])
def test_full_rows_become_dense(write, monkeypatch, chunk):
    monkeypatch.setattr(readers, "CHUNK_BYTES", chunk)
    data = load_libsvm(write(b"1 1:1 2:2\n0 1:3\n1 1:4 2:5 3:6\n"))
    assert isinstance(data.X, np.ndarray)
    assert data.X.flags.c_contiguous
    assert data.X.tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]


LONG = b"x" * 99


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"+1 3:", "line 3: '3:' is not of the form index:value"),
        (b"+1 1:2:3", "line 3: '1:2:3' is not of the form index:value"),
        (b"one 1:1", "line 3: label 'one' is not a finite number"),
        (b"1,2 1:1", "line 3: label '1,2' is not a finite number"),
        (b"nan 1:1", "line 3: label 'nan' is not a finite number"),
        (b"-inf 1:1", "line 3: label '-inf' is not a finite number"),
        (b"1 qid:7 1:1", "line 3: 'qid:7': the feature index must be a whole number"),
        (b"1 1", "line 3: '1' is not of the form index:value"),
        (b"1 a:1", "line 3: 'a:1': the feature index must be a whole number from 1 to 9"),
        (b"1 1.5:1", "line 3: '1.5:1': the feature index must be a whole number from 1 to 9"),
        (b"1 0:1 1:2", "a whole number from 1 to 9; scikit-learn writes it with zero_based=False"),
        (b"1 -4:1", "line 3: '-4:1': the feature index must be a whole number from 1 to 9"),
        (b"1 10:1", "line 3: '10:1': the feature index must be a whole number from 1 to 9"),
        (b"1 5:1 2:1", "line 3: '2:1': feature indices must ascend, but 5 came before"),
        (b"1 5:1 5:1", "line 3: '5:1': feature indices must ascend, but 5 came before"),
        (b"1 1:NaN", "line 3: '1:NaN': the value is not a finite number"),
        (b"1 1:1e999", "line 3: '1:1e999': the value is not a finite number"),
        (b"1 1:" + LONG, "line 3: '1:" + "x" * 38 + "...': the value is not a finite number"),
        (b"\x89PNG\x00", "line 3: not text"),
        (b"1 1:2\x00", "line 3: not text"),
    ],
)
def test_a_bad_line_is_named(write, monkeypatch, line, message):
    path = write(b"-1 1:1\n\n" + line + b"\n1 bad\n")
    for chunk in (1, 1 << 20):
        monkeypatch.setattr(readers, "CHUNK_BYTES", chunk)
        assert_refused(path, message, n_features=9)


@pytest.mark.parametrize("index", ["100000001", "3000000000", "9" * 30])
def test_an_index_too_large_for_memory(write, index):
    message = f"line 2: '{index}:1': the feature index must be a whole number from 1 to 100000000"
    assert_refused(write(f"-1 1:1\n1 {index}:1\n".encode()), message)


def test_the_largest_number_of_columns(write):
    assert load_libsvm(write(b"-1 1:1\n1 100000000:1\n")).n_features == readers.MOST_COLUMNS


def test_compressed_without_its_suffix_is_not_text(write):
    assert_refused(write(bz2.compress(TEXT)), "line 1: not text")


@pytest.mark.parametrize("content", [b"", b"\n# only a comment\n"])
def test_files_without_rows(write, content):
    assert_refused(write(content), "the file has no rows")


def test_missing_file_and_folder(tmp_path):
    assert_refused(tmp_path / "gone", "cannot be read: No such file")
    assert_refused(tmp_path, "cannot be read: ")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_forbidden_file(write):
    path = write(TEXT)
    path.chmod(0)
    assert_refused(path, "Permission denied")


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_damaged_compressed_files(write, suffix, compress):
    whole = compress(TEXT * 1000)
    assert_refused(write(whole[:-9], "cut" + suffix), "cannot be read: ")
    assert_refused(write(b"1 1:1\n-1 1:1\n", "plain" + suffix), "cannot be read")
    middle = len(whole) // 2
    assert_refused(write(whole[:middle] + b"????" + whole[middle + 4 :], "bad" + suffix), ": ")


def test_labels_alone_are_refused(write):
    assert_refused(write(b"1\n-1\n"), "no row has a feature")


@pytest.mark.parametrize("columns", [0, -1, "3"])
def test_impossible_numbers_of_columns(write, columns):
    with pytest.raises(InputError, match="n_features must be a whole number, at least 1"):
        load_libsvm(write(TEXT), n_features=columns)


def test_one_class_is_refused_with_the_file_name(write):
    assert_refused(write(b"1 1:1\n1 2:1\n"), "every row has the target 1.0; two different ones")


values = st.floats(-1e18, 1e18) | st.just(0.0)


@given(
    X=hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8), elements=values),
    chunk=st.sampled_from([1, 50, 1 << 20]),
    data=st.data(),
)
def test_round_trip(X, chunk, data):
    n, d = X.shape
    y = data.draw(hnp.arrays(np.float64, n + 2, elements=st.sampled_from([-1.0, 1.0])))
    y[:2] = -1, 1  # both classes, whatever was drawn
    X = np.vstack([np.zeros((2, d)), X])
    text = "".join(
        f"{sign:g} " + " ".join(f"{j + 1}:{row[j]!r}" for j in np.flatnonzero(row)) + "\n"
        for sign, row in zip(y, X.astype(object), strict=True)
    )
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_BYTES", chunk)
        path = Path(folder) / "random"
        path.write_text(text)
        loaded = load_libsvm(path, n_features=d)
    stored = np.count_nonzero(X)
    assert issparse(loaded.X) == (stored <= 0.5 * X.size)
    rows = loaded.X.toarray() if issparse(loaded.X) else loaded.X
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(loaded.y, y)


@pytest.mark.slow
@settings(max_examples=1000)
@given(
    lines=st.lists(
        st.lists(
            st.from_regex(r"[-+]?[0-9]{1,2}(\.5)?(e-?1)?|[0-9]{1,2}:-?[.0-9]{1,3}|[ \t01:._#qe]*",
                          fullmatch=True),
            max_size=4,
        ),
        max_size=3,
    )
)  # fmt: skip
def test_what_is_read_has_no_fault_and_is_what_scikit_learn_reads(lines):
    text = "\n".join(" ".join(words) for words in lines).encode()
    parsed = parse_lines(text, None)
    assert (parsed is None) == (readers._first_fault(text, 1, None) is not None)
    if parsed is None or not len(parsed[1]):
        return
    from sklearn.datasets import load_svmlight_file  # slow to import

    X, y = load_svmlight_file(io.BytesIO(text), zero_based=False)
    np.testing.assert_array_equal(parsed[1], y)
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(parsed[0], part), getattr(X, part))


def test_a9a(a9a):
    assert (a9a.name, a9a.n_samples, a9a.n_features) == ("a9a", 32_561, 123)
    assert a9a.X.nnz == 451_592
    assert int((a9a.y > 0).sum()) == 7_841
    assert a9a.X.indices.dtype == np.int32
