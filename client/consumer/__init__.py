"""The consumer: fetching, positions, group membership and commits."""
