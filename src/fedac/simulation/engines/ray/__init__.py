"""The linear engine on a Ray cluster."""
