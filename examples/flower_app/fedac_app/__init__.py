# SPDX-License-Identifier: Apache-2.0
"""Logistic regression with FedAc in a Flower federation."""
