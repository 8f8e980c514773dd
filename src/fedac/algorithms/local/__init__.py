"""Local rules: what a worker does between two synchronizations."""
