"""Storage: record batches on disk, in segments, exactly as they came over the wire.

The log of a partition is a `log.Log`, opened by `recovery.open_log`; the logs of a broker are a
`logdir.LogDirectory`. Only `disk` touches the operating system. Nothing here knows of sockets,
requests or consumers.
"""
