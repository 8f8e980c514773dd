"""What the paper proves, as functions."""
