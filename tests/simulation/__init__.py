"""A deterministic simulation of a cluster: real brokers on virtual clocks, networks and disks."""
