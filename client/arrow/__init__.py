"""Arrow record batches, to and from Kafka record batches."""
