"""Where `ottla produce` gets its records: stdin or files, in lines, JSON rows or as they are."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .failures import Exit, Failure
from .rows import Row

_READ_BYTES = 256 * 1024
# Above so many bytes without a delimiter it is not what somebody means to send.
_LARGEST_ROW_BYTES = 64 * 1024 * 1024
# How far reading may be ahead of sending, in chunks.
_AHEAD = 4

_Chunk = list[Row] | BaseException | None


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from, and how they are to be read."""

    files: Sequence[Path]
    #: Each file is one record.
    is_whole: bool
    delimiter: bytes
    parse: Callable[[bytes], Row]

    def chunks(self) -> Iterator[list[Row]]:
        """Give records as they come, several at a time. Reading may block."""
        if not self.files:
            stdin = sys.stdin.buffer
            # Not the buffer, which has a lock: a thread that waits for input must not hold one.
            yield from self._rows(getattr(stdin, "raw", stdin), "stdin")
        for path in self.files:
            if self.is_whole:
                yield [self._row(path.read_bytes(), str(path), 1)]
            else:
                with path.open("rb", buffering=0) as file:
                    yield from self._rows(file, str(path))

    def _rows(self, file: IO[bytes], name: str) -> Iterator[list[Row]]:
        rest, number = b"", 0
        while data := file.read(_READ_BYTES):
            *lines, rest = (rest + data).split(self.delimiter)
            if len(rest) > _LARGEST_ROW_BYTES:
                raise Failure(f"{name}: a record of more than {_LARGEST_ROW_BYTES:,} bytes")
            if lines:
                yield [self._row(line, name, number + at) for at, line in enumerate(lines, 1)]
                number += len(lines)
        if rest:
            yield [self._row(rest, name, number + 1)]

    def _row(self, data: bytes, name: str, number: int) -> Row:
        try:
            return self.parse(data)
        except ValueError as error:
            raise Failure(f"{name}: record {number}: {error}", Exit.USAGE) from error


async def read(chunks: Iterator[list[Row]]) -> AsyncIterator[list[Row]]:
    """Read in a thread: what was sent is on its way while we wait for more to come."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[_Chunk] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD)
    is_over = False

    def put(chunk: _Chunk) -> None:
        room.acquire()
        if is_over or loop.is_closed():
            raise _NobodyWantsMore
        loop.call_soon_threadsafe(queue.put_nowait, chunk)

    def work() -> None:
        with suppress(_NobodyWantsMore):
            try:
                for chunk in chunks:
                    put(chunk)
            except Exception as error:  # noqa: BLE001  # it is raised by whoever waits for a chunk
                put(error)
            else:
                put(None)

    # A daemon: one that waits for a terminal cannot be told to end.
    threading.Thread(target=work, name="ottla-read", daemon=True).start()
    try:
        while (chunk := await queue.get()) is not None:
            room.release()
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk
    finally:
        is_over = True
        room.release()


class _NobodyWantsMore(BaseException):
    """Ends the thread."""
