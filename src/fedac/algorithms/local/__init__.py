"""Local rules: the steps of a client between two synchronizations."""
