"""A link between a client and a server that can be cut, in both directions or in one.

async with TcpLink(server_port) as link:
    connect(link.port)
    link.cut()              # sockets stay open, and nothing passes
    link.lose_answers()     # requests pass, answers do not
    link.restore()          # resets the connections that lost something
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from harness.daemon import HOST


class TcpLink:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server
        self.port: int
        self._passes_requests = self._passes_answers = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Requests that passed while their answers were lost.
        self.unanswered = asyncio.Event()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def cut(self) -> None:
        self._passes_requests = self._passes_answers = False

    def lose_answers(self) -> None:
        self.unanswered.clear()
        self._passes_answers = False

    def restore(self) -> None:
        self._passes_requests = self._passes_answers = True
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            answers, requests = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(requests)
        for pump in (self._pump(reader, requests, True), self._pump(answers, writer, False)):
            task = asyncio.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_request: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self._passes_requests if is_request else self._passes_answers:
                    writer.write(data)
                    await writer.drain()
                elif not is_request and self._passes_requests:
                    self.unanswered.set()
        writer.close()
        self._writers.discard(writer)
