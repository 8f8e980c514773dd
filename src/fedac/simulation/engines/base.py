# SPDX-License-Identifier: Apache-2.0
"""The protocol that engines implement.

An engine is a module with two functions. `fedac.simulation.engines` tries the engines in the order
of its list and runs the problem on the first one that does not refuse it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from fedac.simulation.problem import Problem, Snapshot


class Engine(Protocol):
    """Runs simulations."""

    def refuse(self, problem: Problem) -> str | None:
        """Return why this engine cannot run a problem, or None if it can."""
        ...

    def run(self, problem: Problem) -> Generator[list[Snapshot]]:
        """Run all lanes, and yield their snapshots at the start and at every record.

        A list holds the snapshots of one synchronization. A lane that diverges yields one last
        snapshot, marked as diverged. Whatever has to be prepared, such as compiled code, is ready
        before the first list, which may be empty: the clock starts there.
        """
        ...
