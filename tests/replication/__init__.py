"""A model of the replication protocol that runs on the rules of `coord`."""
