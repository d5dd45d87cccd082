"""Input of `ottla produce`: stdin or files, as lines, JSON rows or whole files."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .errors import Exit, Failure
from .record_format import Row

_READ_BYTES = 256 * 1024
# More bytes than this without a delimiter are taken for a mistake.
_MAX_ROW_BYTES = 64 * 1024 * 1024
# Maximum number of chunks read ahead of sending.
_MAX_CHUNKS_AHEAD = 4

_Chunk = list[Row] | BaseException | None


@dataclass(frozen=True, slots=True)
class Source:
    """Input files and their format."""

    files: Sequence[Path]
    #: Whether each file is one record.
    is_whole: bool
    delimiter: bytes
    parse: Callable[[bytes], Row]

    def chunks(self) -> Iterator[list[Row]]:
        """Yield records in chunks, as they arrive. Blocks while reading."""
        if not self.files:
            stdin = sys.stdin.buffer
            # Bypass the buffered reader: its lock would be held while a thread waits for input.
            yield from self._rows(getattr(stdin, "raw", stdin), "stdin")
        for path in self.files:
            if self.is_whole:
                yield [self._row(path.read_bytes(), str(path), 1)]
            else:
                with path.open("rb", buffering=0) as file:
                    yield from self._rows(file, str(path))

    def _rows(self, file: IO[bytes], name: str) -> Iterator[list[Row]]:
        remainder, number = b"", 0
        while data := file.read(_READ_BYTES):
            *lines, remainder = (remainder + data).split(self.delimiter)
            if len(remainder) > _MAX_ROW_BYTES:
                raise Failure(
                    f"{name}: record larger than {_MAX_ROW_BYTES:,} bytes; check --delimiter"
                )
            if lines:
                yield [self._row(line, name, number + index) for index, line in enumerate(lines, 1)]
                number += len(lines)
        if remainder:
            yield [self._row(remainder, name, number + 1)]

    def _row(self, data: bytes, name: str, number: int) -> Row:
        try:
            return self.parse(data)
        except ValueError as error:
            raise Failure(f"{name}: record {number}: {error}", Exit.USAGE) from error


async def read(chunks: Iterator[list[Row]]) -> AsyncIterator[list[Row]]:
    """Yield chunks that a thread reads, so that sending goes on while it waits for input."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[_Chunk] = asyncio.Queue()
    slots = threading.Semaphore(_MAX_CHUNKS_AHEAD)
    is_closed = False

    def put(chunk: _Chunk) -> None:
        slots.acquire()
        if is_closed or loop.is_closed():
            raise _Closed
        loop.call_soon_threadsafe(queue.put_nowait, chunk)

    def work() -> None:
        with suppress(_Closed):
            try:
                for chunk in chunks:
                    put(chunk)
            except Exception as error:  # noqa: BLE001  # raised by the reader of the queue
                put(error)
            else:
                put(None)

    # A daemon thread: one that waits for a terminal cannot be interrupted.
    threading.Thread(target=work, name="ottla-read", daemon=True).start()
    try:
        while (chunk := await queue.get()) is not None:
            slots.release()
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk
    finally:
        is_closed = True
        slots.release()


class _Closed(BaseException):
    """Ends the reader thread."""
