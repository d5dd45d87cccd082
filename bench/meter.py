"""What a stretch of work took: time, and CPU of the client and of the server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from processes import cpu_seconds


class Meter:
    """Starts when it is made. It runs in the client's process, next to the work.

    A server may be several processes, or none.
    """

    def __init__(self, pid: int | Sequence[int] | None) -> None:
        self._pids = (pid,) if isinstance(pid, int) else pid or ()
        self._server = self._server_seconds()
        self._client = time.process_time()
        self.start = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def stop(self, records: int) -> dict[str, Any]:
        """Give what the work took."""
        return {
            "records": records,
            "seconds": self.elapsed,
            "client_cpu": time.process_time() - self._client,
            "server_cpu": self._server_seconds() - self._server,
        }

    def _server_seconds(self) -> float:
        return sum(map(cpu_seconds, self._pids))
