"""A process that is measured: started, watched through /proc, and stopped by its pid (Linux).

The clock of a process is read with clock_gettime, which gives the sum that /proc/PID/stat has
(user and system time of all threads, also of those that ended) in nanoseconds: a run of a second
would see few of the ticks that the latter counts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

STOP_SECONDS = 10
SAMPLE_SECONDS = 0.1
CPUCLOCK_SCHED = 2  # linux/posix-timers.h; the id of a process's clock is made of its pid and this


def cpu_seconds(pid: int) -> float:
    """Give the CPU time that a process has used, in all of its threads."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def family_cpu_seconds(pid: int, without: int) -> float:
    """Give the CPU time of a process and all that it has started, but one, and that one's own."""
    times: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = stat.read_text().partition(" ")
        except OSError:
            continue  # it has ended meanwhile
        fields = rest.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(number))
        # Its own, and that of its children that ended: user and system.
        times[int(number)] = sum(map(int, fields[11:15]))
    ticks, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        if one != without and one in times:
            ticks += times[one]
            waiting += children.get(one, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def device_bytes_read(pid: int) -> int:
    """Give the bytes that a process made the device read: those that no cache had."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


@dataclass(frozen=True)
class Memory:
    """What a process alone has in memory.

    Pages of a file that only it has mapped count as private, though they are the page cache's and
    can be had back; what is anonymous cannot. Hence both.
    """

    private: int
    anonymous: int

    def __or__(self, other: Memory) -> Memory:
        """Give the larger of each."""
        return Memory(
            max(self.private, other.private),
            max(self.anonymous, other.anonymous),
        )


def memory(pid: int) -> Memory:
    """Look at the memory of a process."""
    kilobytes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        kilobytes[name] = int(rest.split()[0])
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return Memory(private * 1024, kilobytes["Anonymous"] * 1024)


class MemoryWatch:
    """Look at the memory of a process again and again, and remember the most."""

    def __init__(self, pid: int) -> None:
        self.peak = Memory(0, 0)
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                self.peak |= memory(self._pid)
                if self._done.wait(SAMPLE_SECONDS):
                    break
            self.peak |= memory(self._pid)
        except OSError:
            # It is gone; whoever talks to it says so.
            return


def free_port() -> int:
    """Give a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(command: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a process that says what it has to say to a file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            # Ctrl-C is for the benchmark, which then stops its servers one by one.
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and make it end."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
