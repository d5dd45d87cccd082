"""Metrics, the Prometheus endpoint and structured logging."""
