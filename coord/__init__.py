"""Who does what: partition owners, consumer groups, offsets. Not built yet."""
