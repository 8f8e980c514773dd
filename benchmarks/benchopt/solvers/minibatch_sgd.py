# SPDX-License-Identifier: Apache-2.0
"""One step per round with the mean gradient of all sampled rows."""

from benchmark_utils.simulated import SimulatedSolver


class Solver(SimulatedSolver):
    name = "MB-SGD"
    algorithm = "mb-sgd"
