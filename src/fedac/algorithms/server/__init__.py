"""Server rules: how the server moves when it knows where the clients went.

A rule sees one travelling sequence at a time: the server's x, and ``delta = x - mean(y)`` over the
clients of the round. Plain averaging is ``x - delta``.
"""
