"""What an attacker has: sockets and bytes. And what we have: a look at the broker's memory and log.

The broker is the real daemon, a process of its own, so that its memory is its own too.
"""

from __future__ import annotations

import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import pytest

from harness.daemon import Daemon
from harness.logs import a_batch
from harness.requests import create_topics_request
from harness.wire import BlockingWireClient, error_codes, framed, produce_request
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.schema import Message

if not Path("/proc/self/smaps_rollup").exists():
    pytest.skip("a look at the memory of another process needs Linux", allow_module_level=True)

MIB = 1024 * 1024
PATIENCE = 20.0
#: What nobody who is attacked may log: a bug that came up, whoever caught it.
_BUG = re.compile(r"Traceback|Exception|\bERROR\b|\bCRITICAL\b|never retrieved")
#: Lengths and counts that are lies, in the forms that there are.
LIES = (
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


class Bystander:
    """Somebody who asks something small again and again, and remembers the longest wait."""

    def __init__(self, broker: Daemon) -> None:
        self._broker = broker
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: Exception | None = None
        self.longest_seconds = 0.0
        self.answers = 0

    def _run(self) -> None:
        try:
            with BlockingWireClient(self._broker) as connection:
                while not self.answers or not self._done.wait(0.002):
                    started = time.perf_counter()
                    connection.request(ApiVersionsRequest(), 0)
                    self.longest_seconds = max(self.longest_seconds, time.perf_counter() - started)
                    self.answers += 1
        except Exception as error:  # noqa: BLE001  # said where somebody looks
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        if kind is None:
            assert self._failure is None, self._failure
            assert self.answers


@contextmanager
def unharmed(broker: Daemon, *, growth_mib: float) -> Iterator[None]:
    """What must be true after an attack, whatever it was.

    The broker runs, answers, has logged no bug, holds no more sockets than before, and no more
    memory than said: memory of its own, for what is mapped is the page cache's.
    """
    assert broker.answers()
    logged, connections = len(broker.log.read_bytes()), sockets(broker)
    before = anonymous_mib(broker)
    yield
    assert broker.is_running, broker.last_words()
    assert broker.answers()
    lines = broker.log.read_bytes()[logged:].decode(errors="replace")
    assert not _BUG.search(lines), lines[-5000:]
    deadline = time.monotonic() + PATIENCE
    while sockets(broker) > connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sockets(broker) <= connections
    grown = anonymous_mib(broker) - before
    assert grown <= growth_mib, f"grown by {grown:.1f} MiB"


def anonymous_mib(broker: Daemon) -> float:
    """Memory that is the process's own."""
    return _of(Path(f"/proc/{broker.pid}/smaps_rollup"), "Anonymous")


def peak_mib(broker: Daemon) -> float:
    """The most memory that it ever had, pages of mapped files and its program included."""
    return _of(Path(f"/proc/{broker.pid}/status"), "VmHWM")


def sockets(broker: Daemon) -> int:
    """Its descriptors but for files, of which it may rightly have more than before."""
    count = 0
    for path in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += path.readlink().name.startswith("socket:")
    return count


def _of(path: Path, name: str) -> float:
    for line in path.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"{path} does not say {name}")


def make_topic(broker: Daemon, name: str, partitions: int = 1, **configs: str) -> None:
    """Make a topic; its settings are said with underscores."""
    with BlockingWireClient(broker) as connection:
        (made,) = connection.request(create_topics_request(name, partitions, **configs), 5).topics
        assert made.error_code == 0, made


def crowd(
    broker: Daemon, stack: ExitStack, count: int, data: bytes = b""
) -> list[BlockingWireClient]:
    """So many connections, each of which says something and then nothing."""
    made = []
    for _ in range(count):
        connection = stack.enter_context(BlockingWireClient(broker))
        if data:
            connection.send(data)
        made.append(connection)
    return made


def append(broker: Daemon, value: bytes, times: int = 1, index: int = 0, topic: str = "t") -> None:
    """Append a record so many times, by hand."""
    request = produce_request(a_batch(value=value), topic=topic, partition=index)
    with BlockingWireClient(broker) as connection:
        for _ in range(times):
            assert error_codes(connection.request(request, 9)) == [0]


#: What makes a request reach something, by the name of the field.
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


def made_plausible(message: Message, chance: Random) -> Message:
    """Put values into a message, here and there, with which it finds what it is about."""
    for name in message.fields:
        value = getattr(message, name)
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, Message):
                made_plausible(part, chance)
        if name in _PLAUSIBLE and chance.random() < 0.8:
            setattr(message, name, chance.choice(_PLAUSIBLE[name]))
    return message


def mutated(frame: bytes, chance: Random) -> bytes:
    """Damage a frame, which has its size in front, in one to four places."""
    body = bytearray(frame[4:])
    for _ in range(chance.randint(1, 4)):
        if not body:
            break
        at = chance.randrange(len(body))
        match chance.randrange(8):
            case 0:
                body[at] ^= 1 << chance.randrange(8)
            case 1:
                body[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
            case 2:
                lie = chance.choice(LIES)
                body[at : at + len(lie)] = lie
            case 3:
                del body[at:]
            case 4:
                del body[at : at + chance.randint(1, 8)]
            case 5:
                body[at:at] = chance.randbytes(chance.choice((1, 2, 4, 100)))
            case 6:
                part = body[at : at + chance.randint(1, 30)]
                body[at:at] = part * chance.choice((1, 2, 50))
            case 7:
                body += chance.randbytes(chance.choice((1, 7, 5000)))
    if chance.random() < 0.9:
        return framed(bytes(body))
    return struct.pack(">i", chance.choice((len(body) - 1, len(body) + 1, 8, 0))) + bytes(body)
