"""Rows 15 to 22: hostile clients, while others produce and consume.

The tests in tests/hostile try each attack in more detail, alone.
"""

from __future__ import annotations

import os
import resource
import statistics
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chaos.matrix import row
from chaos.testbed import Run, Testbed
from harness.attack import (
    MIB,
    append,
    mutated,
    open_connections,
    with_plausible_values,
)
from harness.bombs import (
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
from harness.bombs import a_batch as a_bomb
from harness.daemon import Daemon, anonymous_mib, open_files, socket_count
from harness.golden_frames import RECORDED_FRAMES
from harness.topic_names import INVALID_NAMES, create
from harness.waiting import wait_until
from harness.wire import BlockingWireClient, frame_of, framed
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

CONFIGS = {"broker.max.partitions": "300"}
GROWTH_MIB = 48.0
#: Announcements in both directions, metadata, and forwarded requests.
_CONNECTIONS_TO_OTHERS = 4
#: Excluded from fuzzing: they would change configs that the load depends on.
_CHANGING = ("AlterConfigs", "IncrementalAlterConfigs")


@contextmanager
def _attacked(run: Run, **configs: str) -> Iterator[tuple[Testbed, Daemon]]:
    """Attack under load; check that others are served, and that resources are released."""
    named = {name.replace("_", "."): text for name, text in configs.items()}
    with run.testbed({**CONFIGS, **named}) as testbed:
        broker = testbed.victim
        before = socket_count(broker)
        with testbed.load(per_second=300) as load:
            with run.undisturbed(testbed):
                yield testbed, broker
            load.wait_for_acks()
        # Brokers connect to each other when they need to, and stay connected.
        limit = before + 2 + _CONNECTIONS_TO_OTHERS * (len(testbed.brokers) - 1)
        wait_until(lambda: socket_count(broker) <= limit, "sockets closed")
        run.verify(testbed, load, growth_mib=GROWTH_MIB)


@row("15", "corrupt requests", "frames", short=300, normal=20_000, full=1_000_000)
def fuzz(run: Run) -> None:
    pool = list(_valid_frames(run.random))
    with _attacked(run) as (_testbed, broker):
        for _ in run.cycles():
            frame = mutated(run.random.choice(pool), run.random)
            with BlockingWireClient(broker) as connection:
                connection.send(frame)
                connection.read_to_end()
    # Decoding without a socket is much faster.
    for _ in range(run.count * 10):
        with suppress(ProtocolError):
            decode_request(mutated(run.random.choice(pool), run.random)[4:])
    run.note(f"{run.count * 10:,} more without a socket")


def _valid_frames(random: Random) -> Iterator[bytes]:
    """Yield recorded requests of real clients, and requests of every API and version."""
    apis = [api for api in SUPPORTED_APIS.values() if api.name not in _CHANGING]
    keys = {api.key for api in apis}
    for line in RECORDED_FRAMES:
        if line.direction == "request" and line.api.key in keys:
            yield framed(line.frame)
    for api in apis:
        for version in api.versions:
            request = smallest(api.request, version)
            yield frame_of(request, version)
            with suppress(EncodeError):  # a field that this version lacks
                yield frame_of(with_plausible_values(deepcopy(request), random), version)


@row("16", "length bombs", "connections", short=100, normal=1000, full=1000)
def send_length_bombs(run: Run) -> None:
    too_large = (
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        struct.pack(">i", 100 * MIB + 1),
    )
    promise = struct.pack(">ih", 100 * MIB, 0)
    with _attacked(run) as (_testbed, broker), ExitStack() as stack:
        before = anonymous_mib(broker)
        for cycle in run.cycles():
            if cycle % 2:
                # A large frame that may still arrive, byte by byte.
                for connection in open_connections(broker, stack, 1, promise):
                    connection.send(b"\0")
            else:
                with BlockingWireClient(broker) as connection:
                    connection.send(too_large[cycle // 2 % len(too_large)] + bytes(20))
                    assert connection.is_closed(), "an invalid size was accepted"
        grown = anonymous_mib(broker) - before
        assert grown < GROWTH_MIB, f"grown by {grown:.0f} MiB for announced sizes"


@row("17", "count bombs", "arrays", short=20, normal=1000, full=1000)
def send_count_bombs(run: Run) -> None:
    arrays = [
        (api, version, path)
        for api in SUPPORTED_APIS.values()
        for version in sorted({api.versions.first, api.versions.last})
        for path in array_paths(api.request, version)
    ]
    run.random.shuffle(arrays)
    run.count = min(run.count, len(arrays))
    with _attacked(run) as (_testbed, broker):
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
def send_compression_bombs(run: Run) -> None:
    made = list(_first(bombs(), run.count))
    run.count = len(made)
    refusals = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    with _attacked(run) as (testbed, broker):
        testbed.create_topic(
            "compacted", 1, on_victim=True, cleanup_policy="compact", segment_bytes=str(16 * MIB)
        )
        for cycle in run.cycles():
            name, codec, payload = made[cycle]
            with BlockingWireClient(broker) as connection:
                code = produce_error_code(connection, "compacted", a_bomb(codec, payload))
            assert code in refusals, f"{name}: {code}"


def _first(items: Iterator[Any], count: int) -> Iterator[Any]:
    return (item for _, item in zip(range(count), items, strict=False))


@row("19", "slow requests, a byte at a time", "connections", short=200, normal=2000, full=2000)
def drip(run: Run) -> None:
    promise = struct.pack(">ih", 1000, 3)
    with (
        _many_descriptors(run.count),
        _attacked(run, connections_progress_timeout_ms="1000") as (_testbed, broker),
        ExitStack() as stack,
    ):
        made = open_connections(broker, stack, run.count, promise)
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            for connection in made:
                connection.send(b"\0")
            time.sleep(0.5)
        for cycle in run.cycles():
            assert made[cycle].is_closed(), "a stalled connection was kept"


@row("20", "many connections", "connections", short=300, normal=5000, full=5000)
def open_many_connections(run: Run) -> None:
    limit = str(run.count + 1000)
    limits = {"max_connections": limit, "max_connections_per_ip": limit}
    with (
        _many_descriptors(run.count),
        _attacked(run, **limits) as (_testbed, broker),
        ExitStack() as stack,
    ):
        before, quick = anonymous_mib(broker), _percentile(broker)
        idle = []
        for _ in run.cycles():
            idle += open_connections(broker, stack, 1)
        for connection in idle[:: max(1, run.count // 50)]:
            assert connection.request(ApiVersionsRequest(), 2).error_code == 0
        wait_until(lambda: socket_count(broker) >= run.count, "all connections")
        grown, slow = anonymous_mib(broker) - before, _percentile(broker)
        with _churning_connections(broker) as count:
            _percentile(broker)
        run.note(f"{grown * 1024 / run.count:.1f} KiB each, {count[0]} more opened and closed")
        run.note(f"99th percentile {slow * 1000:.1f} ms, {quick * 1000:.1f} ms before")
        assert slow < max(2.0, 10 * quick), "idle connections slow down others"


def _percentile(broker: Daemon, requests: int = 200) -> float:
    """Return the 99th percentile of response times, in seconds."""
    times = []
    with BlockingWireClient(broker) as connection:
        for _ in range(requests):
            started = time.perf_counter()
            connection.request(ApiVersionsRequest(), 0)
            times.append(time.perf_counter() - started)
    return statistics.quantiles(times, n=100)[-1]


@contextmanager
def _churning_connections(broker: Daemon) -> Iterator[list[int]]:
    """Open and close connections in a thread; yield their count."""
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
    """Raise the limit of file descriptors of this process and its brokers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the limit of file descriptors is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@row("21", "slow consumers of deleted records", "consumers", short=20, normal=100, full=200)
def read_slowly(run: Run) -> None:
    # The full run fills a whole response for each consumer.
    records = 40 if run.count <= 20 else 1100
    wanted = [FetchPartition(partition=0, partition_max_bytes=2**31 - 1)]
    fetch = FetchRequest(
        topics=[FetchTopic(topic="backlog", partitions=wanted)], max_bytes=2**31 - 1
    )
    with _attacked(run, log_retention_check_interval_ms="200") as (testbed, broker):
        config = {"segment_bytes": str(16 * MIB), "retention_ms": "-1"}
        testbed.create_topic("backlog", 1, on_victim=True, **config)
        append(broker, os.urandom(900_000), times=records, topic="backlog")
        with ExitStack() as stack:
            before = anonymous_mib(broker)
            slow = open_connections(broker, stack, run.count, frame_of(fetch, 12) * 3)
            for connection in slow:
                connection.read_part(1024)
            _delete_all(broker, "backlog")
            for cycle in run.cycles():
                slow[cycle].read_part(1024)
            grown = anonymous_mib(broker) - before
            assert grown < GROWTH_MIB, f"grown by {grown:.0f} MiB for slow consumers"
            # A response that was being sent is not affected by the deletion.
            first = slow[0]
            _check_response(first.rest_of_frame())
        log = broker.data / "backlog-0"
        wait_until(lambda: not list(log.glob("*.deleted")), "files of deleted segments removed")
        wait_until(
            lambda: not [name for name in open_files(broker) if name.endswith("(deleted)")],
            "files of deleted segments closed",
        )


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


@row("22", "hostile names and offsets", "names", short=27, normal=27, full=27)
def send_invalid_names_and_offsets(run: Run) -> None:
    run.count = len(INVALID_NAMES)
    with _attacked(run) as (testbed, broker):
        testbed.create_topic("fine", 1, on_victim=True)
        append(broker, b"value", times=3, topic="fine")
        outside = _outside(run.folder, testbed.brokers)
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
        assert _outside(run.folder, testbed.brokers) == outside, (
            "a file was created outside of the data directory"
        )


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
    """Return all files outside of the brokers' data directories."""
    return sorted(
        str(path)
        for path in folder.parent.rglob("*")
        if not any(path.is_relative_to(broker.data) for broker in brokers)
    )
