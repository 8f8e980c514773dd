"""Handwritten digits with PyTorch in a Flower federation."""
