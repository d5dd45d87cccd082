"""CPU, memory and file descriptors of this process, with the names of Prometheus's own clients."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .exposition import Counter, Family, Gauge

_STARTED = time.time()
_PROC = Path("/proc/self")


def process_families() -> Iterator[Family]:
    """Yield the metrics; those that the system does not offer are missing."""
    yield Counter("process_cpu_seconds", "User and system CPU time.", time.process_time())
    yield Gauge("process_start_time_seconds", "When the process started.", _STARTED)
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Gauge("process_max_fds", "Maximum number of open file descriptors.", limit)
    with suppress(OSError):  # Not on macOS.
        pages, resident_pages = (_PROC / "statm").read_text().split()[:2]
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        yield Gauge("process_virtual_memory_bytes", "Virtual memory size.", int(pages) * page_bytes)
        yield Gauge(
            "process_resident_memory_bytes",
            "Resident memory, including mapped files.",
            int(resident_pages) * page_bytes,
        )
        count = len(os.listdir(_PROC / "fd"))
        yield Gauge("process_open_fds", "Open file descriptors.", count)
