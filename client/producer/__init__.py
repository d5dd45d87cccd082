"""The producer: batches, partition queues, and one sender per broker."""
