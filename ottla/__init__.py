"""ottla, Kafka's little sister: a distributed log that speaks the Kafka wire protocol.

The rooms of the house are installed here side by side: `ottla.protocol` (what the bytes mean),
`ottla.storage` (what is on disk), `ottla.coord` (who does what), `ottla.broker` (the daemon) and
`ottla.client` (the other end of the wire).
"""
