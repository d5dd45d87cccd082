"""The messages of the Kafka protocol, one module per API.

Names, defaults and ignorable fields are those of Kafka's message schemas, with names in snake case.
The notes at the top of each module list what each version adds, by Kafka's field names. A field
without `since` exists in all versions that ottla supports.
"""
