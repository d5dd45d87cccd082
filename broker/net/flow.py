"""The bytes of large requests that a broker receives at once (`queued.max.request.bytes`).

A request that is larger than one read is charged for the bytes that arrived, not for the size that
it announces: a client that announces 100 MiB and sends 20 bytes holds 20 bytes. There are two
pools, so that large requests never keep others out:

- the reserve, a quarter of the limit, for requests of up to MEDIUM_BYTES;
- the rest for larger ones.

Requests of one read (128 KiB) are not charged and never wait.

Rule of a pool: below its threshold all requests are read. At the threshold only the oldest one is
read, to its end; the connections of the others are not read from, and TCP slows their clients
down. The oldest request can therefore always be completed, which releases its bytes and lets the
others continue: partial requests cannot block each other. The threshold leaves room for the
largest request that the pool accepts, so the limit holds, but for one read per connection.

A client may stop sending in the middle of a request. While others wait, a request that is being
read and receives less than _MIN_BYTES_PER_CHECK in each of _MAX_SLOW_CHECKS successive checks, one
per second, is aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

MEDIUM_BYTES = 1024 * 1024
#: With a small limit, medium requests are smaller too: several have to fit into the reserve.
_LIMIT_PER_MEDIUM = 16
_LIMIT_PER_RESERVE = 4
_MIN_BYTES_PER_CHECK = 64 * 1024
_MAX_SLOW_CHECKS = 3


class Charge:
    """The bytes of one request. `resume` is called when it may be read again."""

    __slots__ = (
        "_pool",
        "abort",
        "checked_bytes",
        "is_received",
        "received_bytes",
        "resume",
        "slow_checks",
    )

    def __init__(self, pool: _Pool, resume: Callable[[], None], abort: Callable[[], None]) -> None:
        self._pool = pool
        self.resume = resume
        self.abort = abort
        self.received_bytes = 0
        self.checked_bytes = 0
        self.slow_checks = 0
        #: Whether it is complete, and waits to be decoded: the client has nothing more to send.
        self.is_received = False

    def add(self, size_bytes: int) -> bool:
        """Charge received bytes; return whether to read on, otherwise `resume` is called later."""
        self.received_bytes += size_bytes
        return self._pool.add(self, size_bytes)

    def close(self) -> None:
        """Release the bytes: the request was handled, or its connection is lost."""
        self._pool.remove(self)


class _Pool:
    """Requests that share a threshold."""

    def __init__(self, threshold: Callable[[], int]) -> None:
        self._threshold = threshold
        self.used_bytes = 0
        #: Oldest first.
        self.charges: dict[Charge, None] = {}
        self.waiting: dict[Charge, None] = {}

    def add(self, charge: Charge, size_bytes: int) -> bool:
        self.used_bytes += size_bytes
        if self.used_bytes < self._threshold() or charge is next(iter(self.charges)):
            return True
        self.waiting[charge] = None
        return False

    def remove(self, charge: Charge) -> None:
        del self.charges[charge]
        self.waiting.pop(charge, None)
        self.used_bytes -= charge.received_bytes
        if not self.waiting:
            return
        if self.used_bytes < self._threshold():
            resumed = [waiting for waiting in self.charges if waiting in self.waiting]
        else:
            oldest = next(iter(self.charges))
            resumed = [oldest] if oldest in self.waiting else []
        for waiting in resumed:
            del self.waiting[waiting]
        for waiting in resumed:
            waiting.resume()

    def stalled(self) -> Iterator[Charge]:
        for charge in self.charges:
            progress_bytes = charge.received_bytes - charge.checked_bytes
            charge.checked_bytes = charge.received_bytes
            is_sending = charge not in self.waiting and not charge.is_received
            if not self.waiting or not is_sending or progress_bytes >= _MIN_BYTES_PER_CHECK:
                charge.slow_checks = 0
                continue
            charge.slow_checks += 1
            if charge.slow_checks >= _MAX_SLOW_CHECKS:
                yield charge


class Budget:
    """The request bytes of all connections.

    `limit` and `max_request_bytes`, the size of the largest request, may change at any time.
    """

    def __init__(self, limit: Callable[[], int], max_request_bytes: Callable[[], int]) -> None:
        self._limit = limit
        self._medium = _Pool(lambda: self._reserve() - self._medium_bytes())
        self._large = _Pool(lambda: limit() - self._reserve() - max_request_bytes())

    def __repr__(self) -> str:
        return f"<Budget {self.used_bytes} of {self._limit()}, {self.waiting_count} waiting>"

    @property
    def used_bytes(self) -> int:
        """The bytes of incomplete requests."""
        return self._medium.used_bytes + self._large.used_bytes

    @property
    def waiting_count(self) -> int:
        """The number of requests that are not read at the moment."""
        return len(self._medium.waiting) + len(self._large.waiting)

    def open(
        self, size_bytes: int, resume: Callable[[], None], abort: Callable[[], None]
    ) -> Charge:
        """Return the charge of a request that announces this size; nothing is charged yet."""
        pool = self._medium if size_bytes <= self._medium_bytes() else self._large
        charge = Charge(pool, resume, abort)
        pool.charges[charge] = None
        return charge

    def stalled(self) -> list[Charge]:
        """Return the requests to abort, because others wait for them. Called once a second."""
        return [*self._medium.stalled(), *self._large.stalled()]

    def _reserve(self) -> int:
        return self._limit() // _LIMIT_PER_RESERVE

    def _medium_bytes(self) -> int:
        return min(MEDIUM_BYTES, self._limit() // _LIMIT_PER_MEDIUM)
