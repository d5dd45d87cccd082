"""The metadata log, `__cluster_metadata`: one record per change, fsynced.

The controller appends to it, and the other brokers fetch it. Each of them keeps what it replayed in
a metadata log of its own, and so can start while the controller is down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from ottla.coord.metadata_image import METADATA_TOPIC, KeyValue
from ottla.protocol.batch import RecordBatch, build_batch
from ottla.protocol.compression import Compression
from ottla.storage.config import LogConfig
from ottla.storage.logdir import LogDirectory

from ..partitions.partition import Partition

LOG_NAME = f"{METADATA_TOPIC}-0"
_CONFIG = LogConfig(
    cleanup_policy="compact",
    segment_bytes=4 * 1024 * 1024,
    max_message_bytes=4 * 1024 * 1024,
    durability="fsync",
)
#: A batch is read whole, and should not be large.
_MAX_RECORDS_PER_BATCH = 500


class MetadataLog:
    """The open metadata log. It is the first log of a data directory to be opened."""

    def __init__(self, logs: LogDirectory) -> None:
        log = logs.load_first(LOG_NAME, _CONFIG)
        self.partition = Partition(METADATA_TOPIC, 0, log, logs.flusher)

    async def records(self) -> AsyncIterator[KeyValue]:
        """Yield all records. Raises BatchError."""
        async for batch in self.partition.batches():
            for record in read_key_values(batch):
                yield record

    async def append(self, records: Sequence[KeyValue]) -> int:
        """Append records, wait until they are fsynced, and return the log end offset."""
        now_ms = int(time.time() * 1000)
        last_offset = -1
        for start in range(0, len(records), _MAX_RECORDS_PER_BATCH):
            batch = build_key_value_batch(records[start : start + _MAX_RECORDS_PER_BATCH], now_ms)
            last_offset = self.partition.append(batch, now_ms).last_offset
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def complete(error: Exception | None) -> None:
            if not flushed.done():
                flushed.set_exception(error) if error else flushed.set_result(None)

        self.partition.when_flushed(last_offset, complete)
        await flushed
        return last_offset + 1


def build_key_value_batch(
    records: Sequence[KeyValue], timestamp_ms: int, compression: Compression = Compression.NONE
) -> bytearray:
    """Build a batch of records for an internal topic."""
    return build_batch(
        [(offset, timestamp_ms, key, value, ()) for offset, (key, value) in enumerate(records)],
        compression=compression,
    )


def read_key_values(batch: RecordBatch) -> list[KeyValue]:
    """Return the records of a batch of an internal topic. Raises BatchError."""
    batch.validate()
    records: list[KeyValue] = []
    for record in batch.records():
        assert record.key is not None
        records.append((record.key, record.value))
    return records
