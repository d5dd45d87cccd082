"""Tools for attacks on a broker, and checks that it survives them.

The broker runs as a daemon in a process of its own, so that its memory can be measured.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.bystander import Bystanders
from harness.daemon import Daemon, anonymous_mib, socket_count
from harness.logs import a_batch
from harness.requests import create_topics_request
from harness.wire import BlockingWireClient, error_codes, framed, produce_request
from ottla.protocol.schema import Message

if not Path("/proc/self/smaps_rollup").exists():
    pytest.skip("measuring the memory of another process requires Linux", allow_module_level=True)

MIB = 1024 * 1024
TIMEOUT_SECONDS = 20.0
#: Log lines that mean a bug, even if it was caught.
_BUG = re.compile(r"Traceback|Exception|\bERROR\b|\bCRITICAL\b|never retrieved")
#: False lengths and counts, in all encodings.
FALSE_LENGTHS = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\xff" * 10,
    b"\x00\x00\x00\x00",
    b"\x7f\xff",
    b"\x80",
    b"\xff",
    b"\x00",
)


@contextmanager
def undisturbed(broker: Daemon) -> Iterator[None]:
    """Assert that a bystander does not notice an attack: see `harness.bystander`."""
    with Bystanders(broker, broker.folder) as bystanders:
        began = time.monotonic()
        yield
        ended = time.monotonic()
    bystanders.result(began, ended).check_latency()


@contextmanager
def unharmed(broker: Daemon, *, growth_mib: float) -> Iterator[None]:
    """Assert that the broker is healthy after an attack.

    It runs, responds, has logged no bug, and has no more sockets than before. Its anonymous memory
    has grown by at most `growth_mib`; mapped files belong to the page cache and are not counted.
    """
    assert broker.responds()
    logged, connections = len(broker.log.read_bytes()), socket_count(broker)
    before = anonymous_mib(broker)
    yield
    assert broker.is_running, broker.log_tail()
    assert broker.responds()
    lines = broker.log.read_bytes()[logged:].decode(errors="replace")
    assert not _BUG.search(lines), lines[-5000:]
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while socket_count(broker) > connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert socket_count(broker) <= connections
    grown = anonymous_mib(broker) - before
    assert grown <= growth_mib, f"grown by {grown:.1f} MiB"


def create_topic(broker: Daemon, name: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic; configs are named with underscores instead of dots."""
    with BlockingWireClient(broker) as connection:
        (result,) = connection.request(create_topics_request(name, partitions, **configs), 5).topics
        assert result.error_code == 0, result


def open_connections(
    broker: Daemon, stack: ExitStack, count: int, data: bytes = b""
) -> list[BlockingWireClient]:
    """Open `count` connections, each of which sends `data` and then nothing."""
    connections = []
    for _ in range(count):
        connection = stack.enter_context(BlockingWireClient(broker))
        if data:
            connection.send(data)
        connections.append(connection)
    return connections


def append(broker: Daemon, value: bytes, times: int = 1, index: int = 0, topic: str = "t") -> None:
    """Append a record `times` times."""
    request = produce_request(a_batch(value=value), topic=topic, partition=index)
    with BlockingWireClient(broker) as connection:
        for _ in range(times):
            assert error_codes(connection.request(request, 9)) == [0]


#: Values, by field name, with which a request gets past the first validation.
_PLAUSIBLE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("topic", "topic_name", "name"), ("t", "compacted", "retention.ms")),
    **dict.fromkeys(("partition", "partition_index", "index"), (0, 0, 1, 2)),
    **dict.fromkeys(("fetch_offset", "offset", "leader_epoch"), (0, 1, -1)),
    "acks": (0, 1, -1),
    "count": (3, 4),
    "current_leader_epoch": (0, -1),
    "group_id": ("g", ""),
    "isolation_level": (0, 1),
    "key": ("g",),
    "key_type": (0,),
    "max_wait_ms": (0, 10),
    "member_id": ("",),
    "num_partitions": (1, -1),
    "partition_indexes": ((0, 1),),
    "records": (a_batch(2), a_batch(1, producer_id=5, producer_epoch=0, base_sequence=0)),
    "replica_id": (-1,),
    "replication_factor": (1, -1),
    "resource_name": ("t", "0"),
    "resource_type": (2, 4),
    "session_epoch": (0, -1, 1),
    "session_id": (0,),
    "session_timeout_ms": (10_000,),
    "rebalance_timeout_ms": (10_000,),
    "timestamp": (-1, -2, 0),
    "topic_names": (("t",),),
    "transactional_id": (None,),
    "value": ("1000",),
}


def with_plausible_values(message: Message, random: Random) -> Message:
    """Set some fields of a message to values that refer to existing topics and groups."""
    for name in message.fields:
        value = getattr(message, name)
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, Message):
                with_plausible_values(part, random)
        if name in _PLAUSIBLE and random.random() < 0.8:
            setattr(message, name, random.choice(_PLAUSIBLE[name]))
    return message


def mutated(frame: bytes, random: Random) -> bytes:
    """Return a frame, size included, damaged in one to four positions."""
    body = bytearray(frame[4:])
    for _ in range(random.randint(1, 4)):
        if not body:
            break
        at = random.randrange(len(body))
        match random.randrange(8):
            case 0:
                body[at] ^= 1 << random.randrange(8)
            case 1:
                body[at] = random.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
            case 2:
                false_length = random.choice(FALSE_LENGTHS)
                body[at : at + len(false_length)] = false_length
            case 3:
                del body[at:]
            case 4:
                del body[at : at + random.randint(1, 8)]
            case 5:
                body[at:at] = random.randbytes(random.choice((1, 2, 4, 100)))
            case 6:
                part = body[at : at + random.randint(1, 30)]
                body[at:at] = part * random.choice((1, 2, 50))
            case 7:
                body += random.randbytes(random.choice((1, 7, 5000)))
    if random.random() < 0.9:
        return framed(bytes(body))
    return struct.pack(">i", random.choice((len(body) - 1, len(body) + 1, 8, 0))) + bytes(body)
