"""The cluster: membership, the controller, and the metadata log that brokers follow."""
