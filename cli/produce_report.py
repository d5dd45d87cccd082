"""What became of the records of `ottla produce`: acknowledgements in order, failures, counts."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import output
from .errors import Exit, Failure, failure_of
from .record_source import Chunk, InputError

if TYPE_CHECKING:
    from ottla.client.types import RecordMetadata

# Skipped records that are reported one by one; the summary counts all.
_MAX_WARNINGS = 10


class Report:
    """Prints acknowledgements in the order of the records, and counts what was sent and failed."""

    def __init__(
        self, printed: Callable[[RecordMetadata], None] | None, *, skips: bool = False
    ) -> None:
        self._printed = printed
        self._skips = skips
        self._waiting: deque[tuple[asyncio.Future[RecordMetadata], Chunk, int]] = deque()
        self._first: Failure | None = None
        self.sent = 0
        self.failed = 0
        self._broken_output: OSError | None = None
        #: Done when no more records may be sent.
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expect(self, future: asyncio.Future[RecordMetadata], chunk: Chunk, index: int) -> None:
        """Count a record once it is acknowledged or failed."""
        self._waiting.append((future, chunk, index))
        future.add_done_callback(self._settle)

    def fail(self, error: Exception, location: str = "") -> None:
        """Count a record that failed; stop unless such records are skipped.

        Errors that a retry might fix are about the cluster, not the record: they always stop.
        """
        failure = _failure(error, location)
        self.failed += 1
        if self._first is None:
            self._first = failure
        if self._skips and not getattr(error, "retriable", False):
            if self.failed <= _MAX_WARNINGS:
                output.note(f"warning: skipped: {failure.message}")
        else:
            self._stop()

    def finish(self, error: BaseException | None, total: int | None) -> None:
        """Print the counts, and raise Failure unless everything was sent.

        `error` ended reading, as an unreadable file does. `total` is the number of records of the
        input, if it is known.
        """
        if self._broken_output is not None:
            raise self._broken_output
        if error is not None:
            if not isinstance(error, Exception):
                raise error
            self._first = self._first or _failure(error, "")
        sent = f"{output.counted(self.sent, 'record')} sent"
        if self._first is None:
            if sys.stderr.isatty():
                output.note(sent)
            return
        summary = f"{sent}, {self.failed:,} failed"
        if self.stopped.done() or error is not None:
            summary += (
                ", the rest of the input was not sent"
                if total is None
                else f", {total - self.sent - self.failed:,} not sent"
            )
        code = Exit.PARTIAL if self.sent else self._first.exit_code
        raise Failure(f"{self._first.message} ({summary})", code)

    def _stop(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)

    def _settle(self, _: object) -> None:
        while self._waiting and self._waiting[0][0].done():
            future, chunk, index = self._waiting.popleft()
            try:
                metadata = future.result()
            except Exception as error:  # noqa: BLE001  # reported by `finish`
                self.fail(error, chunk.location(index))
                continue
            self.sent += 1
            if self._printed is not None:
                try:
                    self._printed(metadata)
                except OSError as error:  # a closed pipe; raised by `finish`
                    self._broken_output = error
                    self._stop()


def _failure(error: Exception, location: str) -> Failure:
    if isinstance(error, InputError):
        return Failure(str(error), Exit.FAILED)
    failure = failure_of(error)
    if failure is None:
        raise error  # A bug: show its traceback.
    if location:
        return Failure(f"{location}: {failure.message}", failure.exit_code)
    return failure
