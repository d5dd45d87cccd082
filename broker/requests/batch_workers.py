"""Threads for work inside record batches: (de)compression, long validations and cold reads.

None of it runs on the event loop, where it would hold up all connections: a batch of four kilobytes
may decompress to 128 MiB. The codecs and the validator release the GIL.

Work is done in small steps, and a connection has one step under way at a time, so connections take
turns. Two kinds of threads bound the time that a step waits for others:

- Most batches are small. Up to `SMALL_BYTES`, decompressed, they are validated by two threads, and
  a step takes milliseconds.
- A batch that turns out to be larger goes to a single thread, beside which small ones go on. So no
  more than one large batch is decompressed at a time, whatever clients send.

Lookups, which read from the disk, have threads of their own.

Requests that wait for validation hold their records in memory: beyond queued.max.request.bytes, or
with too many large batches waiting, they fail with REQUEST_TIMED_OUT, which clients retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TypeVar

from ottla.protocol.batch import RecordBatch
from ottla.protocol.errors import BatchError, ErrorCode
from ottla.protocol.validation import DecompressionFailedError
from ottla.storage.config import LogConfig
from ottla.storage.recompression import needs_recompression, recompress
from ottla.storage.timestamp_search import Step, Steps
from ottla.storage.validation import validate_header, validate_records

from .errors import EXPECTED_ERRORS, ApiError

#: Decompressed size of a batch up to which it is small.
SMALL_BYTES = 8 * 1024 * 1024
#: A step does not start another batch after this time.
_STEP_SECONDS = 0.005
#: Large batches that may wait for decompression.
_MAX_LARGE_BATCHES = 8

T = TypeVar("T")

#: A batch, and the config of the log that it is to be appended to.
ProducedBatch = tuple[RecordBatch, LogConfig]


class BatchWorkers:
    """The threads of one broker, started on first use.

    `max_decompressed_bytes` returns the decompressed size above which batches are rejected, and
    `max_queued_bytes` the limit on batches that wait for validation.
    """

    def __init__(
        self, max_decompressed_bytes: Callable[[], int], max_queued_bytes: Callable[[], int]
    ) -> None:
        self._max_bytes = max_decompressed_bytes
        self._max_queued_bytes = max_queued_bytes
        self._small = ThreadPoolExecutor(2, thread_name_prefix="validator")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="decompressor")
        self._lookups = ThreadPoolExecutor(2, thread_name_prefix="lookup")
        #: Bytes of batches that are being validated, or wait for it.
        self.queued_bytes = 0
        #: Batches for the single thread that decompresses large ones.
        self.large_batches = 0

    async def validate(
        self, batches: Sequence[ProducedBatch], now_ms: int
    ) -> list[RecordBatch | Exception | None]:
        """Validate produced batches; return for each of them why it is rejected, or None.

        Corrects max timestamps in their headers; see `validation.validate_records`. A batch that
        the log stores with another codec is returned with that codec.
        """
        size_bytes = sum(batch.size for batch, _config in batches)
        if self.queued_bytes and self.queued_bytes + size_bytes > self._max_queued_bytes():
            busy = _busy("queued.max.request.bytes are waiting for validation")
            return [busy for _ in batches]
        self.queued_bytes += size_bytes
        try:
            return await self._validate(batches, now_ms)
        finally:
            self.queued_bytes -= size_bytes

    async def look_up(self, steps: Steps[T]) -> T:
        """Run the steps of a search in a log, and return its result; see `timestamp_search`."""
        try:
            step = next(steps)
            while True:
                try:
                    await self._look_up_step(step)
                except BatchError as error:
                    step = steps.throw(error)
                else:
                    step = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result

    def close(self) -> None:
        """Stop the threads; steps that have not started are dropped."""
        for threads in (self._small, self._large, self._lookups):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _validate(
        self, batches: Sequence[ProducedBatch], now_ms: int
    ) -> list[RecordBatch | Exception | None]:
        results: list[RecordBatch | Exception | None] = []
        while len(results) < len(batches):
            max_bytes = min(SMALL_BYTES, self._max_bytes())
            remaining = batches[len(results) :]
            results += await _run(self._small, _validate_some, remaining, now_ms, max_bytes)
        for index, error in enumerate(results):
            if isinstance(error, DecompressionFailedError) and self._max_bytes() > SMALL_BYTES:
                try:
                    results[index] = await self._run_large(_validate, batches[index], now_ms)
                except ApiError as busy:
                    results[index] = busy.with_traceback(None)
        return results

    async def _look_up_step(self, step: Step) -> None:
        max_bytes = self._max_bytes()
        try:
            await _run(self._lookups, step, min(SMALL_BYTES, max_bytes))
        except BatchError:
            if max_bytes <= SMALL_BYTES:
                raise
            await self._run_large(step)

    async def _run_large(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function, with the limit on decompression as its last argument."""
        if self.large_batches >= _MAX_LARGE_BATCHES:
            raise _busy(f"{self.large_batches} large batches are waiting for decompression")
        self.large_batches += 1
        try:
            return await _run(self._large, function, *arguments, self._max_bytes())
        finally:
            self.large_batches -= 1


async def _run(threads: ThreadPoolExecutor, function: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)


def _busy(reason: str) -> ApiError:
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"The broker is busy: {reason}")


def _validate_some(
    batches: Sequence[ProducedBatch], now_ms: int, max_bytes: int
) -> list[RecordBatch | Exception | None]:
    """Validate one batch or more; return the results so far."""
    end = perf_counter() + _STEP_SECONDS
    results = []
    for batch in batches:
        results.append(_validate(batch, now_ms, max_bytes))
        if perf_counter() > end:
            break
    return results


def _validate(
    produced: ProducedBatch, now_ms: int, max_bytes: int
) -> RecordBatch | Exception | None:
    batch, config = produced
    try:
        validate_header(batch, config)
        validate_records(batch, config, now_ms, max_bytes)
        if needs_recompression(batch.compression, config):
            return recompress(batch, config, max_bytes)
    except EXPECTED_ERRORS as error:
        # Tracebacks reference the request, and what it was decompressed to.
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    return None
