"""The real daemon, on a disk and with a clock that do as they are told.

    FRAIL_PORT=20123 python frail.py broker start …

It is started like `python -m ottla`, and takes orders at that port: a line of JSON each, answered
by one. `Frail` in `stage` gives them.

    {"do": "fail", "call": "sync", "where": "/orders-0/", "error": 5, "times": 1}
    {"do": "stop", "call": "rename", "where": "recovery-point", "when": "before"}
    {"do": "heal"}
    {"do": "clock", "shift": 3600, "frozen": false}
    {"do": "look"}

A call to the disk that fails raises OSError, so many times or until it is healed. One that stops
stops the whole process, like SIGSTOP: whoever waits for it can cut the power at that very moment.
The answer says how often an order was met so far.
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

#: Calls of `Disk` that orders can name; the first argument is a file, or a path.
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


class Orders:
    """What is to go wrong."""

    def __init__(self) -> None:
        self._plans: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.hits = 0

    def obey(self, order: dict[str, Any]) -> None:
        with self._lock:
            match order["do"]:
                case "heal":
                    self._plans = []
                case "clock":
                    clock.set(order["shift"], is_frozen=order["frozen"])
                case "look":
                    pass
                case _:
                    self._plans = [*self._plans, order]

    def meet(self, call: str, where: str, when: str) -> None:
        """Let a call meet its fate, if it has one."""
        for plan in self._plans:
            if (
                plan["call"] == call
                and plan.get("when", "before") == when
                and plan["where"] in where
            ):
                self._strike(plan, where)

    def _strike(self, plan: dict[str, Any], where: str) -> None:
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
            raise OSError(plan["error"], f"{os.strerror(plan['error'])} (as ordered)", where)


class FrailDisk(Disk):
    """Does what the real one does, unless it has other orders."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def open(self, path: Path, *, create: bool = False, empty: bool = False) -> int:
        orders.meet("open", str(path), "before")
        fd = super().open(path, create=create, empty=empty)
        self._names[fd] = str(path)
        orders.meet("open", str(path), "after")
        return fd

    def name_of(self, file: int | Path) -> str:
        return self._names.get(file, "") if isinstance(file, int) else str(file)


def _frail(call: str) -> Any:
    def method(self: FrailDisk, file: Any, *args: Any, **options: Any) -> Any:
        name = self.name_of(file)
        if call == "rename":
            name = f"{name} {args[0]}"
        orders.meet(call, name, "before")
        result = getattr(Disk, call)(self, file, *args, **options)
        orders.meet(call, name, "after")
        return result

    return method


for _call in CALLS:
    if _call != "open":
        setattr(FrailDisk, _call, _frail(_call))


class Clock:
    """The time of day, which can jump and stand still. `time.monotonic` is left alone."""

    def __init__(self) -> None:
        self._real = time.time
        self._shift = 0.0
        self._stands_at: float | None = None

    def set(self, shift: float, *, is_frozen: bool) -> None:
        self._shift = shift
        self._stands_at = self._real() + shift if is_frozen else None

    def __call__(self) -> float:
        return self._real() + self._shift if self._stands_at is None else self._stands_at


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            orders.obey(json.loads(line))
            self.wfile.write(json.dumps({"hits": orders.hits}).encode() + b"\n")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


orders = Orders()
clock = Clock()


def main() -> None:
    server = _Server(("127.0.0.1", int(os.environ["FRAIL_PORT"])), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    time.time = clock
    # What the daemon makes its broker of is the one thing that is replaced.
    daemon.Broker = functools.partial(Broker, disk=FrailDisk())  # type: ignore[misc, assignment]
    from ottla.__main__ import main as run  # noqa: PLC0415

    sys.argv[0] = "ottla"
    run()


if __name__ == "__main__":
    main()
