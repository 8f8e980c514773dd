"""The simulator."""

from fedac.engine.result import Result, Run
from fedac.engine.sampling import sample_index
from fedac.engine.schedule import Schedule
from fedac.engine.simulate import Interrupted, Record, simulate

__all__ = ["Interrupted", "Record", "Result", "Run", "Schedule", "sample_index", "simulate"]
