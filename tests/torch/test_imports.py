# SPDX-License-Identifier: Apache-2.0
"""What `import fedac.torch` loads."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_no_simulator_and_none_of_its_libraries() -> None:
    check = (
        "import fedac.torch, sys; fedac.Decay; "
        "heavy = ('scipy', 'numba', 'matplotlib', 'fedac.simulation', "
        "'fedac.theory', 'fedac.experiments', 'fedac.objectives', 'fedac.data'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"
