"""Coordinators: the I/O that runs the state machines of `ottla.coord`."""
