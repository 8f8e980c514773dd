"""How kernels are compiled and kept."""

import re
from pathlib import Path

from fedac.simulation._fast import compiling
from fedac.simulation._fast.compiling import compiled, compiled_dir


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


def test_compiled_code_is_kept_by_the_text_of_its_sources(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    here = compiled_dir.__wrapped__()
    assert here.parent == tmp_path
    monkeypatch.setattr(compiling, "SOURCES", compiling.SOURCES[:-1])
    assert compiled_dir.__wrapped__() != here


def test_without_a_choice_it_is_kept_in_our_cache(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("FEDAC_CACHE", str(tmp_path))
    assert compiled_dir.__wrapped__().parent == tmp_path / "compiled"


def test_all_that_kernels_import_counts_as_their_source() -> None:
    engine = Path(compiling.__file__).parent
    used = set()
    for name in compiling.SOURCES:
        text = (engine / name).read_text()
        used |= set(re.findall(r"^from fedac\.simulation\._fast\.(\w+) import", text, re.MULTILINE))
        for names in re.findall(r"^from fedac\.simulation\._fast import (.+)$", text, re.MULTILINE):
            used |= set(names.split(", "))
    assert {f"{name}.py" for name in used - {"compiling"}} <= set(compiling.SOURCES)
