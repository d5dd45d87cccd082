"""The work on Redis Streams, through a client that speaks as little RESP as that takes.

It does no more for a record than it must: commands that are the same are built once and sent in
bulk, answers are counted, not parsed. What is measured is Redis, not this.
"""

from __future__ import annotations

import socket
from typing import Any

from meter import Meter

#: Commands that are sent at once; as many are on their way while the next are being sent.
PIPELINE = 1000
READ_COUNT = 10_000
ANSWER_SECONDS = 60


def command(*words: bytes) -> bytes:
    """Give the bytes of a command."""
    parts = [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
    return b"".join(parts)


class Connection:
    """A connection to a server."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unanswered = 0

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._socket.sendall(data)

    def simple(self, *words: bytes) -> None:
        """Send a command whose answer is +OK."""
        self.send(command(*words))
        answer = self._receive()
        assert answer == b"+OK\r\n", answer

    def add(self, block: bytes, count: int) -> None:
        """Send so many XADD."""
        self.send(block)
        self._unanswered += count

    def wait(self, unanswered: int = 0) -> None:
        """Wait until there are no more XADD than this without an answer: the id of a record."""
        while self._unanswered > unanswered:
            answer = self._receive()
            assert b"-ERR" not in answer, answer
            self._unanswered -= answer.count(b"$")

    def range(self, stream: bytes, after: bytes) -> tuple[int, bytes]:
        """Read records after an id: how many there were, and the id of the last."""
        words = (b"XRANGE", stream, b"(" + after, b"+", b"COUNT", b"%d" % READ_COUNT)
        # The answer to a PING behind it says where the long answer ends.
        self.send(command(*words) + b"PING\r\n")
        answer = bytearray()
        while not answer.endswith(b"+PONG\r\n"):
            answer += self._receive()
        assert answer.startswith(b"*"), bytes(answer[:100])
        count = int(answer[1 : answer.index(b"\r\n")])
        if not count:
            return 0, after
        # … $N id *2 $1 v $100 value: the field's name, which no value contains, is behind the id.
        end = answer.rindex(b"\r\n*2\r\n$1\r\nv\r\n")
        return count, bytes(answer[answer.rindex(b"\n", 0, end) + 1 : end])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("redis closed the connection")
        return data


def streams(topic: str, partitions: int) -> list[bytes]:
    """Give the names of the streams: one is to Redis what a partition is to Kafka."""
    return [f"{topic}-{number}".encode() for number in range(partitions)]


def add(stream: bytes, size: int) -> bytes:
    """Give the command that adds a record."""
    return command(b"XADD", stream, b"*", b"v", b"x" * size)


def set_up(address: str, fsync: str) -> dict[str, Any]:
    """Empty the server, and say when it is to sync its file."""
    connection = Connection(address)
    connection.simple(b"FLUSHALL", b"SYNC")
    connection.simple(b"CONFIG", b"SET", b"appendfsync", fsync.encode())
    connection.close()
    return {}


def produce(
    address: str, pid: int, topic: str, partitions: int, size: int, seconds: float, most: int
) -> dict[str, Any]:
    """Add records to streams in turn until time or records are up."""
    connection = Connection(address)
    one_each = b"".join(add(stream, size) for stream in streams(topic, partitions))
    repeat = max(1, PIPELINE // partitions)
    block, count = one_each * repeat, repeat * partitions
    meter, sent = Meter(pid), 0
    while meter.elapsed < seconds and sent < most:
        connection.add(block, count)
        connection.wait(unanswered=count)
        sent += count
    connection.wait()
    run = meter.stop(sent)
    connection.close()
    return run


def consume(address: str, pid: int, topic: str, partitions: int, records: int) -> dict[str, Any]:
    """Read all records of the streams."""
    connection = Connection(address)
    last = dict.fromkeys(streams(topic, partitions), b"0-0")
    meter, left = Meter(pid), records
    while left:
        before = left
        for stream, after in last.items():
            count, last[stream] = connection.range(stream, after)
            left -= count
        assert left < before, f"{left} of {records} records were not there"
    run = meter.stop(records)
    connection.close()
    return run


def one_by_one(address: str, pid: int, topic: str, size: int, seconds: float) -> dict[str, Any]:
    """Add one record, wait for the answer, add the next."""
    connection = Connection(address)
    one = add(streams(topic, 1)[0], size)
    meter, sent = Meter(pid), 0
    while meter.elapsed < seconds:
        connection.add(one, 1)
        connection.wait()
        sent += 1
    run = meter.stop(sent) | {"requests": sent}
    connection.close()
    return run
