"""Memories: what a client keeps from one of its rounds to the next."""
