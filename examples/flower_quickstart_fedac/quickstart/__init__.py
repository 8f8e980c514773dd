# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits with PyTorch in a Flower federation."""
