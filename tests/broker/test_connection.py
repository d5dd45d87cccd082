"""Connections: frames in any chunks, limits, and clients that misbehave or stall."""

import asyncio
import errno
import os
import socket
import struct
import sys
from contextlib import AsyncExitStack
from random import Random

import pytest

from harness.brokers import a_broker, add_topic, is_serving, on_both_loops, partition_of
from harness.logs import a_batch
from harness.waiting import eventually
from harness.wire import (
    WireClient,
    batches_of,
    connect,
    error_codes,
    fetch_request,
    fetched_partitions,
    offsets_of,
    produce_request,
    produce_results,
)
from ottla.broker import Broker, BrokerConfig
from ottla.broker.net import server
from ottla.broker.observability import logging as logging_module
from ottla.broker.observability.logging import RateLimiter
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.coord.quotas import PRODUCER_BYTE_RATE, USER, quota_entity, quota_record
from ottla.protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.errors import ErrorCode
from ottla.storage.disk import Disk

SCRATCH = 128 * 1024
API_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")


def frame_of(request, version, correlation_id=1):
    return b"".join(encode_request(request, version, correlation_id, "wire"))


def api_versions_frame(correlation_id=1, padding=0):
    """Return an ApiVersions frame, padded with bytes that are ignored."""
    head = struct.pack(">hhih", 18, 0, correlation_id, -1) + bytes(padding)
    return struct.pack(">i", len(head)) + head


def connections(broker):
    return broker.server._connections


def produce_frame(size, correlation_id=1, **fields):
    """Return a Produce frame of `size` bytes, not counting the length prefix, and its value."""
    bare = len(frame_of(produce_request(a_batch(value=bytes(70_000)), **fields), 9)) - 4
    value = Random(size).randbytes(70_000 + size - bare)
    request = produce_request(a_batch(value=value), **fields)
    frame = frame_of(request, 9, correlation_id)
    assert len(frame) == size + 4
    return frame, value


@pytest.fixture
def frequent_checks(monkeypatch):
    """Check deadlines more often than once a second."""
    monkeypatch.setattr(server, "_CHECK_SECONDS", 0.02)


# Chunks of any size.


def request_stream(*, large):
    """Return requests of many kinds as bytes, and the number of their responses."""
    requests = [
        (API_VERSIONS, 0),
        (produce_request(a_batch(3)), 9),
        (fetch_request(0), 12),
        (produce_request(a_batch(1), a_batch(2), acks=0), 3),
        (API_VERSIONS, 3),
        (produce_request(a_batch(2), acks=-1), 11),
        (fetch_request(0, 0, 9, max_wait_ms=9000), 4),
        (fetch_request(8, max_wait_ms=10), 12),
        (produce_request(b"nonsense"), 7),
        (fetch_request(0, topic="nowhere"), 7),
    ]
    if large:
        random = Random(2)
        for size in (1000, 130_000, 300_000, 200, 2_000_000, 131_072):
            requests.append(
                (produce_request(a_batch(value=random.randbytes(size)), topic="big"), 9)
            )
            requests.append((fetch_request(0, partition_max_bytes=1), 12))
    data = b"".join(frame_of(request, *rest) for *rest, request in ordered(requests))
    return data, len(requests) - 1


def ordered(requests):
    return [(version, number, request) for number, (request, version) in enumerate(requests)]


async def responses_to(path, chunks, count):
    """Send chunks to a new broker; return its response frames."""
    async with a_broker(path) as broker, connect(broker) as client:
        await add_topic(broker, "big", max_message_bytes="10000000")
        for chunk in chunks:
            client.writer.write(chunk)
            await client.writer.drain()
            for _ in range(3):
                await asyncio.sleep(0)
        responses = [await client.frame() for _ in range(count)]
        assert await client.receives_nothing(0.01)
        return responses


def chunked(data, random, max_bytes):
    position = 0
    while position < len(data):
        size = random.randrange(1, max_bytes + 1)
        yield data[position : position + size]
        position += size


