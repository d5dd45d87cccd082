"""The messages of the Kafka protocol, one module for each api.

Names are Kafka's, in Python's spelling; so are defaults, and which fields may be dropped for a
version that lacks them (`ignorable`). A field without `since` has been there in all versions that
ottla speaks.
"""
