"""The metadata log, `__cluster_metadata`: one batch per change, fsynced.

The controller appends to it, and the other brokers fetch it. Each of them keeps what it replayed in
a metadata log of its own, and so can start while the controller is down.

A batch is whole or missing, after a power cut too, and it is fetched whole: no broker ever applies
half of a change. A change has at most 16 MiB, compressed; a larger one fails.

The leader epoch of a batch is the controller epoch in which it was written; see
`coord/metadata_image.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence

from ottla.coord.metadata_image import METADATA_TOPIC, KeyValue
from ottla.protocol.batch import RecordBatch, build_batch
from ottla.protocol.compression import Compression
from ottla.storage.config import LogConfig
from ottla.storage.errors import StorageError
from ottla.storage.logdir import LogDirectory

from ..observability.metrics import TopicTraffic
from ..partitions.partition import Partition

logger = logging.getLogger(__name__)

LOG_NAME = f"{METADATA_TOPIC}-0"
_MAX_BATCH_BYTES = 16 * 1024 * 1024
_CONFIG = LogConfig(
    cleanup_policy="compact",
    segment_bytes=_MAX_BATCH_BYTES,
    max_message_bytes=_MAX_BATCH_BYTES,
    durability="fsync",
)
#: Changes with more records than this are compressed.
_MAX_UNCOMPRESSED_RECORDS = 500


class MetadataLog:
    """The open metadata log. It is the first log of a data directory to be opened."""

    def __init__(self, logs: LogDirectory) -> None:
        log = logs.load_first(LOG_NAME, _CONFIG)
        self.partition = Partition(METADATA_TOPIC, 0, log, logs.flusher, TopicTraffic())

    async def records(self) -> AsyncIterator[KeyValue]:
        """Yield all records. Raises BatchError."""
        async for batch in self.partition.batches():
            for record in read_key_values(batch):
                yield record

    @property
    def end_offset(self) -> int:
        """The log end offset."""
        return self.partition.log.end_offset

    def start_epoch(self, epoch: int) -> None:
        """Append in this controller epoch from now on."""
        self.partition.set_leader_epoch(max(epoch, self.partition.log.leader_epochs.current))

    async def append(self, records: Sequence[KeyValue]) -> int:
        """Append records as one batch, fsync it, and return the log end offset: all or nothing.

        Raises OSError or StorageError. The log is then as before, or offline.
        """
        now_ms = int(time.time() * 1000)
        is_large = len(records) > _MAX_UNCOMPRESSED_RECORDS
        batch = build_key_value_batch(
            records, now_ms, Compression.ZSTD if is_large else Compression.NONE
        )
        log = self.partition.log
        if log.start_leader_epoch(self.partition.leader_epoch):
            # Before the append: on a full disk the batch may fit, and then could neither be made
            # durable nor be removed.
            await asyncio.to_thread(log.save_leader_epochs)
        appended = self.partition.append(batch, now_ms)
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def complete(error: Exception | None) -> None:
            if not flushed.done():
                flushed.set_exception(error) if error else flushed.set_result(None)

        self.partition.when_flushed(appended.last_offset, complete)
        try:
            await flushed
        except (OSError, StorageError):
            if log.recovery_point <= appended.last_offset:
                self._remove(appended.base_offset)
                raise
        return appended.last_offset + 1

    def _remove(self, offset: int) -> None:
        """Remove a batch that was not fsynced: a later fsync would have followers apply it."""
        log = self.partition.log
        if log.offline_reason is not None:
            return
        try:
            log.truncate(offset)
        except (OSError, StorageError) as error:
            logger.error("the metadata log is offline: a failed change could not be removed")
            log.take_offline(str(error))


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
