"""Runs the console with uvicorn."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from .app import create_app
from .config import ConsoleConfig
from .http_protocol import protocol_of

# A live tail would hold up a stop for ever.
_SHUTDOWN_SECONDS = 3


class _Server(uvicorn.Server):
    """Calls `ready` when it listens."""

    def __init__(
        self, config: uvicorn.Config, ready: Callable[[], None], until_stdin_closes: bool
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._until_stdin_closes = until_stdin_closes
        self._is_stopping = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop cleanly on a signal, and at once on a second one; the exit code stays 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        if self._until_stdin_closes:
            loop.add_reader(sys.stdin.fileno(), self._on_stdin)
        yield

    def _on_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            # Unlike a second signal, it does not hurry a stop that is under way.
            self.should_exit = True

    def _stop(self) -> None:
        if self._is_stopping:
            self.force_exit = True
        self._is_stopping = self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def bind(config: ConsoleConfig) -> socket.socket:
    """Return a socket that is bound to the console's address. Raises OSError."""
    infos = socket.getaddrinfo(
        config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = infos[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def run(
    config: ConsoleConfig,
    bound: socket.socket,
    ready: Callable[[], None],
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    until_stdin_closes: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM, or also until stdin closes."""
    server = _Server(
        uvicorn.Config(
            create_app(config),
            http=protocol_of(config.limits),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            limit_concurrency=500,
            timeout_keep_alive=math.ceil(config.limits.head_seconds),
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        ),
        ready,
        until_stdin_closes,
    )
    asyncio.run(server.serve([bound]))
