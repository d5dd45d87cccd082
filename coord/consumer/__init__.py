"""Groups of the consumer protocol (KIP-848): the coordinator assigns the partitions.

`records` and `group` are their durable state, `heartbeats` and `classic_members` their events,
`reconciliation` and `assignors` the rules. Imported on first use.
"""
