"""A connection, byte by byte: frames in any chunks, limits, and clients that misbehave or stall."""

import asyncio
import errno
import os
import socket
import struct
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
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.codec import decode_response, encode_request
from ottla.storage.disk import Disk

SCRATCH = 128 * 1024
HELLO = ApiVersionsRequest()


def frame_of(request, version, correlation_id=1):
    return b"".join(encode_request(request, version, correlation_id, "wire"))


def hello(correlation_id=1, padding=0):
    """ApiVersions, and bytes that nobody looks at."""
    head = struct.pack(">hhih", 18, 0, correlation_id, -1) + bytes(padding)
    return struct.pack(">i", len(head)) + head


def connections(broker):
    return broker.server._connections


def a_produce_of(size, correlation_id=1, **fields):
    """A Produce whose frame has so many bytes, its own size not counted."""
    bare = len(frame_of(produce_request(a_batch(value=bytes(70_000)), **fields), 9)) - 4
    value = Random(size).randbytes(70_000 + size - bare)
    request = produce_request(a_batch(value=value), **fields)
    frame = frame_of(request, 9, correlation_id)
    assert len(frame) == size + 4
    return frame, value


@pytest.fixture
def watchful(monkeypatch):
    """A server that looks after its connections more often than once a second."""
    monkeypatch.setattr(server, "_CHECK_SECONDS", 0.02)


# Any chunks.


def a_conversation(*, large):
    """Requests of all sorts, as bytes, and how many of them are answered."""
    requests = [
        (HELLO, 0),
        (produce_request(a_batch(3)), 9),
        (fetch_request(0), 12),
        (produce_request(a_batch(1), a_batch(2), acks=0), 3),
        (HELLO, 3),
        (produce_request(a_batch(2), acks=-1), 11),
        (fetch_request(0, 0, 9, max_wait_ms=9000), 4),
        (fetch_request(8, max_wait_ms=10), 12),
        (produce_request(b"nonsense"), 7),
        (fetch_request(0, topic="nowhere"), 7),
    ]
    if large:
        chance = Random(2)
        for size in (1000, 130_000, 300_000, 200, 2_000_000, 131_072):
            requests.append(
                (produce_request(a_batch(value=chance.randbytes(size)), topic="big"), 9)
            )
            requests.append((fetch_request(0, partition_max_bytes=1), 12))
    data = b"".join(frame_of(request, *rest) for *rest, request in ordered(requests))
    return data, len(requests) - 1


def ordered(requests):
    return [(version, number, request) for number, (request, version) in enumerate(requests)]


async def answers_to(path, chunks, count):
    """What a broker without a past answers, byte for byte."""
    async with a_broker(path) as broker, connect(broker) as client:
        await add_topic(broker, "big", max_message_bytes="10000000")
        for chunk in chunks:
            client.writer.write(chunk)
            await client.writer.drain()
            for _ in range(3):
                await asyncio.sleep(0)
        answers = [await client.frame() for _ in range(count)]
        assert await client.receives_nothing(0.01)
        return answers


def chunked(data, chance, most):
    position = 0
    while position < len(data):
        size = chance.randrange(1, most + 1)
        yield data[position : position + size]
        position += size


@on_both_loops
async def test_however_the_bytes_come_the_answers_are_the_same(tmp_path):
    data, count = a_conversation(large=False)
    in_one = await answers_to(tmp_path / "one", [data], count)

    byte_by_byte = await answers_to(
        tmp_path / "bytes", [data[n : n + 1] for n in range(len(data))], count
    )

    assert [struct.unpack(">i", answer[:4])[0] for answer in in_one] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert byte_by_byte == in_one


@pytest.mark.parametrize(
    ("seed", "most"),
    [(1, 7), (2, 60), (3, 1000), (4, SCRATCH), (5, SCRATCH + 1), (6, 10**6)],
)
async def test_chunks_of_random_sizes_give_the_same_answers(tmp_path, seed, most):
    data, count = a_conversation(large=most >= 1000)
    in_one = await answers_to(tmp_path / "one", [data], count)

    in_chunks = await answers_to(tmp_path / "chunks", chunked(data, Random(seed), most), count)

    assert in_chunks == in_one


