"""The bytes of large requests that a broker receives at once (`queued.max.request.bytes`).

A request that is larger than one read is charged for the bytes that arrived, not for the size that
it announces: a client that announces 100 MiB and sends 20 bytes holds 20 bytes. There are two
pools, so that large requests never keep others out:

- the reserve, a quarter of the limit, for requests of up to MEDIUM_BYTES;
- the rest for larger ones.

Requests of one read (128 KiB) are not charged and never wait.

Rule of a pool: below its threshold all requests are read. At the threshold only the oldest ones are
read, to their ends; the connections of the others are not read from, and TCP slows their clients
down. The oldest requests can therefore always be completed, which releases their bytes and lets the
others continue: partial requests cannot block each other. The threshold leaves room for as many of
the largest requests that the pool accepts as are read then, so the limit holds, but for one read
per connection.

A client may stop sending in the middle of a request, or send a few bytes at a time. While others
wait, checks are made every CHECK_SECONDS. A request that is being read is aborted if it receives
less than _MIN_BYTES_PER_CHECK in each of _MAX_SLOW_CHECKS successive checks, or is not complete
after _MAX_CHECKS and more for each MiB. A client that waits for its turn has sent what the kernel
buffers, so it is not slow when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

MEDIUM_BYTES = 1024 * 1024
#: With a small limit, medium requests are smaller too: several have to fit into the reserve.
_LIMIT_PER_MEDIUM = 16
_LIMIT_PER_RESERVE = 4
#: At the threshold, this share of the reserve is left for medium requests that are read: of very
#: many slow ones, so many are aborted at a time.
_RESERVE_PER_PARALLEL = 2
CHECK_SECONDS = 0.1
_MIN_BYTES_PER_CHECK = 8 * 1024
_MAX_SLOW_CHECKS = 5
_MAX_CHECKS = 10
_MAX_CHECKS_PER_MIB = 5


class Charge:
    """The bytes of one request. `resume` is called when it may be read again."""

    __slots__ = (
        "_pool",
        "abort",
        "checked_bytes",
        "checks_left",
        "is_received",
        "received_bytes",
        "resume",
        "slow_checks",
    )

    def __init__(
        self, pool: _Pool, size_bytes: int, resume: Callable[[], None], abort: Callable[[], None]
    ) -> None:
        self._pool = pool
        self.checks_left = _MAX_CHECKS + _MAX_CHECKS_PER_MIB * size_bytes // MEDIUM_BYTES
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
    """Requests that share a threshold, at which `parallel_count` of them are read.

    `on_waiting` is called when one has to wait.
    """

    def __init__(
        self,
        threshold: Callable[[], int],
        parallel_count: Callable[[], int],
        on_waiting: Callable[[], None],
    ) -> None:
        self._threshold = threshold
        self._parallel_count = parallel_count
        self._on_waiting = on_waiting
        self.used_bytes = 0
        #: Oldest first.
        self.charges: dict[Charge, None] = {}
        self.waiting: dict[Charge, None] = {}

    def add(self, charge: Charge, size_bytes: int) -> bool:
        self.used_bytes += size_bytes
        if self.used_bytes < self._threshold() or charge in self._oldest():
            return True
        self.waiting[charge] = None
        self._on_waiting()
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
            resumed = [oldest for oldest in self._oldest() if oldest in self.waiting]
        for waiting in resumed:
            del self.waiting[waiting]
        for waiting in resumed:
            waiting.resume()

    def _oldest(self) -> list[Charge]:
        """Return the requests that are read at the threshold."""
        return list(islice(self.charges, self._parallel_count()))

    def stalled(self) -> Iterator[Charge]:
        for charge in self.charges:
            progress_bytes = charge.received_bytes - charge.checked_bytes
            charge.checked_bytes = charge.received_bytes
            if not self.waiting or charge in self.waiting or charge.is_received:
                charge.slow_checks = 0
                continue
            charge.checks_left -= 1
            is_slow = progress_bytes < _MIN_BYTES_PER_CHECK
            charge.slow_checks = charge.slow_checks + 1 if is_slow else 0
            if charge.slow_checks >= _MAX_SLOW_CHECKS or charge.checks_left < 0:
                yield charge


class Budget:
    """The request bytes of all connections.

    `limit` and `max_request_bytes`, the size of the largest request, may change at any time.
    """

    def __init__(
        self,
        limit: Callable[[], int],
        max_request_bytes: Callable[[], int],
        on_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._limit = limit
        self._medium = _Pool(
            lambda: self._reserve() - self._parallel_count() * self._medium_bytes(),
            self._parallel_count,
            on_waiting,
        )
        self._large = _Pool(
            lambda: limit() - self._reserve() - max_request_bytes(), lambda: 1, on_waiting
        )

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
        charge = Charge(pool, size_bytes, resume, abort)
        pool.charges[charge] = None
        return charge

    def stalled(self) -> list[Charge]:
        """Return the requests to abort, because others wait for them.

        Called every CHECK_SECONDS while requests wait.
        """
        return [*self._medium.stalled(), *self._large.stalled()]

    def _reserve(self) -> int:
        return self._limit() // _LIMIT_PER_RESERVE

    def _parallel_count(self) -> int:
        return max(1, self._reserve() // self._medium_bytes() // _RESERVE_PER_PARALLEL)

    def _medium_bytes(self) -> int:
        return min(MEDIUM_BYTES, self._limit() // _LIMIT_PER_MEDIUM)
