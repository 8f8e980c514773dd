# SPDX-License-Identifier: Apache-2.0
"""FedAvg with control variates."""

from benchmark_utils.simulated import SimulatedSolver


class Solver(SimulatedSolver):
    name = "SCAFFOLD"
    algorithm = "scaffold"
