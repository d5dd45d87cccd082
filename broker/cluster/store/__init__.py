"""The metadata store: cluster metadata, broker registrations and elections in a consensus store."""
