"""The log of the image, `__cluster_metadata`: of each change a record, on the device.

The controller writes it, and the other brokers fetch it from there. Each of them keeps what it took
over in a journal of its own, and so can start while the controller is down.
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
#: Records of one batch: a batch is read whole, and should not be large.
_RECORDS_PER_BATCH = 500


class MetadataLog:
    """The log, open. It is the first of a data directory to be so."""

    def __init__(self, logs: LogDirectory) -> None:
        opened = logs.load_first(LOG_NAME, _CONFIG)
        self.partition = Partition(METADATA_TOPIC, 0, opened, logs.flusher)

    async def records(self) -> AsyncIterator[KeyValue]:
        """Give all that was written."""
        async for batch in self.partition.batches():
            for record in read_key_values(batch):
                yield record

    async def append(self, records: Sequence[KeyValue]) -> int:
        """Write records, wait until the device has them, and give the offset behind them."""
        now_ms = int(time.time() * 1000)
        last_offset = -1
        for start in range(0, len(records), _RECORDS_PER_BATCH):
            batch = build_key_value_batch(records[start : start + _RECORDS_PER_BATCH], now_ms)
            last_offset = self.partition.append(batch, now_ms).last_offset
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def flushed(error: Exception | None) -> None:
            if not done.done():
                done.set_exception(error) if error else done.set_result(None)

        self.partition.when_flushed(last_offset, flushed)
        await done
        return last_offset + 1


def build_key_value_batch(
    records: Sequence[KeyValue], time_ms: int, compression: Compression = Compression.NONE
) -> bytearray:
    """Build a batch of records, for a log of the broker's own."""
    return build_batch(
        [(offset, time_ms, key, value, ()) for offset, (key, value) in enumerate(records)],
        compression=compression,
    )


def read_key_values(batch: RecordBatch) -> list[KeyValue]:
    """Give the records of such a batch. Raises BatchError."""
    batch.validate()
    found: list[KeyValue] = []
    for record in batch.records():
        assert record.key is not None
        found.append((record.key, record.value))
    return found
