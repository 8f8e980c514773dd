# SPDX-License-Identifier: Apache-2.0
"""Clients, rounds, messages and links: shared by the simulator, PyTorch and Flower."""
