"""A connection to a broker, spoken by hand: nothing is in the way of what is measured."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.schema import Message

SIZE = struct.Struct(">i")


class Connection:
    """A connection to the broker."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def ask(self, request: Message, version: int | None = None) -> Any:
        """Send a request, and wait for the answer."""
        api = request.api
        assert api is not None
        version = api.versions.last if version is None else version
        data = self.exchange(frame(request, version))
        _correlation_id, answer = decode_response(api.response, version, data[SIZE.size :])
        return answer

    def exchange(self, request: bytes) -> bytes:
        """Send a frame, and wait for the one that answers it."""
        self.socket.sendall(request)
        while not (frames := list(self.receive())):
            pass
        return frames[0]

    def receive(self) -> Iterator[bytes]:
        """Wait for bytes, and give the frames that are complete, with their sizes."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker has closed the connection")
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

    def close(self) -> None:
        """End it."""
        self.socket.close()


def frame(request: Message, version: int | None = None) -> bytes:
    """Encode a request, with its size."""
    assert request.api is not None
    version = request.api.versions.last if version is None else version
    return b"".join(encode_request(request, version, 1, "bench"))
