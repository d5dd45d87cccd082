"""The real daemon with fault injection in its disk and clock.

    FAULTS_PORT=20123 python faulty_broker.py broker start …

It is started like `python -m ottla`, and receives commands on that port: lines of JSON, with a line
in response. `FaultyDaemon` in `testbed` sends them.

    {"do": "fail", "call": "sync", "where": "/orders-0/", "error": 5, "times": 1}
    {"do": "stop", "call": "rename", "where": "recovery-point", "when": "before"}
    {"do": "heal"}
    {"do": "clock", "shift": 3600, "frozen": false}
    {"do": "stall", "seconds": 0.1, "every": 0.5}
    {"do": "lose", "where": "/orders-0/"}
    {"do": "status"}

FAULTS_BOOT_ID is the path of a file that has the id of the machine's boot, which a test changes.

A disk call that fails raises OSError, `times` times or until `heal`. A `stop` stops the process
with SIGSTOP, so that a test can cut the power at that moment. A `stall` blocks the event loop,
repeatedly until `heal`. The response has the number of faults so far.

A `lose` fails as a device that loses a write does on Linux (errseq): each open file description
gets the error once, at its next fsync; fsyncs after that succeed although the data is lost. A file
that is opened later does not get it.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import signal
import socketserver
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ottla.broker import daemon
from ottla.broker.broker import Broker
from ottla.storage import logdir
from ottla.storage.disk import Disk

#: Methods of `Disk` that can fail; the first argument is a file descriptor or a path.
CALLS = (
    "open",
    "write",
    "read",
    "read_into",
    "map",
    "resize",
    "sync",
    "sync_directory",
    "rename",
    "unlink",
    "make_directory",
)


class Faults:
    """The faults to inject."""

    def __init__(self) -> None:
        self._plans: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.hits = 0
        #: The broker's event loop, to stall it.
        self.loop: asyncio.AbstractEventLoop | None = None

    def command(self, command: dict[str, Any]) -> None:
        with self._lock:
            match command["do"]:
                case "heal":
                    self._plans = []
                case "clock":
                    clock.set(command["shift"], is_frozen=command["frozen"])
                case "status":
                    pass
                case "stall":
                    self._plans = [*self._plans, command]
                    assert self.loop is not None
                    self.loop.call_soon_threadsafe(self._stall, command)
                case _:
                    self._plans = [*self._plans, command]

    def _stall(self, plan: dict[str, Any]) -> None:
        if any(plan is other for other in self._plans):
            self.hits += 1
            time.sleep(plan["seconds"])
            assert self.loop is not None
            self.loop.call_later(plan["every"], self._stall, plan)

    def loses(self, where: str) -> bool:
        """Whether the device loses what was written to a file before this fsync."""
        with self._lock:
            plans = [p for p in self._plans if p["do"] == "lose" and p["where"] in where]
            self._plans = [plan for plan in self._plans if plan not in plans[:1]]
        return bool(plans)

    def inject(self, call: str, where: str, when: str) -> None:
        """Inject the faults of a disk call, if there are any."""
        for plan in self._plans:
            if (
                plan["do"] in ("fail", "stop")
                and plan["call"] == call
                and plan.get("when", "before") == when
                and plan["where"] in where
            ):
                self._inject(plan, where)

    def _inject(self, plan: dict[str, Any], where: str) -> None:
        with self._lock:
            if all(plan is not other for other in self._plans):
                return
            self.hits += 1
            if plan.get("times") is not None:
                plan["times"] -= 1
                if plan["times"] <= 0:
                    self._plans = [other for other in self._plans if other is not plan]
        if plan["do"] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            raise OSError(plan["error"], f"{os.strerror(plan['error'])} (injected)", where)


class FaultyDisk(Disk):
    """The real disk, with faults."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        #: File descriptors that get an error at their next fsync.
        self._unreported: set[int] = set()

    def close(self, fd: int) -> None:
        self._names.pop(fd, None)
        self._unreported.discard(fd)
        super().close(fd)

    def sync(self, fd: int, *, metadata: bool = False) -> None:
        name = self.name_of(fd)
        faults.inject("sync", name, "before")
        if faults.loses(name):
            self._unreported |= {other for other, path in list(self._names.items()) if path == name}
        if fd in self._unreported:
            self._unreported.discard(fd)
            faults.hits += 1
            raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} (injected)", name)
        super().sync(fd, metadata=metadata)
        faults.inject("sync", name, "after")

    def open(self, path: Path, *, create: bool = False, empty: bool = False) -> int:
        faults.inject("open", str(path), "before")
        fd = super().open(path, create=create, empty=empty)
        self._names[fd] = str(path)
        faults.inject("open", str(path), "after")
        return fd

    def is_resident(self, fd: int, mapped: memoryview, position: int) -> bool:
        try:
            faults.inject("read", self.name_of(fd), "before")
        except OSError:
            return False  # The caller reads where it may wait.
        return super().is_resident(fd, mapped, position)

    def name_of(self, file: int | Path) -> str:
        return self._names.get(file, "") if isinstance(file, int) else str(file)


def _faulty(call: str) -> Any:
    def method(self: FaultyDisk, file: Any, *args: Any, **options: Any) -> Any:
        name = self.name_of(file)
        if call == "rename":
            name = f"{name} {args[0]}"
        faults.inject(call, name, "before")
        result = getattr(Disk, call)(self, file, *args, **options)
        faults.inject(call, name, "after")
        return result

    return method


for _call in CALLS:
    if _call not in ("open", "sync"):
        setattr(FaultyDisk, _call, _faulty(_call))


class Clock:
    """A wall clock that can jump or be frozen. `time.monotonic` is not affected."""

    def __init__(self) -> None:
        self._real = time.time
        self._shift = 0.0
        self._frozen_at: float | None = None

    def set(self, shift: float, *, is_frozen: bool) -> None:
        self._shift = shift
        self._frozen_at = self._real() + shift if is_frozen else None

    def __call__(self) -> float:
        return self._real() + self._shift if self._frozen_at is None else self._frozen_at


class FaultyBroker(Broker):
    """The real broker, whose event loop can be stalled."""

    async def start(self, *args: Any, **options: Any) -> None:
        faults.loop = asyncio.get_running_loop()
        await super().start(*args, **options)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            faults.command(json.loads(line))
            self.wfile.write(json.dumps({"hits": faults.hits}).encode() + b"\n")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


faults = Faults()
clock = Clock()


def main() -> None:
    server = _Server(("127.0.0.1", int(os.environ["FAULTS_PORT"])), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    time.time = clock
    if boot_id := os.environ.get("FAULTS_BOOT_ID"):
        logdir._SYSTEM_BOOT_ID = Path(boot_id)
    # The only replacement: the disk of the daemon's broker.
    daemon.Broker = functools.partial(FaultyBroker, disk=FaultyDisk())  # type: ignore[misc, assignment]
    from ottla.__main__ import main as run  # noqa: PLC0415

    sys.argv[0] = "ottla"
    run()


if __name__ == "__main__":
    main()
