"""FedAvg with control variates."""

from benchmark_utils.simulated import SimulatedSolver


class Solver(SimulatedSolver):
    name = "SCAFFOLD"
    algorithm = "scaffold"