@on_both_loops
async def test_many_requests_in_one_segment_are_all_answered_in_order(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.writer.write(b"".join(hello(number) for number in range(3000)))

        answers = [struct.unpack(">i", (await client.frame())[:4])[0] for _ in range(3000)]

        assert answers == list(range(3000))


@on_both_loops
async def test_who_sends_very_many_at_once_does_not_keep_others_waiting(tmp_path):
    async with (
        a_broker(tmp_path) as broker,
        connect(broker) as greedy,
        connect(broker) as other,
    ):
        await other.request(HELLO, 0)
        greedy.writer.write(b"".join(hello(number) for number in range(9000)))
        await eventually(lambda: broker.metrics.latency["ApiVersions"].count > 1)

        await other.request(HELLO, 0)

        assert broker.metrics.latency["ApiVersions"].count < 5000
        for number in range(9000):
            assert (await greedy.frame())[:4] == struct.pack(">i", number)


@on_both_loops
async def test_frames_around_the_size_of_what_is_read_at_once(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        sizes = [SCRATCH + more for more in (-5, -4, -3, -1, 0, 1, 4, 5)]
        frames = [a_produce_of(size, number) for number, size in enumerate(sizes)]
        client.writer.write(b"".join(frame + hello(99) for frame, _value in frames))

        for number in range(len(sizes)):
            for expected in (number, 99):
                assert struct.unpack(">i", (await client.frame())[:4]) == (expected,)

        (data,) = fetched_partitions(
            await client.request(fetch_request(0, partition_max_bytes=10**8), 12)
        )
        values = [bytes(record.value) for batch in batches_of(data) for record in batch.records()]
        assert values == [value for _frame, value in frames]


# Sizes that cannot be.


@pytest.mark.parametrize("size", [-1, 0, 1, 7, 2**31 - 1, -(2**31), 2**30])
@on_both_loops
async def test_a_size_that_cannot_be_closes_the_connection_before_its_bytes_come(tmp_path, size):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.writer.write(struct.pack(">ih", size, 0))

        assert await client.is_closed()
        assert broker.metrics.connections["malformed"] == 1
        assert await is_serving(broker)


async def test_a_request_that_is_not_produce_has_a_smaller_limit(tmp_path):
    settings = {"socket_request_max_bytes": 200_000, "socket_other_request_max_bytes": 2000}
    async with a_broker(tmp_path, **settings) as broker:
        async with connect(broker) as client:
            client.writer.write(hello(padding=1990) + hello(2, padding=1991)[:6])

            assert (await client.frame())[:4] == struct.pack(">i", 1)
            assert await client.is_closed()
        async with connect(broker) as client:
            client.writer.write(a_produce_of(200_000, 7)[0])
            client.writer.write(a_produce_of(200_001, 8)[0][:6])

            assert (await client.frame())[:4] == struct.pack(">i", 7)
            assert await client.is_closed()


async def test_the_smallest_frame_there_can_be_is_a_whole_header(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        # Eight bytes have no place for a client id. ApiVersions is answered if it is unknown.
        client.writer.write(struct.pack(">ihhi", 8, 18, 99, 5))
        assert (await client.frame())[:6] == struct.pack(">ih", 5, 35)

        client.writer.write(struct.pack(">ihhi", 8, 18, 0, 5))
        assert await client.is_closed()


@on_both_loops
async def test_a_frame_that_makes_no_sense_ends_the_connection_and_no_other(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as bystander:
        for junk in (b"\xff" * 20, bytes(20), b"GET / HTTP/1.1\r\n\r\n"):
            async with connect(broker) as client:
                client.writer.write(struct.pack(">i", len(junk)) + junk + hello())
                assert await client.is_closed()

        assert (await bystander.request(HELLO, 0)).error_code == 0


@on_both_loops
async def test_answers_that_were_ready_leave_before_the_connection_is_closed(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.writer.write(hello(1) + hello(2) + struct.pack(">ih", -1, 0))

        assert [(await client.frame())[:4] for _ in range(2)] == [
            struct.pack(">i", number) for number in (1, 2)
        ]
        assert await client.is_closed()


@on_both_loops
async def test_nonsense_behind_a_parked_fetch_ends_both(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.send(fetch_request(0, max_wait_ms=9000), 12)
        client.writer.write(struct.pack(">ih", -1, 0))

        assert await client.is_closed()
        await eventually(lambda: not partition_of(broker).waiters and not connections(broker))


# Versions.


@pytest.mark.parametrize(
    ("key", "version"),
    [(0, 2), (0, 12), (1, 3), (1, 13), (3, 99), (3, -1), (4, 0), (18_000, 0), (-1, 0)],
)
async def test_what_is_not_served_closes_the_connection(tmp_path, key, version):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        body = struct.pack(">hhih", key, version, 1, -1) + bytes(100)
        client.writer.write(struct.pack(">i", len(body)) + body)

        assert await client.is_closed()


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
async def test_an_unknown_version_of_api_versions_is_told_what_there_is(tmp_path, version):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        body = struct.pack(">hhi", 18, version, 77) + b"\xff" * 10
        client.writer.write(struct.pack(">i", len(body)) + body)

        correlation_id, response = decode_response(ApiVersionsResponse, 0, await client.frame())

        assert (correlation_id, response.error_code) == (77, 35)
        told = {
            entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys
        }
        assert told.keys() == SUPPORTED_APIS.keys()
        assert (told[0], told[18]) == ((0, 11), (0, 4))
        assert (await client.request(HELLO, 4)).error_code == 0


# Ends.


@on_both_loops
async def test_who_has_nothing_more_to_say_gets_what_was_ready(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await client.request(produce_request(a_batch()), 9)
        client.send(fetch_request(0), 12)
        client.writer.write_eof()

        assert offsets_of(fetched_partitions(await client.response())[0]) == [0]
        assert await client.is_closed()
        await eventually(lambda: not connections(broker))


@on_both_loops
async def test_who_hangs_up_in_the_middle_of_anything_leaves_nothing_behind(tmp_path):
    async with a_broker(tmp_path) as broker:
        whole, _ = a_produce_of(300_000)
        beginnings = [b"", whole[:3], whole[:5], whole[:50], whole[:-1], hello() + whole[:200_000]]

        for beginning in beginnings:
            async with connect(broker) as client:
                client.writer.write(beginning)
                await client.writer.drain()

        await eventually(lambda: not connections(broker))
        assert broker.server.budget.used_bytes == 0
        assert partition_of(broker).log.end_offset == 0


@on_both_loops
async def test_who_resets_leaves_nothing_behind_either(tmp_path):
    async with a_broker(tmp_path) as broker:
        for data in (
            b"",
            frame_of(fetch_request(0, max_wait_ms=9000), 12),
            a_produce_of(300_000)[0][:-1],
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
async def test_who_goes_away_with_all_its_requests_under_way_is_noticed_in_time(tmp_path, watchful):
    """It is not read from, and so its end is not seen until the broker wants to answer."""
    settings = {"max_in_flight_requests_per_connection": 2, "connections_max_idle_ms": 1000}
    async with a_broker(tmp_path, **settings) as broker:
        async with connect(broker) as client:
            for _ in range(3):
                client.send(fetch_request(0, max_wait_ms=2**31 - 1), 12)
            await eventually(lambda: len(partition_of(broker).waiters) == 2)

        await eventually(lambda: not connections(broker) and not partition_of(broker).waiters)


@on_both_loops
async def test_a_broker_that_stops_does_not_wait_for_ever_for_who_does_not_read(tmp_path):
    settings = {
        "shutdown_timeout_ms": 200,
        "socket_send_queue_bytes": 1000,
        "socket_send_buffer_bytes": 10_000,
    }
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        async with a_broker(tmp_path, **settings) as broker:
            half, deaf = [await stack.enter_async_context(connect(broker)) for _ in range(2)]
            await deaf.request(produce_request(a_batch(value=bytes(900_000))), 9)
            deaf.writer.transport.pause_reading()
            for _ in range(20):
                deaf.send(fetch_request(0), 12)
            half.writer.write(a_produce_of(300_000)[0][:200_000])
            await eventually(lambda: broker.server.budget.used_bytes > 0)
            started = loop.time()

        assert loop.time() - started < 5
        assert await half.is_closed()


@on_both_loops
async def test_a_request_that_has_no_answer_ends_its_connection_alone(tmp_path, caplog):
    """A bug, wherever it is: it is logged, and those behind it are not answered in its place."""

    def broken(_broker, _context, _request):
        future = asyncio.get_running_loop().create_future()
        future.set_exception(RuntimeError("a bug"))
        return future

    async with a_broker(tmp_path) as broker, connect(broker) as client:
        broker.dispatcher._handlers[1] = broken

        client.send(fetch_request(0), 12)
        client.send(HELLO, 0)

        assert await client.is_closed()
        assert "a bug" in caplog.text
        assert await is_serving(broker)


# How much is taken in at once.


LARGE = 250_000
TIGHT = {"socket_request_max_bytes": 300_000, "queued_max_request_bytes": 300_000}


@on_both_loops
async def test_large_requests_of_several_clients_succeed_one_after_the_other(tmp_path):
    async with a_broker(tmp_path, **TIGHT) as broker, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(broker)) for _ in range(6)]
        frames = [a_produce_of(LARGE, number)[0] for number in range(6)]
        budget = broker.server.budget
        for client, frame in zip(clients, frames, strict=True):
            client.writer.write(frame[:200_000])
        await eventually(lambda: len(budget._waiting) == 5)
        assert budget.used_bytes == LARGE

        # Small requests are served meanwhile, also those that come in pieces.
        assert await is_serving(broker)
        async with connect(broker) as small:
            for part in (hello()[:3], hello()[3:7], hello()[7:]):
                small.writer.write(part)
                await asyncio.sleep(0.01)
            assert (await small.frame())[:4] == struct.pack(">i", 1)

        for client, frame in zip(clients, frames, strict=True):
            client.writer.write(frame[200_000:])
        answers = [(await client.frame())[:4] for client in clients]

        assert answers == [struct.pack(">i", number) for number in range(6)]
        assert partition_of(broker).log.end_offset == 6
        assert (budget.used_bytes, len(budget._waiting)) == (0, 0)


@on_both_loops
async def test_who_waits_for_room_and_goes_away_gives_up_his_place(tmp_path):
    async with (
        a_broker(tmp_path, **TIGHT) as broker,
        connect(broker) as first,
        connect(broker) as third,
    ):
        budget = broker.server.budget
        frame, _ = a_produce_of(LARGE)
        first.writer.write(frame[:200_000])
        await eventually(lambda: budget.used_bytes == LARGE)
        async with connect(broker) as second:
            second.writer.write(frame[:200_000])
            await eventually(lambda: len(budget._waiting) == 1)
            third.writer.write(frame)
            await eventually(lambda: len(budget._waiting) == 2)

        first.writer.transport.abort()

        assert (await third.frame())[:4] == struct.pack(">i", 1)
        await eventually(lambda: len(connections(broker)) == 1)
        assert (budget.used_bytes, len(budget._waiting)) == (0, 0)


@on_both_loops
async def test_who_waits_for_room_costs_what_has_come_of_his_request(tmp_path):
    async with a_broker(tmp_path, **TIGHT) as broker, AsyncExitStack() as stack:
        budget = broker.server.budget
        clients = [await stack.enter_async_context(connect(broker)) for _ in range(4)]
        for client in clients:
            client.writer.write(a_produce_of(LARGE)[0][:1000])
        await eventually(lambda: len(budget._waiting) == 3)

        held = [
            len(connection._framer._frame)
            for connection in connections(broker)
            if connection._awaits_budget
        ]

        assert held == [996] * 3


@on_both_loops
async def test_a_request_that_was_let_in_is_read_to_its_end_whatever_else_waits(tmp_path):
    """Else it would keep its room from others for as long as its client does not read."""
    settings = TIGHT | {"socket_send_queue_bytes": 1000, "socket_send_buffer_bytes": 4096}
    async with (
        a_broker(tmp_path, **settings) as broker,
        connect(broker) as first,
        connect(broker) as second,
        connect(broker) as other,
    ):
        budget = broker.server.budget
        frame, _ = a_produce_of(LARGE)
        first.writer.write(frame[:200_000])
        await eventually(lambda: budget.used_bytes == LARGE)
        # The second has answers to come, and waits for room. They come, and it does not read them.
        second.writer.transport.pause_reading()
        for _ in range(60):
            second.send(fetch_request(0, max_wait_ms=9000), 12)
        second.writer.write(frame[:200_000])
        await eventually(lambda: len(budget._waiting) == 1)
        await other.request(produce_request(a_batch(value=bytes(100_000))), 9)
        await eventually(lambda: any(c._send_queue._is_blocked for c in connections(broker)))

        first.writer.write(frame[200_000:])
        await first.frame()
        second.writer.write(frame[200_000:])

        await eventually(lambda: partition_of(broker).log.end_offset == 3)
        assert (budget.used_bytes, len(budget._waiting)) == (0, 0)


# A client that does not read.


@on_both_loops
async def test_a_client_that_does_not_read_is_not_read_from_and_loses_nothing(tmp_path):
    settings = {"socket_send_queue_bytes": 50_000, "socket_send_buffer_bytes": 20_000}
    async with a_broker(tmp_path, **settings) as broker, connect(broker) as client:
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
async def test_no_more_requests_are_under_way_than_may_be(tmp_path):
    settings = {"max_in_flight_requests_per_connection": 3}
    async with a_broker(tmp_path, **settings) as broker, connect(broker) as client:
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


# How many.


@on_both_loops
async def test_there_are_no_more_connections_than_may_be(tmp_path):
    async with (
        a_broker(tmp_path, max_connections=2) as broker,
        connect(broker) as first,
        connect(broker) as second,
    ):
        for client in (first, second):
            await client.request(HELLO, 0)
        async with connect(broker) as third:
            assert await third.is_closed()

        await second.close()
        await eventually(lambda: len(connections(broker)) == 1)

        assert await is_serving(broker)
        assert (await first.request(HELLO, 0)).error_code == 0
        assert broker.metrics.connections["refused"] == 1


async def test_descriptors_are_left_for_files_whatever_the_limit_of_connections_is(tmp_path):
    class ScarceDisk(Disk):
        def descriptor_limit(self):
            return 200

    config = BrokerConfig(log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0")
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(config, disk=ScarceDisk()))
        clients = [await stack.enter_async_context(connect(broker)) for _ in range(40)]

        ends = [client.is_closed() for client in clients[36:]]

        assert await asyncio.gather(*ends) == [True] * 4
        assert (await clients[35].request(HELLO, 0)).error_code == 0
        assert len(connections(broker)) == 36


async def test_one_address_may_not_have_them_all(tmp_path):
    async with (
        a_broker(tmp_path, max_connections_per_ip=1) as broker,
        connect(broker) as first,
    ):
        await first.request(HELLO, 0)
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
            writer.write(hello())
            assert await reader.readexactly(8)
        finally:
            await third.close()


# Those who stall.


@on_both_loops
async def test_an_idle_connection_is_closed_and_one_that_is_busy_is_not(tmp_path, watchful):
    async with (
        a_broker(tmp_path, connections_max_idle_ms=1000) as broker,
        connect(broker) as idle,
        connect(broker) as busy,
    ):
        loop = asyncio.get_running_loop()
        started = loop.time()
        ended = asyncio.create_task(idle.is_closed())

        while loop.time() < started + 2:
            await busy.request(HELLO, 0)
            await asyncio.sleep(0.01)

        assert await ended
        assert (await busy.request(HELLO, 0)).error_code == 0
        assert broker.metrics.connections["idle"] == 1


@on_both_loops
async def test_a_connection_is_not_idle_while_it_waits_nor_when_it_was_just_answered(
    tmp_path, watchful
):
    async with (
        a_broker(tmp_path, connections_max_idle_ms=1200) as broker,
        connect(broker) as client,
    ):
        client.send(fetch_request(0, max_wait_ms=1190), 12)
        await client.response()
        await asyncio.sleep(0.2)

        assert (await client.request(HELLO, 0)).error_code == 0


@pytest.mark.parametrize("beginning", [1, 3, 5, 13, 2000, 290_000])
@on_both_loops
async def test_a_request_that_does_not_come_to_its_end_is_ended(tmp_path, watchful, beginning):
    async with (
        a_broker(tmp_path, connections_progress_timeout_ms=100) as broker,
        connect(broker) as client,
    ):
        frame, _ = a_produce_of(300_000)

        client.writer.write(frame[:beginning])

        assert await client.is_closed()
        assert broker.metrics.connections["stalled"] == 1
        assert broker.server.budget.used_bytes == 0


@on_both_loops
async def test_a_byte_now_and_then_does_not_keep_a_connection(tmp_path, watchful):
    async with (
        a_broker(tmp_path, connections_progress_timeout_ms=200) as broker,
        connect(broker) as client,
    ):
        loop = asyncio.get_running_loop()
        started = loop.time()
        ended = asyncio.create_task(client.is_closed())

        for byte in hello(padding=5000):
            if ended.done():
                break
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.01)

        assert await ended
        assert 0.2 <= loop.time() - started < 5


@on_both_loops
async def test_who_sends_without_pause_is_not_taken_for_one_who_stalls(tmp_path, watchful):
    """Each piece ends in the middle of the size of a frame, and each time of another one."""
    async with (
        a_broker(tmp_path, connections_progress_timeout_ms=1500) as broker,
        connect(broker) as client,
    ):
        frames = [hello(number) for number in range(40)]
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
async def test_a_request_that_we_keep_waiting_does_not_stall(tmp_path, watchful):
    settings = {
        "max_in_flight_requests_per_connection": 1,
        "connections_progress_timeout_ms": 1000,
    }
    async with a_broker(tmp_path, **settings) as broker, connect(broker) as client:
        parked = frame_of(fetch_request(0, max_wait_ms=1500), 12, correlation_id=1)
        client.writer.write(parked[:2])
        await asyncio.sleep(0.02)
        client.writer.write(parked[2:] + hello(2) + hello(3)[:2])

        assert (await client.frame())[:4] == struct.pack(">i", 1)
        assert (await client.frame())[:4] == struct.pack(">i", 2)
        client.writer.write(hello(3)[2:])
        assert (await client.frame())[:4] == struct.pack(">i", 3)


@on_both_loops
async def test_who_waits_for_room_does_not_stall(tmp_path, watchful):
    settings = TIGHT | {"connections_progress_timeout_ms": 1000}
    async with (
        a_broker(tmp_path, **settings) as broker,
        connect(broker) as slow,
        connect(broker) as patient,
    ):
        frame, _ = a_produce_of(LARGE)
        slow.writer.write(frame[:200_000])
        await eventually(lambda: broker.server.budget.used_bytes > 0)
        patient.writer.write(frame)

        assert await slow.is_closed()
        assert (await patient.frame())[:4] == struct.pack(">i", 1)


def fetches(broker):
    found = broker.metrics.latency.get("Fetch")
    return found.count if found else 0


@on_both_loops
async def test_answers_that_nobody_reads_end_the_connection(tmp_path, watchful):
    settings = {
        "socket_send_queue_bytes": 1000,
        "socket_send_buffer_bytes": 10_000,
        "connections_progress_timeout_ms": 1000,
    }
    async with a_broker(tmp_path, **settings) as broker, connect(broker) as client:
        await client.request(produce_request(a_batch(value=bytes(900_000))), 9)
        client.writer.transport.pause_reading()

        for _ in range(20):
            client.send(fetch_request(0), 12)

        await eventually(lambda: not connections(broker))
        assert broker.metrics.connections["stalled"] == 1


@on_both_loops
async def test_who_reads_slowly_is_served_to_the_end(tmp_path, watchful, monkeypatch):
    # By this Linux resets some who read slowly, too: it is not the rule of the broker.
    monkeypatch.setattr("ottla.broker.net.connection._TCP_USER_TIMEOUT", None)
    settings = {
        "socket_send_queue_bytes": 1000,
        "socket_send_buffer_bytes": 10_000,
        "connections_progress_timeout_ms": 1000,
    }
    async with a_broker(tmp_path, **settings) as broker:
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
async def test_files_can_be_deleted_when_a_client_that_held_them_has_gone(tmp_path):
    settings = {"socket_send_queue_bytes": 1000, "socket_send_buffer_bytes": 10_000}
    async with a_broker(tmp_path, **settings) as broker:
        log = partition_of(broker).log
        async with connect(broker) as client:
            for _ in range(10):
                await client.request(produce_request(a_batch(value=bytes(900_000))), 9)
            client.writer.transport.pause_reading()
            client.send(fetch_request(0, partition_max_bytes=2**31 - 1), 12)
            await eventually(lambda: fetches(broker) == 1)
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
