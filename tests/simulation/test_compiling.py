# SPDX-License-Identifier: Apache-2.0
"""How kernels are compiled and kept."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import fedac
from fedac.simulation.engines.linear.kernels import interface as compiling
from fedac.simulation.engines.linear.kernels.interface import compiled, compiled_dir

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("why", ["network", "read-only"])
def test_a_folder_that_is_not_ours_to_write_is_replaced(monkeypatch, tmp_path: Path, why) -> None:
    monkeypatch.setattr(compiling, "is_network", lambda path: why == "network")
    monkeypatch.setattr(os, "access", lambda path, mode: why == "network")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = tmp_path / "home"
    private = compiling._own_disk(home)
    assert private.parent == tmp_path
    assert private.stat().st_mode & 0o777 == 0o700
    private.chmod(0o777)  # others could have written what we would execute
    assert compiling._own_disk(home) == home


def test_all_that_kernels_import_counts_as_their_source() -> None:
    package = Path(fedac.__file__).parent
    used = set()
    for name in compiling.SOURCES:
        text = (package / name).read_text()
        used |= set(re.findall(r"^from fedac\.([\w.]+) import", text, re.MULTILINE))
        for folder, names in re.findall(r"^from fedac([\w.]*) import (.+)$", text, re.MULTILINE):
            used |= {f"{folder}.{name}"[1:] for name in names.split(", ")}
    files = {f"{name.replace('.', '/')}.py" for name in used}
    # Of these, nothing is compiled: they hold types, errors, paths and base classes.
    plain = {"paths.py", "validate.py", "errors.py", "algorithms/algorithm.py", "data/dataset.py"}
    plain |= {f"objectives/{name}.py" for name in ("base", "linear_model", "multiclass")}
    known = {*compiling.SOURCES, *plain}
    assert {file for file in files if (package / file).exists()} <= known


# --- Damaged, full, interrupted: in a process of their own, with a cache of their own -----------

SCRIPT = """
import sys
import numpy as np, fedac
from scipy.sparse import csr_array
from fedac.simulation.engines.linear.kernels import steps
F = fedac.LogisticRegression(csr_array(np.eye(3)), [1.0, -1.0, 1.0], l2=0.1)
say = lambda: print("compiling", flush=True)
try:
    result = fedac.simulate(F, "fedavg", M=2, K=2, T=4, eta=0.1, engine="fast", on_compile=say)
except fedac.simulation.SimulationInterrupted as stopped:
    print("interrupted", len(stopped.result.runs))
    sys.exit(130)
print(result.runs[0].final_loss, sum(steps.run_workers.stats.cache_hits.values()))
"""


def start(cache: Path, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", before + SCRIPT],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(cache: Path, before: str = "") -> tuple[list[str], str]:
    process = start(cache, before)
    out, err = process.communicate(timeout=1800)
    assert process.returncode == 0, err
    return out.split(), err


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def zero_the_end(content: bytes) -> bytes:
    # As after a power failure: the length is right, the last blocks never reached the disk.
    return content[: -len(content) // 4] + bytes(len(content) - len(content[: -len(content) // 4]))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds all kernels of the script."""
    cache = tmp_path_factory.mktemp("warm")
    out, err = run(cache)
    assert out[0] == "compiling"
    assert out[2] == "0"
    assert not err
    return cache


def test_compiled_kernels_are_read_and_not_announced(warm: Path) -> None:
    out, err = run(warm)
    assert out[-1] == "1"
    assert "compiling" not in out
    assert not err


def test_two_processes_with_an_empty_cache_compile_once(tmp_path: Path) -> None:
    both = [start(tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=1800) for process in both]
    assert [err for _, err in outputs] == ["", ""]
    assert sorted(out.split()[0] == "compiling" for out, _ in outputs) == [False, True]
    losses = {out.split()[-2] for out, _ in outputs}
    assert len(losses) == 1


@pytest.mark.parametrize(
    ("suffix", "damage"), [("nbi", truncate), ("nbc", lambda _: b"garbage"), ("nbc", zero_the_end)]
)
def test_damaged_files_are_compiled_again(warm: Path, tmp_path: Path, suffix, damage) -> None:
    cache = shutil.copytree(warm, tmp_path / "cache")
    files = list(cache.rglob(f"*run_workers*.{suffix}"))
    assert files
    for file in files:
        file.write_bytes(damage(file.read_bytes()))
    out, err = run(cache)
    assert out[0] == "compiling"
    assert out[-1] == "0"
    assert not err
    assert run(cache)[0][-1] == "1", "the damaged files were replaced"


def test_a_disk_without_space_is_named_once_and_does_no_harm(tmp_path: Path) -> None:
    # A limit on the size of files: writes fail as on a full disk.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    out, err = run(tmp_path, limit)
    assert out[0] == "compiling"
    assert err.count("CompileCacheWarning") == 1
    assert f"cannot keep compiled code in {tmp_path}" in err


def test_an_interrupt_while_compiling_stops_at_once(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "compiling\n"
    process.send_signal(signal.SIGINT)
    sent = time.perf_counter()
    out, err = process.communicate(timeout=1800)
    took = time.perf_counter() - sent
    assert (process.returncode, out.split(), err) == (130, ["interrupted", "0"], "")
    # To compile takes several seconds; a busy machine takes its time to end a process.
    assert took < 3


def test_errors_of_background_work_reach_the_caller() -> None:
    def fail() -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        compiling.compile_interruptibly(fail, lambda: None)
