"""The real daemon with fault injection in its disk and clock.

    FAULTS_PORT=20123 python faulty_broker.py broker start …

It is started like `python -m ottla`, and receives commands on that port: lines of JSON, with a line
in response. `FaultyDaemon` in `testbed` sends them.

    {"do": "fail", "call": "sync", "where": "/orders-0/", "error": 5, "times": 1}
    {"do": "stop", "call": "rename", "where": "recovery-point", "when": "before"}
    {"do": "heal"}
    {"do": "clock", "shift": 3600, "frozen": false}
    {"do": "status"}

A disk call that fails raises OSError, `times` times or until `heal`. A `stop` stops the process
with SIGSTOP, so that a test can cut the power at that moment. The response has the number of faults
so far.
"""

from __future__ import annotations

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

    def command(self, command: dict[str, Any]) -> None:
        with self._lock:
            match command["do"]:
                case "heal":
                    self._plans = []
                case "clock":
                    clock.set(command["shift"], is_frozen=command["frozen"])
                case "status":
                    pass
                case _:
                    self._plans = [*self._plans, command]

    def inject(self, call: str, where: str, when: str) -> None:
        """Inject the faults of a disk call, if there are any."""
        for plan in self._plans:
            if (
                plan["call"] == call
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

    def open(self, path: Path, *, create: bool = False, empty: bool = False) -> int:
        faults.inject("open", str(path), "before")
        fd = super().open(path, create=create, empty=empty)
        self._names[fd] = str(path)
        faults.inject("open", str(path), "after")
        return fd

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
    if _call != "open":
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
    # The only replacement: the disk of the daemon's broker.
    daemon.Broker = functools.partial(Broker, disk=FaultyDisk())  # type: ignore[misc, assignment]
    from ottla.__main__ import main as run  # noqa: PLC0415

    sys.argv[0] = "ottla"
    run()


if __name__ == "__main__":
    main()
