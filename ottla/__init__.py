"""ottla, Kafka's little sister: a distributed log that speaks the Kafka wire protocol.

Its packages: `ottla.protocol` (messages and record batches), `ottla.storage` (logs on disk),
`ottla.coord` (group coordination and cluster metadata), `ottla.broker`, `ottla.client`, `ottla.cli`
and `ottla.testing`.
"""

#: The only place of the version; pyproject.toml reads it from here.
__version__ = "0.2.0"
