"""Sockets: listeners, connections, framing limits and backpressure."""
