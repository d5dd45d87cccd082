"""Many at once: idle, half open, slow to read. Others are served, and what they took comes back."""

import resource
import struct
import time
from contextlib import ExitStack

import pytest

from harness.daemon import Daemon
from harness.wire import BlockingWireClient, frame_of
from hostile.attack import (
    MIB,
    Bystander,
    anonymous_mib,
    append,
    crowd,
    make_topic,
    sockets,
    unharmed,
)
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic

CROWD = 2000


@pytest.fixture
def broker(tmp_path):
    with Daemon(tmp_path) as started:
        make_topic(started, "t", 2)
        yield started


@pytest.fixture(autouse=True)
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CROWD + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"no more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
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
        idle = crowd(broker, stack, CROWD)
        for connection in idle[:: CROWD // 50]:
            assert connection.request(ApiVersionsRequest(), 3).error_code == 0
        until(lambda: sockets(broker) >= CROWD)

        with Bystander(broker):
            append(broker, bytes(100_000), times=100)

        # Ten kilobytes each, at most; what a parked read would need comes on top in other designs.
        assert anonymous_mib(broker) - before < CROWD * 10 / 1024 + 8


def test_sizes_that_are_only_promises(broker):
    """A thousand say that they will send 100 MiB, a thousand that they will send 100 KiB."""
    large = struct.pack(">ih", 100 * MIB, 0) + bytes(1000)
    small = struct.pack(">ih", 100 * 1024, 0) + bytes(10)
    with unharmed(broker, growth_mib=24), ExitStack() as stack:
        before = anonymous_mib(broker)
        crowd(broker, stack, CROWD // 2, large)
        crowd(broker, stack, CROWD // 2, small)
        until(lambda: sockets(broker) >= CROWD)

        with Bystander(broker):
            append(broker, bytes(50_000), times=50)

        assert anonymous_mib(broker) - before < 64


def test_requests_that_stop_halfway_give_back_what_they_held(tmp_path):
    settings = {
        "connections.progress.timeout.ms": 100,
        "socket.request.max.bytes": 300_000,
        "queued.max.request.bytes": 450_000,
    }
    pairs = [f"{name}={value}" for name, value in settings.items()]
    with Daemon(tmp_path, *[part for pair in pairs for part in ("--set", pair)]) as broker:
        make_topic(broker, "t")
        half = struct.pack(">ih", 200_000, 0) + bytes(150_000)
        with unharmed(broker, growth_mib=24), ExitStack() as stack:
            stalled = crowd(broker, stack, 20, half)

            append(broker, bytes(20_000), times=20)  # small enough not to wait

            # Two of them have room at a time, and their time; then it is the turn of others.
            for connection in stalled[:4]:
                assert connection.is_closed()
        append(broker, bytes(250_000))


def test_consumers_that_do_not_read(broker):
    append(broker, bytes(900_000), times=30)
    wanted = [FetchPartition(partition_max_bytes=2**31 - 1)]
    fetch = FetchRequest(topics=[FetchTopic(topic="t", partitions=wanted)], max_bytes=2**31 - 1)
    frame = frame_of(fetch, 12)

    with unharmed(broker, growth_mib=24), ExitStack() as stack:
        before = anonymous_mib(broker)
        deaf = crowd(broker, stack, 100, frame * 5)
        with Bystander(broker):
            append(broker, bytes(100_000), times=100, index=1)

        # 100 answers of 27 MB lie there, as views of the file; none of it is copied.
        assert anonymous_mib(broker) - before < 32
        for _ in range(5):
            assert len(deaf[0].frame()) > 30 * 900_000


def test_long_polls_without_end_of_clients_that_have_gone(broker):
    wanted = [FetchPartition(partition=1, partition_max_bytes=1)]
    fetch = FetchRequest(
        topics=[FetchTopic(topic="t", partitions=wanted)], min_bytes=1, max_wait_ms=2**31 - 1
    )
    with unharmed(broker, growth_mib=24):
        for _ in range(20):
            with ExitStack() as stack:
                crowd(broker, stack, 20, frame_of(fetch, 12) * 60)


def test_connections_that_are_reset(broker):
    with unharmed(broker, growth_mib=24), Bystander(broker):
        for number in range(500):
            with BlockingWireClient(broker) as connection:
                connection.reset_on_close()
                if number % 2:
                    connection.send(frame_of(ApiVersionsRequest(), 0) * (number % 7))
