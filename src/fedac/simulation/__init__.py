# SPDX-License-Identifier: Apache-2.0
"""The simulator."""

from fedac.federation.schedule import Schedule
from fedac.simulation.result import Record, Result, Run
from fedac.simulation.simulator import SimulationInterrupted, simulate

__all__ = ["Record", "Result", "Run", "Schedule", "SimulationInterrupted", "simulate"]
