"""What consumers have in common: they are started, read by one task, fail, and are closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from ..cluster import Cluster
from ..errors import ClosedError, ConsumerError
from .background_tasks import BackgroundTasks

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Lifecycle:
    """A consumer with background tasks. `arrived` is set when a reader is to look again."""

    def __init__(self, cluster: Cluster, arrived: asyncio.Event) -> None:
        self._cluster = cluster
        self._arrived = arrived
        self._tasks = BackgroundTasks(self._on_task_failure)
        #: The error of a background task, raised by every further read.
        self._failure: BaseException | None = None
        self._is_started = False
        self._is_closed = False
        self._has_ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A block that ends without an error has processed what it was given.
        await self._close(include_processing=kind is None)

    async def start(self) -> None:
        """Connect, and start to fetch. Raises ClientError and KafkaError."""
        self._check_open()
        if self._is_started:
            return
        try:
            await self._cluster.retry(lambda: self._cluster.refresh([]), what="connecting")
            await self._start()
        except BaseException:
            await self._close(include_processing=False)
            raise

    async def _start(self) -> None:
        """Start the background tasks: the client is connected."""
        raise NotImplementedError

    async def _close(self, *, include_processing: bool) -> None:
        if self._is_closed:
            # Wait for the other caller: the program may end when this returns.
            await self._has_ended.wait()
            return
        self._is_closed = True
        self._arrived.set()
        try:
            await self._end(include_processing=include_processing)
        finally:
            try:
                await self._tasks.stop()
            finally:
                self._has_ended.set()
                await self._cluster.close()

    async def _end(self, *, include_processing: bool) -> None:
        """Commit or acknowledge, and leave the group."""
        raise NotImplementedError

    def _on_task_failure(self, name: str, error: BaseException) -> None:
        if not self._is_closed:
            logger.error("%s failed: %r", name, error)
            self._failure = error
            self._arrived.set()

    async def _unless_closed(self, read: Callable[[], Awaitable[T]]) -> T:
        try:
            return await read()
        except ClosedError:
            if not self._is_closed:
                raise  # something else was closed
            raise StopAsyncIteration from None

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("The consumer is closed")

    def _check_readable(self) -> None:
        """Raise if the consumer cannot deliver records any more."""
        self._check_open()
        if self._failure is not None:
            raise self._failure
        if not self._is_started:
            raise ConsumerError("The consumer is not started: use `async with`, or call start()")
