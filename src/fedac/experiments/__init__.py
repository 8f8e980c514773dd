"""Experiments: what is run, what is kept, what is drawn."""
