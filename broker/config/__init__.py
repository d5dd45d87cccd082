"""Broker configs: those a broker starts with, and those altered while it runs."""
