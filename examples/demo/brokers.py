"""Brokers on this machine: `ottla cluster up`, with its data in a folder of the demo's."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

STOP_SECONDS = 30.0


@contextmanager
def brokers(folder: Path, count: int) -> Iterator[list[str]]:
    """Run a cluster, and give the addresses of its brokers."""
    ports = free_ports(count)
    command = [sys.executable, "-m", "ottla", "cluster", "up", "--brokers", str(count)]
    command += ["--port", str(ports[0]), "--data-dir", str(folder / "data")]
    with (folder / "brokers.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us; they are stopped when all others are
        )
    try:
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # the second time, it does not wait for its brokers
            process.wait()


def free_ports(count: int) -> range:
    """Give so many ports in a row on which nobody listens."""
    while True:
        first = random.randrange(20_000, 32_000)
        ports = range(first, first + count)
        with ExitStack() as probes:
            try:
                for port in ports:
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return ports
