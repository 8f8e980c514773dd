"""Clients as threads or processes on this machine, without a Flower deployment."""
