"""The HTTP endpoint of a broker for monitoring, at `metrics.listener`.

    /metrics    in Prometheus's text format, or OpenMetrics if the Accept header asks for it
    /health     200 while the event loop answers, 503 if it has hung for seconds
    /ready      200 while the broker serves clients, 503 while it starts, stops or is fenced

Its threads leave the event loop alone. One scrape is rendered at a time, in small portions.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from threading import Lock, Thread
from typing import TYPE_CHECKING

from .collector import Collector
from .exposition import OPENMETRICS, TEXT, accepts_openmetrics, render
from .loop_delay import LoopDelayProbe

if TYPE_CHECKING:
    from ..broker import Broker
    from ..net.listeners import Endpoint

#: The event loop hangs if it has not been seen for so long.
_HUNG_SECONDS = 10.0
#: A client that sends or reads nothing for so long is disconnected.
_TIMEOUT_SECONDS = 30.0


class Exporter:
    """The server of the endpoint. Raises OSError if the address cannot be bound."""

    def __init__(self, broker: Broker, endpoint: Endpoint) -> None:
        self._broker = broker
        self._collector = Collector(broker)
        self._lock = Lock()
        self._server = _server_class(endpoint.host)((endpoint.host, endpoint.port), _Handler)
        self._server.exporter = self
        #: The bound port, also if port 0 was configured.
        self.port: int = self._server.server_port
        self._probe = LoopDelayProbe(broker.metrics.event_loop_delay_seconds)
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def metrics(self, accept: str) -> tuple[str, bytes]:
        """Return the content type and the metrics."""
        is_openmetrics = accepts_openmetrics(accept)
        with self._lock:
            families = render(self._collector.families(), is_openmetrics=is_openmetrics)
            text = b"".join(part.encode() for part in families)
        return OPENMETRICS if is_openmetrics else TEXT, text

    def health(self) -> str | None:
        """Return why the broker is not healthy; None if it is."""
        late = time.monotonic() - self._probe.called_at
        return f"the event loop has not answered for {late:.0f} s" if late > _HUNG_SECONDS else None

    def readiness(self) -> str | None:
        """Return why the broker does not serve clients; None if it does."""
        broker = self._broker
        if not broker.server.is_serving:
            return "starting or stopping"
        if broker.replicas is not None and broker.store_registration.is_fenced:
            return "fenced"
        return self.health()

    async def stop(self) -> None:
        """Stop the server and its thread."""
        self._probe.stop()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    exporter: Exporter


class _Server6(_Server):
    address_family = AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _Server6 if ":" in host else _Server


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    timeout = _TIMEOUT_SECONDS
    server: _Server

    def do_GET(self) -> None:
        """Answer a GET."""
        exporter = self.server.exporter
        path = self.path.partition("?")[0]
        checks: dict[str, Callable[[], str | None]] = {
            "/health": exporter.health,
            "/ready": exporter.readiness,
        }
        if path == "/metrics":
            self._respond(200, *exporter.metrics(self.headers.get("Accept", "")))
        elif path in checks:
            reason = checks[path]()
            self._respond(503 if reason else 200, TEXT, f"{reason or 'ok'}\n".encode())
        else:
            self._respond(404, TEXT, b"/metrics, /health and /ready are here\n")

    do_HEAD = do_GET  # noqa: N815

    def _respond(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""
