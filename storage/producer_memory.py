"""The memory of the producer states of all logs, and which of them are evicted first.

A client can make a broker remember as many producers as it likes: each InitProducerId and one batch
per partition is a state that stays for a day. The states of all logs are therefore counted
together, and the least recently active ones are evicted when memory is needed. A producer with an
open transaction is never evicted. An evicted producer that continues is accepted with any sequence;
only a batch that it sends again, because the response was lost, can no longer be recognized.

Sizes are estimates of the Python objects. Everything here belongs to the thread of the logs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .producer_states import ProducerStates

#: Estimated memory of a producer's state, and of each batch in it.
PRODUCER_BYTES = 400
BATCH_BYTES = 200


class ProducerMemory:
    """The producer states of all logs."""

    def __init__(self) -> None:
        self.size_bytes = 0
        #: The logs that have producers.
        self.logs: dict[ProducerStates, None] = {}
        #: Called when a producer was added; may call `evict`.
        self.on_growth: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        return f"<ProducerMemory {self.size_bytes} bytes in {len(self.logs)} logs>"

    def evict(self, size_bytes: int) -> int:
        """Evict the least recently active producers of all logs; return how many bytes that freed.

        At least `size_bytes`, unless too few producers are without an open transaction.
        """
        oldest = [
            (last_append_ms, number, states)
            for number, states in enumerate(self.logs)
            if (last_append_ms := states.oldest_idle_ms()) is not None
        ]
        heapq.heapify(oldest)
        before = self.size_bytes
        while oldest and before - self.size_bytes < size_bytes:
            _, number, states = oldest[0]
            states.evict_oldest_idle()
            last_append_ms = states.oldest_idle_ms()
            if last_append_ms is None:
                heapq.heappop(oldest)
            else:
                heapq.heapreplace(oldest, (last_append_ms, number, states))
        return before - self.size_bytes
