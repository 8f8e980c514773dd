"""What `import fedac` gives."""

import subprocess
import sys

import pytest

import fedac


@pytest.mark.parametrize("name", fedac.__all__)
def test_every_name_is_there_when_asked_for(name: str) -> None:
    assert getattr(fedac, name).__name__ == name


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="'fedac' has no attribute 'nope'"):
        _ = fedac.nope


def test_importing_imports_nothing_heavy() -> None:
    heavy = "{'numba', 'numpy', 'scipy', 'sklearn', 'torch', 'flwr', 'matplotlib'}"
    check = f"import fedac, sys; print(sorted({heavy} & set(sys.modules)))"
    said = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout == "[]\n"
