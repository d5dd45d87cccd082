"""Acquisition of the records of a share partition: read from the log, lock, and return.

Whole batches are read and returned. Those with records that were not acquired are among them if
others before and after them were: a member takes notice only of what it has acquired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.coord.share.partition import FetchedBatch, InFlightRange
from ottla.protocol.batch import RecordBatch, split_batches
from ottla.storage.errors import OffsetOutOfRangeError
from ottla.storage.read_mode import NO_WAITING, ColdReadError

from .led_share_partition import now_ms

if TYPE_CHECKING:
    from ottla.storage.log import LogSlice
    from ottla.storage.transaction_index import AbortedTransaction

    from .led_share_partition import LedSharePartition

#: How much of the log one acquisition looks at, beyond a larger first batch.
_READ_BYTES = 1024 * 1024


class Acquired(NamedTuple):
    """What a member has acquired: batches of the log, and which of their records."""

    data: memoryview
    ranges: list[InFlightRange]
    stored: asyncio.Future[None]


class AcquisitionLimits(NamedTuple):
    """What a member asks for."""

    member_id: str
    max_records: int
    max_bytes: int
    is_strict: bool
    is_committed: bool


async def acquire(led: LedSharePartition, limits: AcquisitionLimits) -> Acquired | None:
    """Acquire records that are available, if there are any. Raises what reading a log raises."""
    async with led.fetch_lock:
        while led.error is None:
            records = led.records
            assert records is not None
            offset = records.fetch_offset()
            if offset is None:
                return None
            batches = await _read(led, offset, limits)
            if not batches:
                return None
            data, fetched = batches
            ranges = records.acquire(
                limits.member_id,
                offset,
                fetched,
                limits.max_records,
                now_ms(),
                is_strict=limits.is_strict,
            )
            if ranges:
                return Acquired(_trim(data, fetched, ranges), ranges, led.store())
            # Nothing but markers, aborted transactions, and records at the delivery limit.
            led.store()
            await asyncio.sleep(0)
    return None


async def _read(
    led: LedSharePartition, offset: int, limits: AcquisitionLimits
) -> tuple[memoryview, list[FetchedBatch]] | None:
    """Read batches from an offset on; None if there are none yet."""
    partition = led.partition
    max_bytes = min(limits.max_bytes, _READ_BYTES)
    end_offset = partition.last_stable_offset if limits.is_committed else partition.high_watermark
    if offset >= end_offset:
        if offset > partition.log.end_offset and led.records is not None:
            led.records.truncate(partition.log.end_offset)  # By an unclean election.
        return None
    aborted: Sequence[AbortedTransaction] = ()
    try:
        try:
            with NO_WAITING:
                log_slice, aborted = _read_slice(led, offset, max_bytes, limits)
        except ColdReadError:
            cold_read = partition.cold_read(offset, max_bytes, is_committed=limits.is_committed)
            await asyncio.to_thread(cold_read.load)
            cold_read.install()
            log_slice, aborted = _read_slice(led, offset, max_bytes, limits)
    except OffsetOutOfRangeError:
        assert led.records is not None
        led.records.move_start(partition.log.start_offset)
        return None
    if not log_slice.view:
        return None
    if not log_slice.is_in_page_cache():
        await asyncio.to_thread(log_slice.load_into_page_cache)
    # Not from the mapped view: a read error of a mapped page kills the process (SIGBUS).
    data = memoryview(log_slice.segment.read(log_slice.position, len(log_slice.view)))
    return data, [
        FetchedBatch(batch.base_offset, batch.last_offset, _is_visible(batch, aborted))
        for batch in split_batches(data)
    ]


def _read_slice(
    led: LedSharePartition, offset: int, max_bytes: int, limits: AcquisitionLimits
) -> tuple[LogSlice, Sequence[AbortedTransaction]]:
    if limits.is_committed:
        return led.partition.read_committed(offset, max_bytes)
    return led.partition.read(offset, max_bytes), ()


def _is_visible(batch: RecordBatch, aborted: Sequence[AbortedTransaction]) -> bool:
    """Whether a batch has records for consumers."""
    if batch.is_control:
        return False
    return not batch.is_transactional or not any(
        one.producer_id == batch.producer_id
        and one.first_offset <= batch.base_offset <= one.last_offset
        for one in aborted
    )


def _trim(
    data: memoryview, fetched: Sequence[FetchedBatch], ranges: Sequence[InFlightRange]
) -> memoryview:
    """Return the batches from the first to the last that has acquired records."""
    first, last = ranges[0].first, ranges[-1].last
    start, end = 0, 0
    for batch, (batch_first, batch_last, _is_visible) in zip(
        split_batches(data), fetched, strict=True
    ):
        if batch_last < first:
            start += batch.size
        if batch_first <= last:
            end += batch.size
    return data[start:end]
