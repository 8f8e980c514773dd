"""A composition: FedAc-I, its momentum kept at home, Nesterov's momentum on the server."""

from benchmark_utils.simulated import SimulatedSolver


class Solver(SimulatedSolver):
    name = "FedAc-I-Nesterov"
    algorithm = "fedac-i+local+nesterov(1, 0.3)"
