"""Many idle, stalled or slow connections: others are served, and their memory is released."""

import resource
import struct
import time
from contextlib import ExitStack

import pytest

from harness.attack import MIB, append, create_topic, open_connections, undisturbed, unharmed
from harness.daemon import Daemon, anonymous_mib, socket_count
from harness.wire import BlockingWireClient, frame_of
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic

CONNECTION_COUNT = 2000


@pytest.fixture
def broker(tmp_path):
    with Daemon(tmp_path) as started:
        create_topic(started, "t", 2)
        yield started


@pytest.fixture(autouse=True)
def raised_descriptor_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    min_descriptors = CONNECTION_COUNT + 500
    if hard != resource.RLIM_INFINITY and hard < min_descriptors:
        pytest.skip(f"requires {min_descriptors} file descriptors; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min_descriptors), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_thousand_idle_connections(broker):
    with unharmed(broker, growth_mib=24), ExitStack() as stack:
        before = anonymous_mib(broker)
        idle = open_connections(broker, stack, CONNECTION_COUNT)
        for connection in idle[:: CONNECTION_COUNT // 50]:
            assert connection.request(ApiVersionsRequest(), 2).error_code == 0
        until(lambda: socket_count(broker) >= CONNECTION_COUNT)

        with undisturbed(broker):
            append(broker, bytes(100_000), times=100)

        # At most ten kilobytes each: idle connections have no read buffer.
        assert anonymous_mib(broker) - before < CONNECTION_COUNT * 10 / 1024 + 8


def test_large_frame_sizes_without_data(broker):
    """A thousand connections announce 100 MiB each, and a thousand 100 KiB."""
    large = struct.pack(">ih", 100 * MIB, 0) + bytes(1000)
    small = struct.pack(">ih", 100 * 1024, 0) + bytes(10)
    with unharmed(broker, growth_mib=24), ExitStack() as stack:
        before = anonymous_mib(broker)
        open_connections(broker, stack, CONNECTION_COUNT // 2, large)
        open_connections(broker, stack, CONNECTION_COUNT // 2, small)
        until(lambda: socket_count(broker) >= CONNECTION_COUNT)

        with undisturbed(broker):
            append(broker, bytes(50_000), times=50)

        assert anonymous_mib(broker) - before < 64


def test_stalled_requests_release_their_budget(tmp_path):
    configs = {
        "connections.progress.timeout.ms": 100,
        "socket.request.max.bytes": 300_000,
        "queued.max.request.bytes": 450_000,
    }
    pairs = [f"{name}={value}" for name, value in configs.items()]
    with Daemon(tmp_path, *[part for pair in pairs for part in ("--set", pair)]) as broker:
        create_topic(broker, "t")
        half = struct.pack(">ih", 200_000, 0) + bytes(150_000)
        with unharmed(broker, growth_mib=24), ExitStack() as stack:
            stalled = open_connections(broker, stack, 20, half)

            append(broker, bytes(20_000), times=20)  # Small requests do not wait for the budget.

            # The budget has room for two of them at a time, until they time out.
            for connection in stalled[:4]:
                assert connection.is_closed()
        append(broker, bytes(250_000))


def test_consumers_that_do_not_read(broker):
    append(broker, bytes(900_000), times=30)
    partitions = [FetchPartition(partition_max_bytes=2**31 - 1)]
    fetch = FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)], max_bytes=2**31 - 1)
    frame = frame_of(fetch, 12)

    with unharmed(broker, growth_mib=24), ExitStack() as stack:
        before = anonymous_mib(broker)
        unread = open_connections(broker, stack, 100, frame * 5)
        with undisturbed(broker):
            append(broker, bytes(100_000), times=100, index=1)

        # 100 responses of 27 MB are queued, as views of mapped segments: nothing is copied.
        assert anonymous_mib(broker) - before < 32
        for _ in range(5):
            assert len(unread[0].frame()) > 30 * 900_000


def test_long_polls_of_disconnected_clients(broker):
    partitions = [FetchPartition(partition=1, partition_max_bytes=1)]
    fetch = FetchRequest(
        topics=[FetchTopic(topic="t", partitions=partitions)], min_bytes=1, max_wait_ms=2**31 - 1
    )
    with unharmed(broker, growth_mib=24):
        for _ in range(20):
            with ExitStack() as stack:
                open_connections(broker, stack, 20, frame_of(fetch, 12) * 60)


def test_reset_connections(broker):
    with unharmed(broker, growth_mib=24), undisturbed(broker):
        for number in range(500):
            with BlockingWireClient(broker) as connection:
                connection.reset_on_close()
                if number % 2:
                    connection.send(frame_of(ApiVersionsRequest(), 0) * (number % 7))
