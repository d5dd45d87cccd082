"""Adapters: Kafka clients behind the same methods, so that one test runs with all of them."""
