"""The load on Redis Streams; a stream takes the place of a partition.

redis-py configures the server and encodes the commands, once. The loops send them in bulk and count
the replies without parsing them: redis-py would spend more time on a record than Redis does.
"""

from __future__ import annotations

import socket
from typing import Any

import redis

from metrics import Meter

#: Commands sent at once; as many are in flight while the next ones are sent.
PIPELINE = 1000
READ_COUNT = 10_000
TIMEOUT_SECONDS = 60

encode = redis.Connection().pack_command


def connect(address: str) -> socket.socket:
    """Open a connection."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def xadd(topic: str, partition: int, size: int) -> bytes:
    """Return the command that adds a record."""
    return b"".join(encode("XADD", f"{topic}-{partition}", "*", "v", b"x" * size))


def receive(connection: socket.socket) -> bytes:
    """Return the next bytes."""
    data = connection.recv(1 << 20)
    if not data:
        raise ConnectionError("Redis closed the connection")
    return data


def count_ids(connection: socket.socket) -> int:
    """Receive replies to XADD, and return how many ids they contain."""
    data = receive(connection)
    assert b"-ERR" not in data, data
    return data.count(b"$")


def create_topic(address: str, topic: str, partitions: int, config: dict[str, str]) -> None:
    """Delete all streams, and apply the server's config."""
    host, _, port = address.rpartition(":")
    with redis.Redis(host, int(port), protocol=2) as server:
        server.flushall()
        for name, value in config.items():
            server.config_set(name, value)


def delete_topic(address: str, topic: str) -> None:
    """Do nothing: the next create_topic deletes everything."""


def produce(
    address: str,
    pid: int,
    topic: str,
    partitions: int,
    size: int,
    acks: str,
    seconds: float,
    max_records: int,
) -> dict[str, Any]:
    """Add records to all streams until the time or the records are used up."""
    one_each = b"".join(xadd(topic, number, size) for number in range(partitions))
    repeat = max(1, PIPELINE // partitions)
    block, count = one_each * repeat, repeat * partitions
    with connect(address) as connection:
        meter, sent, replies = Meter(pid), 0, 0
        while meter.elapsed < seconds and sent < max_records:
            connection.sendall(block)
            sent += count
            while sent - replies > count:
                replies += count_ids(connection)
        while replies < sent:
            replies += count_ids(connection)
        return meter.stop(sent)


def read_after(connection: socket.socket, stream: str, after: bytes) -> tuple[int, bytes]:
    """Read records after an id; return their count and the id of the last one."""
    command = encode("XRANGE", stream, b"(" + after, "+", "COUNT", READ_COUNT)
    # The reply to a PING marks the end of the long reply before it.
    connection.sendall(b"".join([*command, b"PING\r\n"]))
    reply = bytearray()
    while not reply.endswith(b"+PONG\r\n"):
        reply += receive(connection)
    assert reply.startswith(b"*"), bytes(reply[:100])
    count = int(reply[1 : reply.index(b"\r\n")])
    if not count:
        return 0, after
    # … $N id *2 $1 v $100 value: the field name, which no value contains, follows the id.
    end = reply.rindex(b"\r\n*2\r\n$1\r\nv\r\n")
    return count, bytes(reply[reply.rindex(b"\n", 0, end) + 1 : end])


def consume(address: str, pid: int, topic: str, partitions: int, records: int) -> dict[str, Any]:
    """Read all records of the streams."""
    last = {f"{topic}-{number}": b"0-0" for number in range(partitions)}
    with connect(address) as connection:
        meter, remaining = Meter(pid), records
        while remaining:
            before = remaining
            for stream, after in last.items():
                count, last[stream] = read_after(connection, stream, after)
                remaining -= count
            assert remaining < before, f"{remaining} of {records} records are missing"
        return meter.stop(records)


def single(
    address: str, pid: int, topic: str, size: int, acks: str, seconds: float, in_flight: int
) -> dict[str, Any]:
    """Add one record per command; a pipelined XADD is still one command per record."""
    if in_flight > 1:
        run = produce(address, pid, topic, 1, size, acks, seconds, 1_000_000)
        return run | {"requests": run["records"]}
    command = xadd(topic, 0, size)
    with connect(address) as connection:
        meter, sent = Meter(pid), 0
        while meter.elapsed < seconds:
            connection.sendall(command)
            sent += 1
            while not count_ids(connection):
                pass
        return meter.stop(sent) | {"requests": sent}
