"""What the bytes mean: the messages of the Kafka protocol, their codecs, and record batches.

Nothing here does I/O. Messages are declared in `api/`, one module each; `registry` lists them;
`codec` turns them into frames and back; `batch` is what a partition's records are made of; `errors`
is what can be wrong. Api modules are imported when they are first used.
"""
