"""Memories: vectors that a client keeps between its rounds."""
