"""Compiled kernels of the linear engine."""
