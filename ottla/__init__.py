"""ottla, Kafka's little sister: a distributed log that speaks the Kafka wire protocol.

Its packages: `ottla.protocol` (messages and record batches), `ottla.storage` (logs on disk),
`ottla.coord` (group coordination and cluster metadata), `ottla.broker`, `ottla.client`, `ottla.cli`
and `ottla.testing`.
"""
