"""One step a round with the gradient of all rows that the others use."""

from benchmark_utils.simulated import SimulatedSolver


class Solver(SimulatedSolver):
    name = "MB-SGD"
    algorithm = "mb-sgd"