@on_both_loops
async def test_responses_do_not_depend_on_chunking(tmp_path):
    data, count = request_stream(large=False)
    in_one = await responses_to(tmp_path / "one", [data], count)

    byte_by_byte = await responses_to(
        tmp_path / "bytes", [data[n : n + 1] for n in range(len(data))], count
    )

    assert [struct.unpack(">i", response[:4])[0] for response in in_one] == [
        0,
        1,
        2,
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    assert byte_by_byte == in_one


@pytest.mark.parametrize(
    ("seed", "max_bytes"),
    [(1, 7), (2, 60), (3, 1000), (4, SCRATCH), (5, SCRATCH + 1), (6, 10**6)],
)
async def test_responses_do_not_depend_on_random_chunk_sizes(tmp_path, seed, max_bytes):
    data, count = request_stream(large=max_bytes >= 1000)
    in_one = await responses_to(tmp_path / "one", [data], count)

    in_chunks = await responses_to(
        tmp_path / "chunks", chunked(data, Random(seed), max_bytes), count
    )

    assert in_chunks == in_one


@on_both_loops
async def test_many_requests_in_one_segment_are_answered_in_order(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.writer.write(b"".join(api_versions_frame(number) for number in range(3000)))

        responses = [struct.unpack(">i", (await client.frame())[:4])[0] for _ in range(3000)]

        assert responses == list(range(3000))


@on_both_loops
async def test_a_connection_with_many_requests_does_not_block_others(tmp_path):
    async with (
        a_broker(tmp_path) as broker,
        connect(broker) as greedy,
        connect(broker) as other,
    ):
        await other.request(API_VERSIONS, 0)
        greedy.writer.write(b"".join(api_versions_frame(number) for number in range(9000)))
        await eventually(lambda: broker.metrics.latency["ApiVersions"].count > 1)

        await other.request(API_VERSIONS, 0)

        assert broker.metrics.latency["ApiVersions"].count < 5000
        for number in range(9000):
            assert (await greedy.frame())[:4] == struct.pack(">i", number)


@on_both_loops
async def test_frames_around_the_size_of_the_scratch_buffer(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        sizes = [SCRATCH + more for more in (-5, -4, -3, -1, 0, 1, 4, 5)]
        frames = [produce_frame(size, number) for number, size in enumerate(sizes)]
        client.writer.write(b"".join(frame + api_versions_frame(99) for frame, _value in frames))

        for number in range(len(sizes)):
            for expected in (number, 99):
                assert struct.unpack(">i", (await client.frame())[:4]) == (expected,)

        (data,) = fetched_partitions(
            await client.request(fetch_request(0, partition_max_bytes=10**8), 12)
        )
        values = [bytes(record.value) for batch in batches_of(data) for record in batch.records()]
        assert values == [value for _frame, value in frames]


# Invalid frame sizes.


@pytest.mark.parametrize("size", [-1, 0, 1, 7, 2**31 - 1, -(2**31), 2**30])
@on_both_loops
async def test_an_invalid_frame_size_closes_the_connection_before_the_frame_arrives(tmp_path, size):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.writer.write(struct.pack(">ih", size, 0))

        assert await client.is_closed()
        assert broker.metrics.connections["malformed"] == 1
        assert await is_serving(broker)


async def test_requests_other_than_produce_have_a_smaller_limit(tmp_path):
    configs = {"socket_request_max_bytes": 200_000, "socket_other_request_max_bytes": 2000}
    async with a_broker(tmp_path, **configs) as broker:
        async with connect(broker) as client:
            client.writer.write(
                api_versions_frame(padding=1990) + api_versions_frame(2, padding=1991)[:6]
            )

            assert (await client.frame())[:4] == struct.pack(">i", 1)
            assert await client.is_closed()
        async with connect(broker) as client:
            client.writer.write(produce_frame(200_000, 7)[0])
            client.writer.write(produce_frame(200_001, 8)[0][:6])

            assert (await client.frame())[:4] == struct.pack(">i", 7)
            assert await client.is_closed()


async def test_the_smallest_frame_is_a_header(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        # Eight bytes have no client id. An unknown ApiVersions version is answered nevertheless.
        client.writer.write(struct.pack(">ihhi", 8, 18, 99, 5))
        assert (await client.frame())[:6] == struct.pack(">ih", 5, 35)

        client.writer.write(struct.pack(">ihhi", 8, 18, 0, 5))
        assert await client.is_closed()


@on_both_loops
async def test_a_malformed_request_closes_only_its_connection(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as bystander:
        for junk in (b"\xff" * 20, bytes(20), b"GET / HTTP/1.1\r\n\r\n"):
            async with connect(broker) as client:
                client.writer.write(struct.pack(">i", len(junk)) + junk + api_versions_frame())
                assert await client.is_closed()

        assert (await bystander.request(API_VERSIONS, 0)).error_code == 0


@pytest.mark.parametrize(
    ("first_bytes", "protocol"),
    [(b"GET / HTTP/1.1\r\n\r\n", "HTTP"), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS")],
)
async def test_a_client_with_another_protocol_is_named_in_the_log(
    tmp_path, caplog, monkeypatch, first_bytes, protocol
):
    # Tests before this one may have used up what is logged in ten seconds.
    monkeypatch.setattr(logging_module, "_RATE_LIMITER", RateLimiter(10, window_seconds=10))
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.writer.write(first_bytes)
        assert await client.is_closed()

    (record,) = [one for one in caplog.records if one.message == "Connection closed"]
    assert record.levelname == "WARNING"
    assert f"the peer speaks {protocol}, not the Kafka protocol" in str(vars(record))


@on_both_loops
async def test_earlier_responses_are_sent_before_a_malformed_request_closes_the_connection(
    tmp_path,
):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.writer.write(
            api_versions_frame(1) + api_versions_frame(2) + struct.pack(">ih", -1, 0)
        )

        assert [(await client.frame())[:4] for _ in range(2)] == [
            struct.pack(">i", number) for number in (1, 2)
        ]
        assert await client.is_closed()


@on_both_loops
async def test_a_malformed_request_behind_a_long_poll_closes_the_connection(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.send(fetch_request(0, max_wait_ms=9000), 12)
        client.writer.write(struct.pack(">ih", -1, 0))

        assert await client.is_closed()
        await eventually(lambda: not partition_of(broker).waiters and not connections(broker))


# Versions.


@pytest.mark.parametrize(
    ("key", "version"),
    [(0, 2), (0, 12), (1, 3), (1, 19), (3, 99), (3, -1), (4, 0), (18_000, 0), (-1, 0)],
)
async def test_an_unsupported_api_or_version_closes_the_connection(tmp_path, key, version):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        body = struct.pack(">hhih", key, version, 1, -1) + bytes(100)
        client.writer.write(struct.pack(">i", len(body)) + body)

        assert await client.is_closed()


@pytest.mark.parametrize(
    ("name", "version"), [("", "1"), ("a", ""), ("a b", "1"), ("-a", "1"), ("a", "1-")]
)
async def test_an_invalid_name_of_the_client_software_is_refused(tmp_path, name, version):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)

        assert (await client.request(request, 3)).error_code == ErrorCode.INVALID_REQUEST
        assert (await client.request(API_VERSIONS, 3)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
async def test_an_unknown_version_of_api_versions_returns_the_supported_versions(tmp_path, version):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        body = struct.pack(">hhi", 18, version, 77) + b"\xff" * 10
        client.writer.write(struct.pack(">i", len(body)) + body)

        correlation_id, response = decode_response(ApiVersionsResponse, 0, await client.frame())

        assert (correlation_id, response.error_code) == (77, 35)
        supported = {
            entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys
        }
        assert supported.keys() == SUPPORTED_APIS.keys()
        assert (supported[0], supported[1], supported[18]) == ((0, 13), (4, 18), (0, 4))
        assert (await client.request(API_VERSIONS, 4)).error_code == 0


# Disconnects.


@on_both_loops
async def test_a_half_closed_connection_gets_the_responses_that_are_ready(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await client.request(produce_request(a_batch()), 9)
        client.send(fetch_request(0), 12)
        client.writer.write_eof()

        assert offsets_of(fetched_partitions(await client.response())[0]) == [0]
        assert await client.is_closed()
        await eventually(lambda: not connections(broker))


@on_both_loops
async def test_a_disconnect_at_any_point_of_a_request_leaves_nothing_behind(tmp_path):
    async with a_broker(tmp_path) as broker:
        whole, _ = produce_frame(300_000)
        prefixes = [
            b"",
            whole[:3],
            whole[:5],
            whole[:50],
            whole[:-1],
            api_versions_frame() + whole[:200_000],
        ]

        for prefix in prefixes:
            async with connect(broker) as client:
                client.writer.write(prefix)
                await client.writer.drain()

        await eventually(lambda: not connections(broker))
        assert broker.server.budget.used_bytes == 0
        assert partition_of(broker).log.end_offset == 0


@on_both_loops
async def test_a_reset_connection_leaves_nothing_behind(tmp_path):
    async with a_broker(tmp_path) as broker:
        for data in (
            b"",
            frame_of(fetch_request(0, max_wait_ms=9000), 12),
            produce_frame(300_000)[0][:-1],
        ):
            async with connect(broker) as client:
                sock = client.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.writer.write(data)
                await client.writer.drain()
                await asyncio.sleep(0.01)

        await eventually(lambda: not connections(broker) and not partition_of(broker).waiters)
        assert broker.server.budget.used_bytes == 0


@on_both_loops
async def test_a_disconnect_at_the_in_flight_limit_is_noticed(tmp_path, frequent_checks):
    """Reading is paused, so the disconnect is not seen before the broker sends a response."""
    configs = {"max_in_flight_requests_per_connection": 2, "connections_max_idle_ms": 1000}
    async with a_broker(tmp_path, **configs) as broker:
        async with connect(broker) as client:
            for _ in range(3):
                client.send(fetch_request(0, max_wait_ms=2**31 - 1), 12)
            await eventually(lambda: len(partition_of(broker).waiters) == 2)

        await eventually(lambda: not connections(broker) and not partition_of(broker).waiters)


@on_both_loops
async def test_shutdown_does_not_wait_for_clients_that_do_not_read(tmp_path):
    configs = {
        "shutdown_timeout_ms": 200,
        "socket_send_queue_bytes": 1000,
        "socket_send_buffer_bytes": 10_000,
    }
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        async with a_broker(tmp_path, **configs) as broker:
            half, unread = [await stack.enter_async_context(connect(broker)) for _ in range(2)]
            await unread.request(produce_request(a_batch(value=bytes(900_000))), 9)
            unread.writer.transport.pause_reading()
            for _ in range(20):
                unread.send(fetch_request(0), 12)
            half.writer.write(produce_frame(300_000)[0][:200_000])
            await eventually(lambda: broker.server.budget.used_bytes > 0)
            started = loop.time()

        assert loop.time() - started < 5
        assert await half.is_closed()


@on_both_loops
async def test_a_request_without_a_response_closes_only_its_connection(tmp_path, caplog):
    """A bug is logged, and later responses are not sent in its place."""

    def broken(_broker, _context, _request):
        future = asyncio.get_running_loop().create_future()
        future.set_exception(RuntimeError("a bug"))
        return future

    async with a_broker(tmp_path) as broker, connect(broker) as client:
        broker.dispatcher._handlers[1] = broken

        client.send(fetch_request(0), 12)
        client.send(API_VERSIONS, 0)

        assert await client.is_closed()
        assert "a bug" in caplog.text
        assert await is_serving(broker)


# The budget (queued.max.request.bytes).


LARGE = 250_000
TIGHT = {"socket_request_max_bytes": 300_000, "queued_max_request_bytes": 300_000}


@on_both_loops
async def test_large_requests_of_several_clients_are_received_one_after_the_other(tmp_path):
    async with a_broker(tmp_path, **TIGHT) as broker, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(broker)) for _ in range(6)]
        frames = [produce_frame(LARGE, number)[0] for number in range(6)]
        budget = broker.server.budget
        for client, frame in zip(clients, frames, strict=True):
            client.writer.write(frame[:200_000])
        await eventually(lambda: budget.waiting_count == 5)
        assert budget.used_bytes <= 200_000 + 5 * SCRATCH

        # Small requests are served meanwhile, even in pieces.
        assert await is_serving(broker)
        async with connect(broker) as small:
            for part in (
                api_versions_frame()[:3],
                api_versions_frame()[3:7],
                api_versions_frame()[7:],
            ):
                small.writer.write(part)
                await asyncio.sleep(0.01)
            assert (await small.frame())[:4] == struct.pack(">i", 1)

        for client, frame in zip(clients, frames, strict=True):
            client.writer.write(frame[200_000:])
        responses = [(await client.frame())[:4] for client in clients]

        assert responses == [struct.pack(">i", number) for number in range(6)]
        assert partition_of(broker).log.end_offset == 6
        assert (budget.used_bytes, budget.waiting_count) == (0, 0)


@on_both_loops
async def test_a_disconnect_of_a_waiting_request_releases_its_bytes(tmp_path):
    async with (
        a_broker(tmp_path, **TIGHT) as broker,
        connect(broker) as first,
        connect(broker) as third,
    ):
        budget = broker.server.budget
        frame, _ = produce_frame(LARGE)
        first.writer.write(frame[:200_000])
        await eventually(lambda: budget.used_bytes == 200_000)
        async with connect(broker) as second:
            second.writer.write(frame[:200_000])
            await eventually(lambda: budget.waiting_count == 1)
            third.writer.write(frame)
            await eventually(lambda: budget.waiting_count == 2)

        first.writer.transport.abort()

        assert (await third.frame())[:4] == struct.pack(">i", 1)
        await eventually(lambda: len(connections(broker)) == 1)
        assert (budget.used_bytes, budget.waiting_count) == (0, 0)


@on_both_loops
async def test_a_request_that_waits_for_the_budget_buffers_only_what_arrived(tmp_path):
    async with a_broker(tmp_path, **TIGHT) as broker, AsyncExitStack() as stack:
        budget = broker.server.budget
        clients = [await stack.enter_async_context(connect(broker)) for _ in range(4)]
        for client in clients:
            client.writer.write(produce_frame(LARGE)[0][:1000])
        await eventually(lambda: budget.waiting_count == 3)

        held = [
            len(connection._framer._frame)
            for connection in connections(broker)
            if connection._awaits_budget
        ]

        assert held == [996] * 3


@on_both_loops
async def test_a_request_within_the_budget_is_read_to_its_end(tmp_path):
    """Otherwise it would hold its bytes for as long as its client does not read."""
    configs = TIGHT | {"socket_send_queue_bytes": 1000, "socket_send_buffer_bytes": 4096}
    async with (
        a_broker(tmp_path, **configs) as broker,
        connect(broker) as first,
        connect(broker) as second,
        connect(broker) as other,
    ):
        budget = broker.server.budget
        frame, _ = produce_frame(LARGE)
        first.writer.write(frame[:200_000])
        await eventually(lambda: budget.used_bytes == 200_000)
        # The second has long polls in flight and waits for the budget, and does not read responses.
        second.writer.transport.pause_reading()
        for _ in range(60):
            second.send(fetch_request(0, max_wait_ms=9000), 12)
        second.writer.write(frame[:200_000])
        await eventually(lambda: budget.waiting_count == 1)
        await other.request(produce_request(a_batch(value=bytes(100_000))), 9)
        await eventually(lambda: any(c._send_queue._is_blocked for c in connections(broker)))

        first.writer.write(frame[200_000:])
        await first.frame()
        second.writer.write(frame[200_000:])

        await eventually(lambda: partition_of(broker).log.end_offset == 3)
        assert (budget.used_bytes, budget.waiting_count) == (0, 0)


# Clients that do not read.


@on_both_loops
async def test_reading_pauses_while_a_client_does_not_read_and_nothing_is_lost(tmp_path):
    configs = {"socket_send_queue_bytes": 50_000, "socket_send_buffer_bytes": 20_000}
    async with a_broker(tmp_path, **configs) as broker, connect(broker) as client:
        value = Random(1).randbytes(100_000)
        await client.request(produce_request(a_batch(value=value)), 9)
        client.writer.transport.pause_reading()
        for _ in range(60):
            client.send(fetch_request(0), 12)
        await asyncio.sleep(0.2)

        (connection,) = connections(broker)
        assert connection._transport.get_write_buffer_size() < 50_000 + 2 * 101_000
        assert broker.metrics.latency["Fetch"].count < 60
        assert await is_serving(broker)
        client.writer.transport.resume_reading()

        for _ in range(60):
            ((batch,),) = [batches_of(data) for data in fetched_partitions(await client.response())]
            assert [bytes(record.value) for record in batch.records()] == [value]


@on_both_loops
async def test_the_in_flight_limit_pauses_reading(tmp_path):
    configs = {"max_in_flight_requests_per_connection": 3}
    async with a_broker(tmp_path, **configs) as broker, connect(broker) as client:
        for _ in range(5):
            client.send(fetch_request(0, max_wait_ms=9000), 12)
        client.send(produce_request(a_batch(), partition=1), 9)
        await eventually(lambda: len(partition_of(broker).waiters) == 3)
        await asyncio.sleep(0.05)
        assert len(partition_of(broker).waiters) == 3
        assert partition_of(broker, "t", 1).log.end_offset == 0

        async with connect(broker) as producer:
            await producer.request(produce_request(a_batch()), 9)

        for _ in range(5):
            assert offsets_of(fetched_partitions(await client.response())[0]) == [0]
        assert error_codes(await client.response()) == [0]


# Connection limits.


@on_both_loops
async def test_max_connections(tmp_path):
    async with (
        a_broker(tmp_path, max_connections=2) as broker,
        connect(broker) as first,
        connect(broker) as second,
    ):
        for client in (first, second):
            await client.request(API_VERSIONS, 0)
        async with connect(broker) as third:
            assert await third.is_closed()

        await second.close()
        await eventually(lambda: len(connections(broker)) == 1)

        assert await is_serving(broker)
        assert (await first.request(API_VERSIONS, 0)).error_code == 0
        assert broker.metrics.connections["refused"] == 1


async def test_file_descriptors_limit_connections(tmp_path):
    class ScarceDisk(Disk):
        def descriptor_limit(self):
            return 200

    config = BrokerConfig(log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0")
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(config, disk=ScarceDisk()))
        clients = [await stack.enter_async_context(connect(broker)) for _ in range(40)]

        ends = [client.is_closed() for client in clients[36:]]

        assert await asyncio.gather(*ends) == [True] * 4
        assert (await clients[35].request(API_VERSIONS, 0)).error_code == 0
        assert len(connections(broker)) == 36


@on_both_loops
async def test_a_socket_for_both_protocols_has_the_addresses_of_ipv4(tmp_path):
    """ACLs and quotas name 127.0.0.1, and not ::ffff:127.0.0.1."""
    configs = {
        "log.dir": str(tmp_path),
        "listeners": "PLAINTEXT://[::]:0",
        "allow.insecure.listeners": "true",
    }
    async with Broker(BrokerConfig.of(configs)) as broker:
        _, writer = await asyncio.open_connection("127.0.0.1", broker.address.rsplit(":", 1)[1])
        await eventually(lambda: broker.server._connections)
        assert [one.client_host for one in broker.server._connections] == ["127.0.0.1"]
        writer.close()


async def test_max_connections_per_ip(tmp_path):
    async with (
        a_broker(tmp_path, max_connections_per_ip=1) as broker,
        connect(broker) as first,
    ):
        await first.request(API_VERSIONS, 0)
        async with connect(broker) as second:
            assert await second.is_closed()
        host, _, port = broker.address.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(
                host, int(port), local_addr=("127.0.0.2", 0)
            )
        except OSError as error:
            assert error.errno == errno.EADDRNOTAVAIL
            pytest.skip("this machine has one loopback address")
        third = WireClient(reader, writer)
        try:
            writer.write(api_versions_frame())
            assert await reader.readexactly(8)
        finally:
            await third.close()


# Idle and stalled connections.


@on_both_loops
async def test_an_idle_connection_is_closed_and_an_active_one_is_not(tmp_path, frequent_checks):
    async with (
        a_broker(tmp_path, connections_max_idle_ms=1000) as broker,
        connect(broker) as idle,
        connect(broker) as busy,
    ):
        loop = asyncio.get_running_loop()
        started = loop.time()
        ended = asyncio.create_task(idle.is_closed())

        while loop.time() < started + 2:
            await busy.request(API_VERSIONS, 0)
            await asyncio.sleep(0.01)

        assert await ended
        assert (await busy.request(API_VERSIONS, 0)).error_code == 0
        assert broker.metrics.connections["idle"] == 1


@on_both_loops
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells who has left")
async def test_a_client_that_leaves_while_it_is_not_read_is_forgotten(tmp_path, frequent_checks):
    """Unless it has sent something that is yet to be done."""
    async with a_broker(tmp_path) as broker:
        connections = broker.server._connections
        record = quota_record(quota_entity([(USER, None)]), {PRODUCER_BYTE_RATE: 1.0})
        await broker.controller.change(lambda: [record])
        for sends_more in (True, False):
            async with connect(broker) as client:
                await client.request(produce_request(a_batch(value=bytes(30_000))), 9)
                if sends_more:
                    client.send(produce_request(a_batch(), acks=0), 9)

        await eventually(lambda: len(connections) == 1)
        (busy,) = connections
        busy._unmute()
        await eventually(lambda: not connections)
        assert broker.topics.find("t", 0).log.end_offset == 3


@on_both_loops
async def test_a_client_over_its_quota_that_is_gone_does_not_stay(tmp_path, frequent_checks):
    """Even if it has sent something: it may be muted for days."""
    async with a_broker(tmp_path, connections_max_idle_ms=500) as broker:
        record = quota_record(quota_entity([(USER, None)]), {PRODUCER_BYTE_RATE: 1.0})
        await broker.controller.change(lambda: [record])
        async with connect(broker) as client:
            response = await client.request(produce_request(a_batch(value=bytes(1000))), 9)
            assert response.throttle_time_ms > 900_000
            client.writer.write(b"\0\0")

        await eventually(lambda: not broker.server._connections)
        assert broker.metrics.connections["idle"] == 1


@on_both_loops
async def test_a_connection_is_not_idle_during_or_right_after_a_long_poll(
    tmp_path, frequent_checks
):
    async with (
        a_broker(tmp_path, connections_max_idle_ms=1200) as broker,
        connect(broker) as client,
    ):
        client.send(fetch_request(0, max_wait_ms=1190), 12)
        await client.response()
        await asyncio.sleep(0.2)

        assert (await client.request(API_VERSIONS, 0)).error_code == 0


@pytest.mark.parametrize("prefix", [1, 3, 5, 13, 2000, 290_000])
@on_both_loops
async def test_an_incomplete_request_closes_the_connection(tmp_path, frequent_checks, prefix):
    async with (
        a_broker(tmp_path, connections_progress_timeout_ms=100) as broker,
        connect(broker) as client,
    ):
        frame, _ = produce_frame(300_000)

        client.writer.write(frame[:prefix])

        assert await client.is_closed()
        assert broker.metrics.connections["stalled"] == 1
        assert broker.server.budget.used_bytes == 0


@on_both_loops
async def test_single_bytes_do_not_extend_the_read_deadline(tmp_path, frequent_checks):
    async with (
        a_broker(tmp_path, connections_progress_timeout_ms=200) as broker,
        connect(broker) as client,
    ):
        loop = asyncio.get_running_loop()
        started = loop.time()
        ended = asyncio.create_task(client.is_closed())

        for byte in api_versions_frame(padding=5000):
            if ended.done():
                break
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.01)

        assert await ended
        assert 0.2 <= loop.time() - started < 5


@on_both_loops
async def test_a_continuous_stream_is_not_stalled(tmp_path, frequent_checks):
    """Every write ends in the middle of a frame size."""
    async with (
        a_broker(tmp_path, connections_progress_timeout_ms=1500) as broker,
        connect(broker) as client,
    ):
        frames = [api_versions_frame(number) for number in range(40)]
        data = b"".join(frames)
        size = len(frames[0])

        client.writer.write(data[: size + 2])
        for number in range(1, 39):
            await asyncio.sleep(0.05)
            client.writer.write(data[number * size + 2 : (number + 1) * size + 2])
        client.writer.write(data[39 * size + 2 :])

        for number in range(40):
            assert (await client.frame())[:4] == struct.pack(">i", number)


@on_both_loops
async def test_a_request_behind_the_in_flight_limit_is_not_stalled(tmp_path, frequent_checks):
    configs = {
        "max_in_flight_requests_per_connection": 1,
        "connections_progress_timeout_ms": 1000,
    }
    async with a_broker(tmp_path, **configs) as broker, connect(broker) as client:
        long_poll = frame_of(fetch_request(0, max_wait_ms=1500), 12, correlation_id=1)
        client.writer.write(long_poll[:2])
        await asyncio.sleep(0.02)
        client.writer.write(long_poll[2:] + api_versions_frame(2) + api_versions_frame(3)[:2])

        assert (await client.frame())[:4] == struct.pack(">i", 1)
        assert (await client.frame())[:4] == struct.pack(">i", 2)
        client.writer.write(api_versions_frame(3)[2:])
        assert (await client.frame())[:4] == struct.pack(">i", 3)


@on_both_loops
async def test_a_request_that_waits_for_the_budget_is_not_stalled(tmp_path, frequent_checks):
    configs = TIGHT | {"connections_progress_timeout_ms": 1000}
    async with (
        a_broker(tmp_path, **configs) as broker,
        connect(broker) as slow,
        connect(broker) as patient,
    ):
        frame, _ = produce_frame(LARGE)
        slow.writer.write(frame[:200_000])
        await eventually(lambda: broker.server.budget.used_bytes > 0)
        patient.writer.write(frame)

        assert await slow.is_closed()
        assert (await patient.frame())[:4] == struct.pack(">i", 1)


def fetch_count(broker):
    histogram = broker.metrics.latency.get("Fetch")
    return histogram.count if histogram else 0


@on_both_loops
async def test_unread_responses_close_the_connection(tmp_path, frequent_checks):
    configs = {
        "socket_send_queue_bytes": 1000,
        "socket_send_buffer_bytes": 10_000,
        "connections_progress_timeout_ms": 1000,
    }
    async with a_broker(tmp_path, **configs) as broker, connect(broker) as client:
        await client.request(produce_request(a_batch(value=bytes(900_000))), 9)
        client.writer.transport.pause_reading()

        for _ in range(20):
            client.send(fetch_request(0), 12)

        await eventually(lambda: not connections(broker))
        assert broker.metrics.connections["stalled"] == 1


@on_both_loops
async def test_a_slow_reader_gets_its_response(tmp_path, frequent_checks, monkeypatch):
    # With it, Linux itself may reset slow readers, which is not what is tested.
    monkeypatch.setattr("ottla.broker.net.connection._TCP_USER_TIMEOUT", None)
    configs = {
        "socket_send_queue_bytes": 1000,
        "socket_send_buffer_bytes": 10_000,
        "connections_progress_timeout_ms": 1000,
    }
    async with a_broker(tmp_path, **configs) as broker:
        value = Random(3).randbytes(900_000)
        async with connect(broker) as client:
            await client.request(produce_request(a_batch(value=value)), 9)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        host, _, port = broker.address.rpartition(":")
        with sock:
            await loop.sock_connect(sock, (host, int(port)))
            await loop.sock_sendall(sock, frame_of(fetch_request(0), 12))
            received = bytearray()
            started = loop.time()
            while loop.time() < started + 2:
                received += await loop.sock_recv(sock, 4096)
                await asyncio.sleep(0.02)
            assert len(received) < 500_000
            while len(received) < 900_000:
                received += await loop.sock_recv(sock, 65_536)

        assert value in received


@on_both_loops
async def test_segments_are_deleted_after_the_client_that_fetched_them_disconnects(tmp_path):
    configs = {"socket_send_queue_bytes": 1000, "socket_send_buffer_bytes": 10_000}
    async with a_broker(tmp_path, **configs) as broker:
        log = partition_of(broker).log
        async with connect(broker) as client:
            for _ in range(10):
                await client.request(produce_request(a_batch(value=bytes(900_000))), 9)
            client.writer.transport.pause_reading()
            client.send(fetch_request(0, partition_max_bytes=2**31 - 1), 12)
            await eventually(lambda: fetch_count(broker) == 1)
            log.roll()
            log.delete_records_before(10)
            client.writer.transport.abort()
        await eventually(lambda: not connections(broker))

        await eventually(lambda: log.purge_deleted_segments() == 0)

        assert os.listdir(log.directory) != []
        assert produce_results(await _produced(broker))[0].base_offset == 10


async def _produced(broker):
    async with connect(broker) as client:
        return await client.request(produce_request(a_batch()), 9)
