"""Clients as threads or processes of this machine, without Flower deployment."""
