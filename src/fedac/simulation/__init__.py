"""The simulator."""

from fedac.federation.schedule import Schedule
from fedac.simulation.recorder import Record
from fedac.simulation.result import Result, Run
from fedac.simulation.simulator import SimulationInterrupted, simulate

__all__ = ["Record", "Result", "Run", "Schedule", "SimulationInterrupted", "simulate"]
