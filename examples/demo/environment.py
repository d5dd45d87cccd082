"""The temporary directory, the log files and the brokers of a demo."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

_SHOWN_LINES = 20
STOP_SECONDS = 30.0


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Yield a directory for logs and data; print the ends of the logs if the demo fails."""
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as name:
        directory = Path(name)
        try:
            yield directory
        except click.ClickException:
            raise  # its message is complete
        except Exception:
            for log in sorted(directory.glob("*.log")):
                last = log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
                click.echo("\n".join([f"--- end of {log.name}", *last]), err=True)
            raise


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Redirect stderr, also that of Spark's JVM, to a file: it would garble the table."""
    stderr = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextmanager
def brokers(directory: Path, count: int) -> Iterator[list[str]]:
    """Run `ottla cluster up`, and yield the addresses of the brokers."""
    ports = free_ports(count)
    command = [sys.executable, "-m", "ottla", "cluster", "up", "--brokers", str(count)]
    command += ["--port", str(ports[0]), "--data-dir", str(directory / "data")]
    with (directory / "brokers.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the demo, which stops its brokers last
        )
    try:
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # a second SIGTERM does not wait for the brokers
            process.wait()


def free_ports(count: int) -> range:
    """Return consecutive free ports."""
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
