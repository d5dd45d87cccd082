"""Coordinators: run the state machines of `ottla.coord` on the logs of their partitions."""
