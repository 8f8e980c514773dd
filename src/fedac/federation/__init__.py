"""Clients, rounds, messages and links: shared by the simulator, PyTorch and Flower."""
