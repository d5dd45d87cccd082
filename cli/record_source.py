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

from .record_format import Row

_READ_BYTES = 256 * 1024
# More bytes than this without a delimiter are taken for a mistake.
_MAX_ROW_BYTES = 64 * 1024 * 1024
# Maximum number of chunks read ahead of sending.
_MAX_CHUNKS_AHEAD = 4


class InputError(Exception):
    """A record that cannot be sent, with its file and line."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of a file; an invalid one is represented by its error."""

    name: str
    #: What records are called in messages, and the number of the first; empty for a whole file.
    noun: str
    first: int
    rows: Sequence[Row | InputError]

    def location(self, index: int) -> str:
        """Return the file and line of a record, for messages."""
        number = f": {self.noun} {self.first + index:,}" if self.noun else ""
        return f"{self.name}{number}"


_Item = Chunk | BaseException | None


@dataclass(frozen=True, slots=True)
class Source:
    """Input files and their format."""

    files: Sequence[Path]
    #: Whether each file is one record.
    is_whole: bool
    delimiter: bytes
    parse: Callable[[bytes], Row]

    def chunks(self) -> Iterator[Chunk]:
        """Yield records in chunks, as they arrive. Blocks while reading."""
        if not self.files:
            stdin = sys.stdin.buffer
            # Bypass the buffered reader: its lock would be held while a thread waits for input.
            yield from self._chunks(getattr(stdin, "raw", stdin), "stdin")
        for path in self.files:
            if self.is_whole:
                yield self._chunk(str(path), "", 1, [path.read_bytes()])
            else:
                with path.open("rb", buffering=0) as file:
                    yield from self._chunks(file, str(path))

    def count(self) -> int | None:
        """Return the number of records in the files; None if it cannot be known, as of stdin."""
        if not self.files or self.is_whole:
            return len(self.files) or None
        total = 0
        for path in self.files:
            if not path.is_file():
                return None
            tail = b""
            with path.open("rb") as file:
                while data := file.read(_READ_BYTES):
                    *records, tail = (tail + data).split(self.delimiter)
                    total += len(records)
            total += bool(tail)
        return total

    def _chunks(self, file: IO[bytes], name: str) -> Iterator[Chunk]:
        noun = "line" if self.delimiter == b"\n" else "record"
        remainder, number = b"", 1
        while data := file.read(_READ_BYTES):
            *lines, remainder = (remainder + data).split(self.delimiter)
            if lines:
                yield self._chunk(name, noun, number, lines)
                number += len(lines)
            if len(remainder) > _MAX_ROW_BYTES:
                raise InputError(
                    f"{name}: {noun} {number:,}: larger than {_MAX_ROW_BYTES:,} bytes; check"
                    " --delimiter"
                )
        if remainder:
            yield self._chunk(name, noun, number, [remainder])

    def _chunk(self, name: str, noun: str, first: int, records: Sequence[bytes]) -> Chunk:
        rows: list[Row | InputError] = []
        chunk = Chunk(name, noun, first, rows)
        for index, data in enumerate(records):
            try:
                rows.append(self.parse(data))
            except ValueError as error:
                rows.append(InputError(f"{chunk.location(index)}: {error}"))
        return chunk


async def read(chunks: Iterator[Chunk]) -> AsyncIterator[Chunk]:
    """Yield chunks that a thread reads, so that sending goes on while it waits for input."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[_Item] = asyncio.Queue()
    slots = threading.Semaphore(_MAX_CHUNKS_AHEAD)
    is_closed = False

    def put(chunk: _Item) -> None:
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
