"""What is on disk: record batches in segments, exactly as they came over the wire.

A partition is a `log.Log`, made by `recovery.open_log`; the logs of a broker are a
`logdir.LogDirectory`. `disk` alone touches the operating system. Nothing here knows of sockets,
requests or consumers.
"""
