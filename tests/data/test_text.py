# SPDX-License-Identifier: Apache-2.0
"""Text files: rows of characters, and the speakers of a play as clients."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

import fedac
from fedac.data.text import LENGTH
from fedac.errors import DataError

PLAY = "ANN:\n" + "To be, " * 20 + "\n\nBOB:\n" + "or not " * 30 + "\n\nANN:\nagain. " + "ha " * 30


def test_rows_follow_each_other_within_a_speaker(tmp_path):
    file = tmp_path / "play.txt"
    file.write_text(PLAY)
    data = fedac.load(file)
    spoken = {
        "ANN": ("To be, " * 20).strip() + "\n" + ("again. " + "ha " * 30).strip(),
        "BOB": ("or not " * 30).strip(),
    }
    assert data.text
    assert data.clients.names == ("ANN", "BOB")
    characters = np.array(data.classes)
    for m, name in enumerate(data.clients.names):
        rows = data.clients.rows_of(m)
        read = ["".join(characters[codes.astype(int)]) for codes in data.X[rows]]
        for k, (row, target) in enumerate(zip(read, data.labels[rows], strict=True)):
            assert spoken[name][k * LENGTH :].startswith(row + target)
    assert repr(data).startswith("Dataset(play.txt: ")
    assert f"{len(characters)} characters, 2 clients" in repr(data)


def test_a_compressed_text_without_speakers(tmp_path):
    file = tmp_path / "book.txt.gz"
    file.write_bytes(gzip.compress(b"It was a dark and stormy night. " * 10))
    data = fedac.load(file)
    assert (data.n_samples, data.n_features, data.clients) == (4, LENGTH, None)
    other = tmp_path / "other.txt"
    other.write_text("It was a night. " * 10)
    _, test = fedac.data.registry.load_with_test(file, test=other)
    assert test.classes == data.classes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"too short", "shorter than a row of 65 characters"),
        (b"\xff\xfe" * 80, "not a text in UTF-8"),
    ],
)
def test_bad_texts_get_one_line(tmp_path, text, message):
    file = tmp_path / "bad.txt"
    file.write_bytes(text)
    with pytest.raises(DataError, match=message) as caught:
        fedac.load(file)
    assert "\n" not in str(caught.value)


def test_a_test_text_with_a_new_character(tmp_path):
    for name, letter in (("train", "a"), ("test", "b")):
        (tmp_path / f"{name}.txt").write_text(f"{letter} " * 60)
    with pytest.raises(DataError, match="has the character 'b', the training data does not"):
        fedac.data.registry.load_with_test(tmp_path / "train.txt", test=tmp_path / "test.txt")


def test_a_text_has_its_targets(tmp_path):
    (tmp_path / "play.txt").write_text(PLAY)
    with pytest.raises(DataError, match="is text, which has its targets: omit the target"):
        fedac.load(tmp_path / "play.txt", target="y")


def test_libsvm_files_may_be_called_txt(tmp_path):
    (tmp_path / "rows.txt").write_text("1 1:2 3:4\n-1 2:1\n")
    assert fedac.load(tmp_path / "rows.txt").n_features == 3
