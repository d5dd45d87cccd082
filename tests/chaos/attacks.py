"""Rows 15 to 22: people who mean no good, while others work.

What each attack is made of is in tests/hostile, where it is tried in more detail, alone.
"""

from __future__ import annotations

import os
import resource
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chaos.matrix import row
from chaos.stage import Run, Stage, memory_mib
from harness.daemon import Daemon
from harness.wire import BlockingWireClient, frame_of, framed
from hostile.attack import (
    MIB,
    LatencyProbe,
    append,
    mutated,
    open_connections,
    socket_count,
    with_plausible_values,
)
from hostile.bombs import (
    COMPACT_COUNTS,
    COUNTS,
    REFUSED_COUNT,
    ArrayFrames,
    array_paths,
    bombs,
    is_numeric,
    produce_error_code,
    send_raw,
    smallest,
)
from hostile.bombs import a_batch as a_bomb
from hostile.names import INVALID_NAMES, create
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.batch import split_batches
from ottla.protocol.codec import decode_request, decode_response
from ottla.protocol.errors import EncodeError, ErrorCode, ProtocolError
from test_golden import RECORDED_FRAMES

SETTINGS = {"broker.max.partitions": "300"}
GROWTH_MIB = 48.0
#: Those that change settings: of a broker that others work with, they are not to be changed.
_CHANGING = ("AlterConfigs", "IncrementalAlterConfigs")


@contextmanager
def _attacked(run: Run, **settings: str) -> Iterator[tuple[Stage, Daemon]]:
    """Let others work, attack, and see that they are served and nothing is left of it."""
    named = {name.replace("_", "."): text for name, text in settings.items()}
    with run.stage({**SETTINGS, **named}) as stage:
        broker = stage.victim
        before = socket_count(broker)
        with stage.load(per_second=300) as load:
            with LatencyProbe(broker) as probe:
                yield stage, broker
            load.wait_for_acks()
        _until(lambda: socket_count(broker) <= before + 2, "sockets given back")
        run.note(f"others waited {probe.longest_seconds * 1000:.0f} ms at most")
        run.judge(stage, load, growth_mib=GROWTH_MIB)


def _until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


@row("15", "damaged requests", "frames", short=500, normal=20_000, full=1_000_000)
def fuzz(run: Run) -> None:
    pool = list(_sound_frames(run.chance))
    with _attacked(run) as (_stage, broker):
        for _ in run.cycles():
            frame = mutated(run.chance.choice(pool), run.chance)
            with BlockingWireClient(broker) as connection:
                connection.send(frame)
                connection.read_to_end()
    # Without a socket there is time for more.
    for _ in range(run.count * 10):
        with suppress(ProtocolError):
            decode_request(mutated(run.chance.choice(pool), run.chance)[4:])
    run.note(f"{run.count * 10:,} more without a socket")


def _sound_frames(chance: Random) -> Iterator[bytes]:
    """Requests of real clients, and one of every api and version."""
    apis = [api for api in SUPPORTED_APIS.values() if api.name not in _CHANGING]
    keys = {api.key for api in apis}
    for line in RECORDED_FRAMES:
        if line.direction == "request" and line.api.key in keys:
            yield framed(line.frame)
    for api in apis:
        for version in api.versions:
            request = smallest(api.request, version)
            yield frame_of(request, version)
            with suppress(EncodeError):  # a field that this version has not
                yield frame_of(with_plausible_values(deepcopy(request), chance), version)


