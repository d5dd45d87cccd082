"""Recompression of produced batches for topics with `compression.type`.

With the default, `producer`, the log keeps the codec of each batch. Any other value is the codec of
the log: a batch with another one is decompressed and compressed again, in a thread, after its
records were validated. What identifies it stays: producer, sequence, transaction and timestamps.
"""

from __future__ import annotations

from ottla.protocol.batch import RecordBatch, wrap_records
from ottla.protocol.compression import Compression

from .config import LogConfig
from .errors import BatchTooLargeError

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


def needs_recompression(compression: int, config: LogConfig) -> bool:
    """Whether a log stores batches with another codec than this one."""
    name = config.compression_type
    return name != "producer" and _CODECS[name] != compression


def recompress(batch: RecordBatch, config: LogConfig, max_decompressed_bytes: int) -> RecordBatch:
    """Return a valid batch with the codec of the log. Raises BatchError and BatchTooLargeError."""
    codec = _CODECS[config.compression_type]
    recompressed = RecordBatch(
        wrap_records(
            batch.payload(max_decompressed_bytes),
            batch.record_count,
            batch.base_timestamp,
            batch.max_timestamp,
            compression=codec,
            level=_level(codec, config),
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
        )
    )
    limit = min(config.max_message_bytes, config.segment_bytes)
    if recompressed.size > limit:
        raise BatchTooLargeError(recompressed.size, limit)
    return recompressed


def _level(codec: Compression, config: LogConfig) -> int | None:
    if codec is Compression.GZIP:
        return None if config.compression_gzip_level < 0 else config.compression_gzip_level
    if codec is Compression.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec is Compression.ZSTD else None
