"""The other end of the wire: producer, consumer, admin. Not built yet."""
