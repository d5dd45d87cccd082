"""Coordination: the metadata image, replica placement, consumer groups and committed offsets.

Nothing here does I/O or reads a clock. A state machine validates an event and returns effects:
records to append and responses to send. The broker appends the records, then replays them.
"""
