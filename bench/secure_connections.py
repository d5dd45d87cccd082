"""The load of connections that authenticate, each once: in the client process, without a client.

Some threads connect at the same time; each connection is closed before its thread opens the next.
"""

from __future__ import annotations

import ssl
import threading
from contextlib import ExitStack
from typing import Any

from metrics import Meter
from ottla.client.sasl import Scram
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.api.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.scram import ScramMechanism
from wire import Connection

THREADS = 8


class Login:
    """How to open one connection."""

    def __init__(
        self, port: int, ca: str | None, user: str | None, password: str, mechanism: str
    ) -> None:
        self._port = port
        self._user = user
        self._password = password
        self._mechanism = mechanism
        self._context: ssl.SSLContext | None = None
        if ca is not None:
            # A client that checks nothing but the authority: the checks are not the broker's.
            self._context = ssl.create_default_context(cafile=ca)
            self._context.check_hostname = False

    def run(self) -> None:
        """Connect, authenticate and close; without SASL, wait for one response."""
        with ExitStack() as stack:
            connection = Connection(self._port)
            stack.callback(connection.close)
            if self._context is not None:
                connection.socket = self._context.wrap_socket(connection.socket)
            if self._user is None:
                connection.request(ApiVersionsRequest())
                return
            self._authenticate(connection, self._user)

    def _authenticate(self, connection: Connection, name: str) -> None:
        mechanism = ScramMechanism.of(self._mechanism)
        assert mechanism is not None
        exchange = Scram(mechanism, name, self._password)
        response = connection.request(SaslHandshakeRequest(mechanism=self._mechanism))
        assert not response.error_code, response
        message: bytes | None = exchange.first()
        while not exchange.is_complete:
            assert message is not None
            response = connection.request(SaslAuthenticateRequest(auth_bytes=message))
            assert not response.error_code, response.error_message
            message = exchange.respond(bytes(response.auth_bytes))


def connect(port: int, pid: int, count: int, **how: Any) -> dict[str, Any]:
    """Open and close connections."""
    login = Login(port, **how)
    login.run()
    remaining, failures = iter(range(count)), []

    def work() -> None:
        try:
            while next(remaining, None) is not None:
                login.run()
        except (OSError, AssertionError) as error:
            failures.append(error)

    meter = Meter(pid)
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = meter.stop(count)
    assert not failures, failures[0]
    return run
