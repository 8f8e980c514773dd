"""The server of a federation: strategy, rounds, replies, checkpoints."""
