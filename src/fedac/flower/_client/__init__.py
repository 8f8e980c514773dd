"""The client of a federation: its round, its memory, its local steps."""
