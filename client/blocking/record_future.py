"""The future of a record that a thread has sent.

A future of the standard library has a lock and a condition of its own, which take several times as
long as everything else that is done for a record. These futures share one lock, and a thread that
waits for one of them adds a waiter to it, as `concurrent.futures.wait` and `as_completed` do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from ..types import RecordMetadata

# As in concurrent.futures.
_RUNNING = "RUNNING"
_FINISHED = "FINISHED"


class RecordFuture(Future[RecordMetadata]):
    """The future of a record's metadata. It cannot be cancelled.

    `before_wait` is called in threads that are about to wait for it.
    """

    _condition: Any
    _exception: BaseException | None
    _waiters: list[Any]
    _done_callbacks: list[Callable[[Future[RecordMetadata]], object]]
    _invoke_callbacks: Callable[[], None]

    def __init__(self, lock: threading.RLock, before_wait: Callable[[], None]) -> None:
        self._before_wait = before_wait
        # Everything that the base class sets, whose methods use it.
        self._condition = lock
        self._state = _RUNNING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks = []

    def done(self) -> bool:
        """Whether the result is known."""
        return self._state == _FINISHED

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return the metadata when it is known. Raises what the record failed with."""
        if self._state != _FINISHED:
            self._wait(timeout)
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                del self  # the traceback would keep the future, which keeps the traceback
        assert self._result is not None
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the record failed with, or None, when that is known."""
        if self._state != _FINISHED:
            self._wait(timeout)
        return self._exception

    def set_result(self, result: RecordMetadata) -> None:
        """Set the metadata."""
        with self._condition:
            if self._state == _FINISHED:
                raise InvalidStateError(f"{self._state}: {self!r}")
            self._result = result
            self._state = _FINISHED
            for waiter in self._waiters:
                waiter.add_result(self)
        if self._done_callbacks:
            self._invoke_callbacks()

    def set_exception(self, exception: BaseException | None) -> None:
        """Set what the record failed with."""
        with self._condition:
            if self._state == _FINISHED:
                raise InvalidStateError(f"{self._state}: {self!r}")
            self._exception = exception
            self._state = _FINISHED
            for waiter in self._waiters:
                waiter.add_exception(self)
        if self._done_callbacks:
            self._invoke_callbacks()

    def _wait(self, timeout: float | None) -> None:
        waiter = _Waiter()
        with self._condition:
            if self._state == _FINISHED:
                return
            self._waiters.append(waiter)
        try:
            self._before_wait()
            if not waiter.event.wait(timeout):
                raise TimeoutError
        finally:
            with self._condition:
                self._waiters.remove(waiter)


class _Waiter:
    """A thread that waits for one future, with the methods of those of the standard library."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def add_result(self, _future: Future[RecordMetadata]) -> None:
        self.event.set()

    add_exception = add_cancelled = add_result
