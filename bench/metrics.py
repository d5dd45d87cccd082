"""CPU time and memory of processes, read from /proc (Linux).

CPU time is read with clock_gettime: the same sum as in /proc/PID/stat (user and system time of all
threads, including those that ended), but in nanoseconds instead of ticks of 10 ms, which are too
coarse for runs of a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SAMPLE_SECONDS = 0.1
CPUCLOCK_SCHED = 2  # linux/posix-timers.h: a process clock id is made of the pid and this


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def tree_cpu_seconds(pid: int, without: int) -> float:
    """Return the CPU time of a process and its descendants, except for one subtree."""
    times: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = stat.read_text().partition(" ")
        except OSError:
            continue  # the process has ended
        fields = rest.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(number))
        # User and system time, of the process and of its children that have ended.
        times[int(number)] = sum(map(int, fields[11:15]))
    ticks, stack = 0, [pid]
    while stack:
        process = stack.pop()
        if process != without and process in times:
            ticks += times[process]
            stack += children.get(process, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> dict[str, int]:
    """Return the private and the anonymous memory of a process, in bytes.

    Pages of a file that only this process maps count as private, although they are page cache and
    can be reclaimed. Anonymous memory cannot.
    """
    kilobytes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        kilobytes[name] = int(rest.split()[0])
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return {"private": private * 1024, "anonymous": kilobytes["Anonymous"] * 1024}


@contextmanager
def peak_memory(pid: int) -> Iterator[dict[str, int]]:
    """Sample the memory of a process in the background; yield the maximum of each value."""
    peak = {"private": 0, "anonymous": 0}
    done = threading.Event()

    def sample() -> None:
        while True:
            is_last = done.wait(SAMPLE_SECONDS)
            try:
                now = memory(pid)
            except OSError:
                return  # the process has ended; its caller reports that
            peak.update({name: max(peak[name], size) for name, size in now.items()})
            if is_last:
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


class Meter:
    """Time and CPU of a run, from its creation on. It runs in the client's process.

    A server may be several processes, or none.
    """

    def __init__(self, pid: int | Sequence[int] | None) -> None:
        self._pids = (pid,) if isinstance(pid, int) else pid or ()
        self._server_cpu = self._server_cpu_seconds()
        self._client_cpu = time.process_time()
        self.start = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def stop(self, records: int) -> dict[str, Any]:
        """Return the result of the run."""
        run = {
            "records": records,
            "seconds": self.elapsed,
            "client_cpu": time.process_time() - self._client_cpu,
        }
        if self._pids:
            run["server_cpu"] = self._server_cpu_seconds() - self._server_cpu
        return run

    def _server_cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self._pids))
