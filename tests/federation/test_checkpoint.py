# SPDX-License-Identifier: Apache-2.0
"""The checkpoint envelope: what it refuses, and how it tells algorithms apart."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fedac.algorithms import ALGORITHMS, FEDAC_I, FEDAVG
from fedac.errors import InputError
from fedac.federation.checkpoint import (
    Envelope,
    MissingCheckpointError,
    describe_rule,
    require_same_rule,
)

ENVELOPE = Envelope(package="fedac.toy", version=3)


def write(path: Path, *, version=3, kind="fedac.toy checkpoint") -> Path:
    def archive(file) -> None:
        with zipfile.ZipFile(file, "w") as records:
            records.writestr("format", kind)
            records.writestr("version", str(version))

    ENVELOPE.write(path, archive)
    return path


def load(file):
    with zipfile.ZipFile(file) as records:
        header = {
            "format": records.read("format").decode(),
            "version": int(records.read("version")),
        }
    ENVELOPE.require_header(header)
    return header


def test_a_written_checkpoint_is_read_again(tmp_path: Path) -> None:
    assert ENVELOPE.read(write(tmp_path / "new" / "a"), load) == ENVELOPE.header()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"version": 4}, "a': it has version 4; this fedac reads version 3"),
        ({"version": 2}, "a': it has version 2; this fedac reads version 3"),
        ({"kind": "fedac.other checkpoint"}, "a': it is not a checkpoint of fedac.toy"),
    ],
)
def test_other_headers_are_refused(tmp_path: Path, header, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ENVELOPE.read(write(tmp_path / "a", **header), load)


def test_a_missing_file_a_folder_and_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingCheckpointError, match=r"there is no checkpoint '.*none'"):
        ENVELOPE.read(tmp_path / "none", load)
    with pytest.raises(InputError, match=r"cannot read the checkpoint '.*': Is a directory"):
        ENVELOPE.read(tmp_path, load)
    with pytest.raises(InputError, match=r"cannot read the checkpoint '.*': Not a directory"):
        ENVELOPE.read(tmp_path / "file" / "a", load)
    with pytest.raises(OSError, match=r"cannot write the checkpoint '.*file/a': "):
        write(tmp_path / "file" / "a")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "a").read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"fedac.toy checkpoint")] ^= 1
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1], bytes(flipped)):
        (tmp_path / "b").write_bytes(content)
        with pytest.raises(
            InputError, match=r"b': it is damaged, or not a checkpoint of fedac\.toy"
        ):
            ENVELOPE.read(tmp_path / "b", load)


def couple(algorithm, eta=0.3):
    return algorithm.couple(eta=eta, mu=0.2, K=4)


def test_every_algorithm_is_known_again() -> None:
    for algorithm in ALGORITHMS.values():
        require_same_rule(describe_rule(algorithm, couple(algorithm)), algorithm, couple(algorithm))


@pytest.mark.parametrize(
    "change",
    [
        {"query": lambda state, hp: state[0]},
        {"update": lambda state, w_md, g, hp: (w_md - hp.eta * g, state[1] - hp.gamma * g)},
        {"output": lambda state, hp, t: state[1]},
    ],
)
def test_another_algorithm_of_the_same_name_is_refused(change) -> None:
    hp = couple(FEDAC_I)
    with pytest.raises(InputError, match="by another algorithm that is also called 'fedac-i'"):
        require_same_rule(describe_rule(replace(FEDAC_I, **change), hp), FEDAC_I, hp)


def test_another_name_or_other_hyperparameters_are_refused() -> None:
    with pytest.raises(InputError, match="by algorithm 'fedavg', not 'fedac-i'"):
        require_same_rule(describe_rule(FEDAVG, couple(FEDAVG)), FEDAC_I, couple(FEDAC_I))
    with pytest.raises(InputError, match=r"written with eta=0\.1, not 0\.3"):
        require_same_rule(describe_rule(FEDAC_I, couple(FEDAC_I, 0.1)), FEDAC_I, couple(FEDAC_I))