@row("16", "length bombs", "connections", short=200, normal=1000, full=1000)
def lie_about_lengths(run: Run) -> None:
    too_large = (
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        struct.pack(">i", 100 * MIB + 1),
    )
    promise = struct.pack(">ih", 100 * MIB, 0)
    with _attacked(run) as (_stage, broker), ExitStack() as stack:
        before = memory_mib(broker.pid)
        for cycle in run.cycles():
            if cycle % 2:
                # It may be sent, for all one knows: a byte at a time.
                for connection in open_connections(broker, stack, 1, promise):
                    connection.send(b"\0")
            else:
                with BlockingWireClient(broker) as connection:
                    connection.send(too_large[cycle // 2 % len(too_large)] + bytes(20))
                    assert connection.is_closed(), "a size that cannot be was taken"
        grown = memory_mib(broker.pid) - before
        assert grown < GROWTH_MIB, f"grown by {grown:.0f} MiB for promises"


@row("17", "count bombs", "arrays", short=20, normal=1000, full=1000)
def lie_about_counts(run: Run) -> None:
    arrays = [
        (api, version, path)
        for api in SUPPORTED_APIS.values()
        for version in sorted({api.versions.first, api.versions.last})
        for path in array_paths(api.request, version)
    ]
    run.chance.shuffle(arrays)
    run.count = min(run.count, len(arrays))
    with _attacked(run) as (_stage, broker):
        for cycle in run.cycles():
            api, version, path = arrays[cycle]
            bomb = ArrayFrames(api, version, path)
            where = f"{api.name} {version}, {'.'.join(path)}"
            for count in COMPACT_COUNTS if bomb.is_compact else COUNTS:
                assert send_raw(broker, bomb.counting(count, 5)) == b"", where
            send_raw(broker, bomb.of(3000))
            if bomb.element_size <= 8 and not is_numeric(api.request, path):
                assert send_raw(broker, bomb.of(REFUSED_COUNT)) == b"", where


@row("18", "compression bombs", "bombs", short=3, normal=100, full=100)
def bomb(run: Run) -> None:
    made = list(_first(bombs(), run.count))
    run.count = len(made)
    refusals = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    with _attacked(run) as (stage, broker):
        stage.create_topic(
            "compacted", 1, on_victim=True, cleanup_policy="compact", segment_bytes=str(16 * MIB)
        )
        for cycle in run.cycles():
            name, codec, payload = made[cycle]
            with BlockingWireClient(broker) as connection:
                code = produce_error_code(connection, "compacted", a_bomb(codec, payload))
            assert code in refusals, f"{name}: {code}"


def _first(items: Iterator[Any], count: int) -> Iterator[Any]:
    return (item for _, item in zip(range(count), items, strict=False))


@row("19", "a byte now and then", "connections", short=200, normal=2000, full=2000)
def drip(run: Run) -> None:
    promise = struct.pack(">ih", 1000, 3)
    with (
        _many_descriptors(run.count),
        _attacked(run, connections_progress_timeout_ms="1000") as (_stage, broker),
        ExitStack() as stack,
    ):
        made = open_connections(broker, stack, run.count, promise)
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            for connection in made:
                connection.send(b"\0")
            time.sleep(0.5)
        for cycle in run.cycles():
            assert made[cycle].is_closed(), "it was given more time"


@row("20", "many connections", "connections", short=500, normal=5000, full=5000)
def gather(run: Run) -> None:
    most = str(run.count + 1000)
    limits = {"max_connections": most, "max_connections_per_ip": most}
    with (
        _many_descriptors(run.count),
        _attacked(run, **limits) as (_stage, broker),
        ExitStack() as stack,
    ):
        before, quick = memory_mib(broker.pid), _percentile(broker)
        idle = []
        for _ in run.cycles():
            idle += open_connections(broker, stack, 1)
        for connection in idle[:: max(1, run.count // 50)]:
            assert connection.request(ApiVersionsRequest(), 3).error_code == 0
        _until(lambda: socket_count(broker) >= run.count, "all of them")
        grown, slow = memory_mib(broker.pid) - before, _percentile(broker)
        with _coming_and_going(broker) as count:
            _percentile(broker)
        run.note(f"{grown * 1024 / run.count:.1f} KiB each, {count[0]} more came and went")
        run.note(f"99 % of answers in {slow * 1000:.1f} ms, {quick * 1000:.1f} ms before")
        assert slow < max(2.0, 10 * quick), "others are kept waiting by those who do nothing"


def _percentile(broker: Daemon, asks: int = 200) -> float:
    """Give the time in which 99 of 100 answers come."""
    times = []
    with BlockingWireClient(broker) as connection:
        for _ in range(asks):
            started = time.perf_counter()
            connection.request(ApiVersionsRequest(), 0)
            times.append(time.perf_counter() - started)
    return statistics.quantiles(times, n=100)[-1]


@contextmanager
def _coming_and_going(broker: Daemon) -> Iterator[list[int]]:
    """Let somebody connect, and leave, as fast as can be."""
    count, stopping = [0], threading.Event()

    def run() -> None:
        while not stopping.is_set():
            with BlockingWireClient(broker):
                count[0] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield count
        time.sleep(0.5)
    finally:
        stopping.set()
        thread.join()


@contextmanager
def _many_descriptors(count: int) -> Iterator[None]:
    """Let this process and its brokers have so many, for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"no more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@row("21", "slow consumers, of what is then deleted", "consumers", short=20, normal=100, full=200)
def read_slowly(run: Run) -> None:
    # As much for each as a response may have.
    records = 40 if run.count <= 20 else 1100
    wanted = [FetchPartition(partition=0, partition_max_bytes=2**31 - 1)]
    fetch = FetchRequest(
        topics=[FetchTopic(topic="backlog", partitions=wanted)], max_bytes=2**31 - 1
    )
    with _attacked(run, log_retention_check_interval_ms="200") as (stage, broker):
        config = {"segment_bytes": str(16 * MIB), "retention_ms": "-1"}
        stage.create_topic("backlog", 1, on_victim=True, **config)
        append(broker, os.urandom(900_000), times=records, topic="backlog")
        with ExitStack() as stack:
            before = memory_mib(broker.pid)
            slow = open_connections(broker, stack, run.count, frame_of(fetch, 12) * 3)
            for connection in slow:
                connection.read_part(1024)
            _delete_all(broker, "backlog")
            for cycle in run.cycles():
                slow[cycle].read_part(1024)
            grown = memory_mib(broker.pid) - before
            assert grown < GROWTH_MIB, f"grown by {grown:.0f} MiB for who does not read"
            # What was deleted meanwhile is still what it was for who had begun to read it.
            first = slow[0]
            _check_response(first.rest_of_frame())
        log = broker.data / "backlog-0"
        _until(lambda: not list(log.glob("*.deleted")), "files of deleted segments removed")
        _until(lambda: not _deleted_files(broker), "files of deleted segments closed")


def _delete_all(broker: Daemon, topic: str) -> None:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)]
            )
        ],
        timeout_ms=10_000,
    )
    with BlockingWireClient(broker) as connection:
        (answer,) = connection.request(request, 2).topics
        assert answer.partitions[0].error_code == 0, answer


def _check_response(frame: bytes) -> None:
    _, response = decode_response(FetchRequest.api.response, 12, frame)
    (partition,) = response.responses[0].partitions
    assert partition.error_code == 0, partition
    batches = list(split_batches(bytes(partition.records)))
    assert len(batches) > 10
    for batch in batches:
        batch.validate()


def _deleted_files(broker: Daemon) -> list[str]:
    found = []
    for path in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(path.readlink()))
    return [name for name in found if name.endswith("(deleted)")]


@row("22", "hostile names and offsets", "names", short=27, normal=27, full=27)
def name_badly(run: Run) -> None:
    run.count = len(INVALID_NAMES)
    with _attacked(run) as (stage, broker):
        stage.create_topic("fine", 1, on_victim=True)
        append(broker, b"value", times=3, topic="fine")
        outside = _outside(run.folder, stage.brokers)
        with BlockingWireClient(broker) as connection:
            for cycle in run.cycles():
                name = INVALID_NAMES[cycle]
                assert create(connection, name) == [ErrorCode.INVALID_TOPIC_EXCEPTION], name
                wanted = [MetadataRequestTopic(name=name)]
                (found,) = connection.request(MetadataRequest(topics=wanted), 12).topics
                assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert _fetched(connection, topic=name) == unknown, name
            for offset in (-3, -(2**63), 4, 2**63 - 1):
                code = _fetched(connection, offset=offset)
                assert code == ErrorCode.OFFSET_OUT_OF_RANGE, offset
            for epoch in (1, 2**31 - 1):
                code = _fetched(connection, epoch=epoch)
                assert code == ErrorCode.UNKNOWN_LEADER_EPOCH, epoch
        assert _outside(run.folder, stage.brokers) == outside, "a file outside of the directory"


def _fetched(
    connection: BlockingWireClient, *, topic: str = "fine", offset: int = 0, epoch: int = -1
) -> ErrorCode:
    wanted = FetchPartition(
        partition=0, fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=1000
    )
    request = FetchRequest(topics=[FetchTopic(topic=topic, partitions=[wanted])])
    (found,) = connection.request(request, 12).responses[0].partitions
    return ErrorCode(found.error_code)


def _outside(folder: Path, brokers: Sequence[Daemon]) -> list[str]:
    """List what is there but for what is in data directories."""
    return sorted(
        str(path)
        for path in folder.parent.rglob("*")
        if not any(path.is_relative_to(broker.data) for broker in brokers)
    )
