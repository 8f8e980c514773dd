"""How kernels are compiled and kept."""

import os
from pathlib import Path

import pytest

from fedac.engine.compiling import compiled, touch_if_older


def double(x):
    return x + x


def test_what_is_compiled_computes_and_is_kept() -> None:
    fast = compiled(double)
    assert fast(21) == 42
    assert fast.stats.cache_path is not None


def test_what_cannot_be_kept_is_compiled_all_the_same() -> None:
    # Numba has no place to keep a function without a file.
    names: dict = {}
    exec("def triple(x): return 3 * x", names)
    assert compiled(names["triple"])(14) == 42


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files, each a minute younger than the one before."""
    paths = [tmp_path / name for name in ("old.py", "middle.py", "young.py")]
    for age, path in enumerate(paths):
        path.touch()
        os.utime(path, (1e9 + 60 * age, 1e9 + 60 * age))
    return paths


def test_a_kernel_is_made_as_young_as_what_it_uses(files: list[Path]) -> None:
    old, middle, young = map(str, files)
    touch_if_older(middle, [old])
    assert Path(middle).stat().st_mtime == 1e9 + 60
    touch_if_older(middle, [old, young])
    assert Path(middle).stat().st_mtime > 1e9 + 120


def test_an_install_that_cannot_be_written_is_left_alone(files: list[Path], monkeypatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(self)

    monkeypatch.setattr(Path, "touch", refuse)
    old, _, young = map(str, files)
    touch_if_older(old, [young])
    assert Path(old).stat().st_mtime == 1e9
