"""Reading ranges of offsets, to their ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING

from ..types import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from .consumer import Consumer

#: First offset and end offset (exclusive) per partition; without an end, forever.
Bounds = Mapping[TopicPartition, tuple[int, int | None]]

_MAX_RECORDS = 2000
# The last records before an end may have been compacted away: then only the position shows that the
# end was reached, so it is polled.
_POLL_SECONDS = 0.2


async def between(
    consumer: Consumer, bounds: Bounds
) -> AsyncGenerator[tuple[TopicPartition, list[ConsumerRecord]], None]:
    """Yield the records within bounds, a list per partition at a time."""
    pending = {tp for tp, (start, stop) in bounds.items() if stop is None or start < stop}
    consumer.assign(pending)
    for tp in pending:
        consumer.seek(tp, bounds[tp][0])
    while pending:
        polled = await consumer.getmany(_POLL_SECONDS, _MAX_RECORDS)
        for tp, records in polled.items():
            stop = bounds[tp][1]
            yield tp, [record for record in records if stop is None or record.offset < stop]
        reached = {
            tp
            for tp in pending
            if (stop := bounds[tp][1]) is not None and await consumer.position(tp) >= stop
        }
        if reached:
            pending -= reached
            consumer.assign(pending)
