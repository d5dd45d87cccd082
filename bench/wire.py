"""A plain connection to a broker, without the cost of a client."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ottla.protocol.api import fetch, offset_commit, offset_fetch, produce
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.schema import Message

SIZE = struct.Struct(">i")


class Connection:
    """A blocking connection. Requests have the latest version of their API."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def request(self, request: Message) -> Any:
        """Send a request, and return the decoded response."""
        self.socket.sendall(frame(request))
        return self.response(request, _version_of(request))

    def response(self, request: Message, version: int) -> Any:
        """Wait for the response to a request that was sent, and return it decoded."""
        assert request.api is not None
        _correlation_id, response = decode_response(
            request.api.response, version, self._next_frame()[SIZE.size :]
        )
        return response

    def exchange(self, request: bytes) -> bytes:
        """Send a frame, and return the frame of the response."""
        self.socket.sendall(request)
        return self._next_frame()

    def _next_frame(self) -> bytes:
        """Wait for the only response."""
        while not (frames := list(self.receive())):
            pass
        return frames[0]

    def receive(self) -> Iterator[bytes]:
        """Wait for bytes, and yield the complete frames, including their sizes."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._received += data
        position = 0
        while len(self._received) - position >= SIZE.size:
            (size,) = SIZE.unpack_from(self._received, position)
            end = position + SIZE.size + size
            if end > len(self._received):
                break
            yield bytes(self._received[position:end])
            position = end
        del self._received[:position]

    def skip(self) -> int:
        """Wait for bytes, and return how many responses they complete; their content is dropped."""
        return sum(1 for _ in self.receive())

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


@contextmanager
def connections(*ports: int) -> Iterator[list[Connection]]:
    """Open a connection to each port, and close them at the end."""
    with ExitStack() as stack:
        opened = [Connection(port) for port in ports]
        for connection in opened:
            stack.callback(connection.close)
        yield opened


def frame(request: Message) -> bytes:
    """Encode a request in its latest version, including its size."""
    return encode(request, _version_of(request))


def encode(request: Message, version: int) -> bytes:
    """Encode a request, including its size."""
    return b"".join(encode_request(request, version, 1, "bench"))


def _version_of(request: Message) -> int:
    assert request.api is not None
    for module in (produce, fetch, offset_commit, offset_fetch):
        if request.api.module_name == module.__name__.rpartition(".")[2]:
            return module.LAST_VERSION_WITH_TOPIC_NAMES
    return request.api.versions.last
