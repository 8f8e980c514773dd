"""Logistic regression with FedAc in a Flower federation."""
