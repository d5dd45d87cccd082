"""Whether reads of the present thread may wait for the disk; see cold_reads.py."""

from __future__ import annotations

import threading


class ColdReadError(Exception):
    """A read would wait for the disk, in a thread that must not."""


class _ReadMode(threading.local):
    may_wait = True


READ_MODE = _ReadMode()


class NoWaiting:
    """A context in which reads of this thread raise ColdReadError instead of waiting."""

    __slots__ = ()

    def __enter__(self) -> None:
        READ_MODE.may_wait = False

    def __exit__(self, *_error: object) -> None:
        READ_MODE.may_wait = True


NO_WAITING = NoWaiting()


def check_may_wait() -> None:
    """Raise ColdReadError if this thread must not wait for the disk."""
    if not READ_MODE.may_wait:
        raise ColdReadError
