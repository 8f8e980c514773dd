# SPDX-License-Identifier: Apache-2.0
"""Federated Accelerated SGD with the first coupling of its paper."""

from benchmark_utils.simulated import SimulatedSolver


class Solver(SimulatedSolver):
    name = "FedAc-I"
    algorithm = "fedac-i"
