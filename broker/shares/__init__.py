"""Share groups on the leaders of partitions: share partitions, share sessions, acquisition.

Imported on first use.
"""
