# SPDX-License-Identifier: Apache-2.0
"""Local SGD: the mean of the workers' points after every round."""

from benchmark_utils.simulated import SimulatedSolver


class Solver(SimulatedSolver):
    name = "FedAvg"
    algorithm = "fedavg"
