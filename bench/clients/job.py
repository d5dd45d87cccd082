"""What each client is asked to do, and with which settings, as far as it has them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

T = TypeVar("T")

KIB, MIB = 1024, 1024**2
VALUE_BYTES = 100
LINGER_MS = 5
BATCH_BYTES = 64 * KIB
#: What may wait to be acknowledged.
BUFFER_BYTES = 64 * MIB
FETCH_BYTES = 50 * MIB
PARTITION_FETCH_BYTES = MIB
#: Records that are taken in one call, where there is such a thing.
TAKEN = 500
#: Receipts that nobody has looked at yet, at most; then those of the older half are looked at.
UNSEEN = 20_000
#: Tasks that wait for their receipts at a time.
TASKS = 1_000
ANSWER_SECONDS = 60
#: Different values, after which they come again: further apart than a codec can see.
BLOCK = 1_000


def block() -> list[tuple[bytes | None, bytes]]:
    """Give keys, and values as a shop would write them."""
    pairs: list[tuple[bytes | None, bytes]] = []
    for n in range(BLOCK):
        text = b'{"order":%08d,"item":"%s","count":%d,"price":%d.%02d,"paid":true,"shop":"' % (
            n * 7919,
            (b"tea", b"milk", b"coffee", b"sugar")[n * 31 % 4],
            n * 17 % 9 + 1,
            n * 13 % 90 + 10,
            n * 37 % 100,
        )
        pairs.append((b"%08d" % n, text.ljust(VALUE_BYTES - 2, b"x") + b'"}'))
    return pairs


@dataclass(frozen=True)
class Job:
    """Records of a topic: to be produced, until time or records are up; or to be consumed, all."""

    address: str
    #: The broker's process.
    pid: int
    topic: str
    partitions: int
    codec: str
    keyed: bool
    seconds: float
    records: int

    def values(self) -> Iterator[bytes]:
        """Give values alone."""
        return self._blocks([value for _key, value in block()])

    def records_to_send(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Give values, with keys if that is the job."""
        return self._blocks(block() if self.keyed else [(None, value) for _key, value in block()])

    def _blocks(self, found: list[T]) -> Iterator[T]:
        def blocks() -> Iterator[list[T]]:
            end, left = time.perf_counter() + self.seconds, self.records
            while time.perf_counter() < end and left > 0:
                left -= len(found)
                yield found

        return chain.from_iterable(blocks())
