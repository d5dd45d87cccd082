"""What is on disk: record batches in segments. Not built yet."""
