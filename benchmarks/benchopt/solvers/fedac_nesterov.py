# SPDX-License-Identifier: Apache-2.0
"""FedAc-I with local momentum and a Nesterov outer optimizer."""

from benchmark_utils.simulated import SimulatedSolver


class Solver(SimulatedSolver):
    name = "FedAc-I-Nesterov"
    algorithm = "fedac-i+local+nesterov(1, 0.3)"
