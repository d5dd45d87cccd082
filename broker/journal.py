"""The log of the catalogue, `__cluster_metadata`: of each change a record, on the device.

The controller writes it, and the other brokers fetch it from there. Each of them keeps what it took
over in a journal of its own, and so can start while the controller is down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from ottla.coord.catalogue import METADATA_TOPIC, KeyValue
from ottla.protocol.batch import Record, build_batch, split_batches
from ottla.protocol.schema import Buffer
from ottla.storage.config import LogConfig
from ottla.storage.logdir import LogDirectory

from .partition import Partition

LOG_NAME = f"{METADATA_TOPIC}-0"
_CONFIG = LogConfig(
    cleanup_policy="compact",
    segment_bytes=4 * 1024 * 1024,
    max_message_bytes=4 * 1024 * 1024,
    durability="fsync",
)
_READ_BYTES = 1024 * 1024
#: Records of one batch: a batch is read whole, and should not be large.
_RECORDS_PER_BATCH = 500


class Journal:
    """The log, open. It is the first of a data directory to be so."""

    def __init__(self, logs: LogDirectory) -> None:
        opened = logs.load_first(LOG_NAME, _CONFIG)
        self.partition = Partition(METADATA_TOPIC, 0, opened, logs.flusher)

    def records(self) -> Iterator[KeyValue]:
        """Give all that was written."""
        opened = self.partition.log
        offset = opened.start_offset
        while offset < opened.end_offset:
            records, next_offset = records_in(bytes(opened.read(offset, _READ_BYTES).view))
            if next_offset is None:
                break  # what was here has been compacted away
            yield from records
            offset = next_offset

    async def write(self, records: Sequence[KeyValue]) -> int:
        """Write records, wait until the device has them, and give the offset behind them."""
        now_ms = int(time.time() * 1000)
        last_offset = -1
        for start in range(0, len(records), _RECORDS_PER_BATCH):
            batch = build_batch(
                [
                    Record(offset=offset, timestamp=now_ms, key=key, value=value)
                    for offset, (key, value) in enumerate(
                        records[start : start + _RECORDS_PER_BATCH]
                    )
                ]
            )
            last_offset = self.partition.append(batch, now_ms).last_offset
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def flushed(error: Exception | None) -> None:
            if not done.done():
                done.set_exception(error) if error else done.set_result(None)

        self.partition.when_flushed(last_offset, flushed)
        await done
        return last_offset + 1


def records_in(data: Buffer) -> tuple[list[KeyValue], int | None]:
    """Give the records of batches, and the offset behind them, if there are any batches."""
    records: list[KeyValue] = []
    next_offset = None
    for batch in split_batches(data):
        next_offset = batch.next_offset
        for record in batch.records():
            key, value = record.key, record.value
            assert key is not None
            records.append((bytes(key), None if value is None else bytes(value)))
    return records, next_offset
