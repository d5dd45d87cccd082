"""The metadata store of a simulated cluster: that of `MemoryStore`, behind the simulated network.

Requests and answers are late, some answers are lost, and a machine can be cut off from the store.
What the store does by itself, when a lease ends, does not depend on the process that has asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from ottla.broker.cluster.store.memory_store import MemoryStore, MemoryStoreServer
from ottla.broker.cluster.store.metadata_store import (
    Change,
    Compare,
    Operation,
    TransactionResult,
)

from .loop import Process, VirtualLoop
from .network import Network

_LOST_ANSWERS = 0.02
_CUT_OFF_SECONDS = 0.2


class SimulatedStoreServer(MemoryStoreServer):
    """The store, a process of its own."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._process = Process("store")

    def _expiry_timer(self, lease_id: int, seconds: float) -> asyncio.TimerHandle:
        return self._loop.call_at(
            self._loop.time() + seconds, self.end_lease, lease_id, context=self._process.context
        )


class SimulatedStore(MemoryStore):
    """The connection of one broker to the store."""

    def __init__(self, server: SimulatedStoreServer, network: Network) -> None:
        super().__init__(server)
        self._network = network

    async def watch(self, revision: int, prefix: bytes = b"") -> AsyncGenerator[Change]:
        async with aclosing(super().watch(revision, prefix)) as changes:
            async for change in changes:
                await asyncio.sleep(self._network.delay())
                yield change

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TransactionResult:
        if self._network.random.random() < _LOST_ANSWERS:
            self.lose_answers = self._network.random.choice((1, 2))
        result = await super().transact(compares, operations)
        await asyncio.sleep(self._network.delay())
        return result

    async def _request(self) -> MemoryStoreServer:
        await asyncio.sleep(self._network.delay() if self._is_connected else _CUT_OFF_SECONDS)
        return await super()._request()
