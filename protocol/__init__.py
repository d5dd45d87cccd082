"""The Kafka wire protocol: messages, their codecs, frames and record batches. No I/O.

`api/` declares the messages, one module per API; `registry` lists the APIs and their versions;
`codec` encodes and decodes requests and responses; `frame` splits a stream into frames; `batch` and
`records` are the record batch format; `consumer` is the protocol between members of a group;
`errors` has the error codes and exceptions. API modules are imported on first use.
"""
