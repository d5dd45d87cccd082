"""Who does what: the topics, their partitions, and the brokers that own them.

Nothing here does I/O or knows a clock. What changes is told as records, which the broker writes to
a log before it lets them take effect.
"""
