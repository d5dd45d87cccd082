"""The connection to a broker: responses in order, and clear errors."""

import asyncio
import socket
import threading
import time
from contextlib import asynccontextmanager

import pytest

from harness.scripted_broker import ScriptedCluster
from harness.waiting import eventually
from ottla.client.config import ClientConfig, TimeoutConfig
from ottla.client.connection import BrokerConnection
from ottla.client.errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    KafkaError,
    UnsupportedError,
)
from ottla.client.producer.producer import Producer
from ottla.protocol.api.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import HEARTBEAT, METADATA, PRODUCE

QUICK = ClientConfig(timeouts=TimeoutConfig(connect=1, request=1))
TOPICS = [MetadataRequestTopic(name="orders")]


@asynccontextmanager
async def connected(stage, config=QUICK):
    connection = await BrokerConnection.open("127.0.0.1", stage.nodes[0].port, config)
    try:
        yield connection
    finally:
        connection.close()


@asynccontextmanager
async def a_server(talk):
    """A listener that behaves as the test says."""
    tasks = set()

    async def accept(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader):
    return decode_request(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))


def greeting(header, version=3, **fields):
    keys = [ApiVersion(api_key=METADATA.key, max_version=12)]
    answer = ApiVersionsResponse(api_keys=keys, **fields)
    return b"".join(encode_response(answer, version, header.correlation_id))


async def test_the_newest_common_version_is_chosen():
    async with (
        ScriptedCluster(versions={"Produce": (0, 9)}) as stage,
        connected(stage) as connection,
    ):
        assert connection.version_for(PRODUCE) == 9
        assert connection.version_for(PRODUCE, max_version=7) == 7
        assert connection.version_for(METADATA) == METADATA.versions.last
        with pytest.raises(UnsupportedError, match="does not support Heartbeat"):
            connection.version_for(HEARTBEAT)
        with pytest.raises(UnsupportedError, match="Produce"):
            connection.version_for(PRODUCE, max_version=2)


async def test_pipelined_requests_get_their_responses_in_order():
    async with (
        ScriptedCluster(topics={"a": 1, "b": 2, "c": 3}) as stage,
        connected(stage) as connection,
    ):
        version = connection.version_for(METADATA)
        futures = [
            connection.send_nowait(
                version, MetadataRequest(topics=[MetadataRequestTopic(name=name)]), MetadataResponse
            )
            for name in "abcab"
        ]
        assert connection.in_flight == 5

        answers = await asyncio.gather(*futures)

        assert [len(answer.topics[0].partitions) for answer in answers] == [1, 2, 3, 1, 2]
        assert connection.in_flight == 0


@pytest.mark.parametrize("step", [1, 3, 4, 5, 7, 1000])
async def test_responses_may_arrive_in_any_pieces(step):
    async def talk(reader, writer):
        header, _ = await read_request(reader)
        writer.write(greeting(header))
        frames = b""
        for size in (1, 3000, 0):
            header, _ = await read_request(reader)
            answer = MetadataResponse(cluster_id="x" * size)
            frames += b"".join(encode_response(answer, 12, header.correlation_id))
        for start in range(0, len(frames), step):
            writer.write(frames[start : start + step])
            await asyncio.sleep(0)
        await reader.read()

    async with a_server(talk) as port:
        connection = await BrokerConnection.open("127.0.0.1", port, ClientConfig())
        futures = [
            connection.send_nowait(12, MetadataRequest(topics=[]), MetadataResponse)
            for _ in range(3)
        ]
        answers = await asyncio.gather(*futures)
        connection.close()

    assert [answer.cluster_id for answer in answers] == ["x", "x" * 3000, ""]


async def test_small_and_large_responses_are_complete():
    async def talk(reader, writer):
        header, _ = await read_request(reader)
        writer.write(greeting(header))
        for size in [10] * 50 + [3_000_000] + [10] * 50:
            header, _ = await read_request(reader)
            answer = MetadataResponse(
                topics=[MetadataResponseTopic(name="y" * 30_000)] * (size // 30_000)
            )
            writer.writelines(encode_response(answer, 12, header.correlation_id))
        await reader.read()

    async with a_server(talk) as port:
        connection = await BrokerConnection.open("127.0.0.1", port, ClientConfig())
        answers = await asyncio.gather(
            *(connection.send(MetadataRequest(topics=[]), MetadataResponse) for _ in range(101))
        )
        connection.close()

    assert [len(answer.topics) for answer in answers] == [0] * 50 + [100] + [0] * 50


async def test_a_cancelled_request_does_not_affect_others():
    async with ScriptedCluster(topics={"a": 1, "b": 2}) as stage, connected(stage) as connection:
        gate = asyncio.Event()

        async def wait(call):
            await gate.wait()
            return call.serve()

        stage.script(MetadataRequest, wait)
        first = asyncio.ensure_future(
            connection.send(MetadataRequest(topics=TOPICS), MetadataResponse)
        )
        await asyncio.sleep(0.02)
        second = asyncio.ensure_future(
            connection.send(
                MetadataRequest(topics=[MetadataRequestTopic(name="b")]), MetadataResponse
            )
        )
        await asyncio.sleep(0.02)
        first.cancel()
        gate.set()

        assert len((await second).topics[0].partitions) == 2


# Opening.


async def test_a_refused_connection_raises_connection_lost():
    async with a_server(None) as port:
        pass

    with pytest.raises(ConnectionLostError, match=f"Cannot connect to 127.0.0.1:{port}"):
        await BrokerConnection.open("127.0.0.1", port, QUICK)


async def test_an_unknown_host_raises_connection_lost():
    with pytest.raises(ConnectionLostError, match=r"Cannot connect to nowhere.invalid:9092"):
        await BrokerConnection.open("nowhere.invalid", 9092, ClientConfig())


async def test_an_invalid_host_name_raises_connection_lost():
    with pytest.raises(ConnectionLostError, match="Cannot connect to"):
        await BrokerConnection.open("a" * 70 + ".example", 9092, QUICK)


async def test_a_peer_that_never_responds_to_api_versions():
    async def talk(reader, _writer):
        await reader.read()

    async with a_server(talk) as port:
        with pytest.raises(ConnectionLostError, match=r"did not respond within 1 s"):
            await BrokerConnection.open("127.0.0.1", port, QUICK)


async def test_a_peer_that_closes_the_connection_at_once():
    async def talk(_reader, _writer):
        pass

    async with a_server(talk) as port:
        with pytest.raises(ConnectionLostError):
            await BrokerConnection.open("127.0.0.1", port, QUICK)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",  # a TLS alert
        b"\x00\x00\x00\x02\x00\x00",
        b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00",  # truncated
        b"\x00\x00\x00\x04\x00\x00\x00\x01",  # no error code
        b"\x00\x00\x00\x06\x00\x00\x00\x09\x00\x00",  # another correlation id
        b"\xff\xff\xff\xff",
    ],
)
async def test_a_peer_with_another_protocol(answer):
    async def talk(reader, writer):
        await reader.read(10)
        writer.write(answer)
        await reader.read()

    async with a_server(talk) as port:
        with pytest.raises(ConnectionLostError):
            await BrokerConnection.open("127.0.0.1", port, QUICK)


async def test_a_peer_with_another_protocol_cannot_make_us_allocate_memory():
    async def talk(reader, writer):
        await reader.read(10)
        writer.write(b"\x15\x03\x01\x00\x02\x02\x16")
        await reader.read()

    async with a_server(talk) as port:
        with pytest.raises(ConnectionLostError, match="speaks TLS, not the Kafka protocol"):
            await BrokerConnection.open("127.0.0.1", port, QUICK)


async def test_a_peer_that_speaks_http_is_named():
    async def talk(reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with a_server(talk) as port:
        with pytest.raises(ConnectionLostError, match="speaks HTTP, not the Kafka protocol"):
            await BrokerConnection.open("127.0.0.1", port, QUICK)


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("host", ["name.invalid", "127.0.0.1"])
async def test_a_failed_connect_is_logged_at_once(host, caplog, monkeypatch):
    def look_up(name, port, *_args, **_options):
        if name == "name.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    config = ClientConfig(timeouts=TimeoutConfig(operation=30))
    reason = "Connection refused" if host == "127.0.0.1" else "Name or service not known"

    producer = Producer(f"{host}:1", client=config)
    starting = asyncio.create_task(producer.start())
    await eventually(lambda: warnings_in(caplog))
    starting.cancel()
    await asyncio.wait([starting])

    # Once, not with each attempt, and long before the operation fails.
    assert warnings_in(caplog) == [f"Cannot connect to {host}:1: {reason}; retrying"]


async def test_a_slow_name_server_is_logged(caplog, monkeypatch):
    answer = threading.Event()

    def look_up(*_args, **_options):
        answer.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    opening = asyncio.create_task(BrokerConnection.open("slow.invalid", 9092, ClientConfig()))
    try:
        await eventually(lambda: warnings_in(caplog))
    finally:
        answer.set()
    with pytest.raises(ConnectionLostError, match="Temporary failure in name resolution"):
        await opening

    assert warnings_in(caplog) == ["No answer from slow.invalid:9092 yet; still connecting"]


async def test_a_program_that_blocks_the_loop_is_not_taken_for_a_slow_peer(caplog):
    async with ScriptedCluster() as stage:
        opening = asyncio.create_task(
            BrokerConnection.open("127.0.0.1", stage.nodes[0].port, ClientConfig())
        )
        await asyncio.sleep(0)
        time.sleep(1)  # longer than a slow connect
        (await opening).close()

    assert warnings_in(caplog) == []


async def test_a_peer_that_accepts_and_says_nothing_is_logged(caplog):
    is_logged = asyncio.Event()

    async def talk(reader, writer):
        await is_logged.wait()

    async with a_server(talk) as port:
        opening = asyncio.create_task(BrokerConnection.open("127.0.0.1", port, ClientConfig()))
        await eventually(lambda: warnings_in(caplog))
        is_logged.set()
        with pytest.raises(ConnectionLostError, match="closed the connection"):
            await opening

    assert warnings_in(caplog) == [f"No answer from 127.0.0.1:{port} yet; still connecting"]


async def test_a_broker_without_api_versions_v3():
    async def talk(reader, writer):
        header, _ = await read_request(reader)
        writer.write(greeting(header, version=0, error_code=ErrorCode.UNSUPPORTED_VERSION))
        await reader.read()

    async with a_server(talk) as port:
        connection = await BrokerConnection.open("127.0.0.1", port, QUICK)
        connection.close()

    assert connection.version_for(METADATA) == 12


async def test_a_broker_that_rejects_api_versions():
    async def talk(reader, writer):
        header, _ = await read_request(reader)
        writer.write(greeting(header, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        await reader.read()

    async with a_server(talk) as port:
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await BrokerConnection.open("127.0.0.1", port, QUICK)


async def test_a_cancelled_open_leaves_no_connection():
    greeted, closed = asyncio.Event(), asyncio.Event()

    async def talk(reader, _writer):
        await reader.readexactly(10)
        greeted.set()
        await reader.read()
        closed.set()

    async with a_server(talk) as port:
        opening = asyncio.ensure_future(BrokerConnection.open("127.0.0.1", port, ClientConfig()))
        await asyncio.wait_for(greeted.wait(), 20)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

        await asyncio.wait_for(closed.wait(), 20)


# Closing.


async def test_a_response_timeout_closes_the_connection():
    async def never(_call):
        await asyncio.sleep(3600)

    async with ScriptedCluster() as stage, connected(stage) as connection:
        stage.script(MetadataRequest, never)
        first = asyncio.ensure_future(
            connection.send(MetadataRequest(topics=[]), MetadataResponse, timeout=0.1)
        )
        second = asyncio.ensure_future(
            connection.send(MetadataRequest(topics=[]), MetadataResponse, timeout=5)
        )

        with pytest.raises(DeadlineError, match=r"did not respond within 0.1 s"):
            await first
        with pytest.raises(ConnectionLostError):
            await second
        assert not connection.is_open
        with pytest.raises(ConnectionLostError):
            await connection.send(MetadataRequest(topics=[]), MetadataResponse)


async def test_the_response_to_a_cancelled_request_stays_due():
    async def never(_call):
        await asyncio.sleep(3600)

    async with ScriptedCluster() as stage, connected(stage) as connection:
        stage.script(MetadataRequest, never)
        for _ in range(3):
            pending = connection.send(MetadataRequest(topics=[]), MetadataResponse, timeout=1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pending, 0.01)
        assert connection.in_flight == 3

        async with asyncio.timeout(20):
            while connection.is_open:
                await asyncio.sleep(0.05)
        assert connection.in_flight == 0


async def test_a_lost_connection_fails_all_requests_in_flight():
    async with ScriptedCluster() as stage, connected(stage) as connection:
        stage.script(MetadataRequest, lambda _call: None, lambda call: call.disconnect())
        pending = [connection.send(MetadataRequest(topics=[]), MetadataResponse) for _ in range(5)]

        results = await asyncio.gather(*pending, return_exceptions=True)

        assert {type(result) for result in results} == {ConnectionLostError}
        assert not connection.is_open


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x00\x00\x05\x00\x00\x00\x02\x00",  # truncated
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x05\x00\x00\x00\x63\x00",  # another correlation id
    ],
)
async def test_a_malformed_response_closes_the_connection(answer):
    async with ScriptedCluster() as stage, connected(stage) as connection:
        stage.script(MetadataRequest, lambda _call: answer)

        with pytest.raises(ConnectionLostError):
            await connection.send(MetadataRequest(topics=[]), MetadataResponse)

        assert not connection.is_open


async def test_an_unexpected_response_closes_the_connection():
    async with ScriptedCluster() as stage, connected(stage) as connection:
        stage.script(MetadataRequest, lambda _call: b"\x00\x00\x00\x04\x00\x00\x00\x63")
        connection._write(12, MetadataRequest(topics=[]))

        await eventually(lambda: not connection.is_open)


async def test_close_fails_requests_in_flight():
    async def never(_call):
        await asyncio.sleep(3600)

    async with ScriptedCluster() as stage, connected(stage) as connection:
        stage.script(MetadataRequest, never)
        pending = asyncio.ensure_future(
            connection.send(MetadataRequest(topics=[]), MetadataResponse)
        )
        await asyncio.sleep(0.02)
        connection.close()
        connection.close()

        with pytest.raises(ClosedError, match="was closed"):
            await pending
        with pytest.raises(ClosedError, match="was closed"):
            await connection.send(MetadataRequest(topics=[]), MetadataResponse)


async def greet_and_stop_reading(reader, writer):
    header, _ = await read_request(reader)
    writer.write(greeting(header))
    reader._transport.pause_reading()
    await asyncio.sleep(3600)


async def test_a_broker_that_does_not_read_times_out():
    async with a_server(greet_and_stop_reading) as port:
        connection = await BrokerConnection.open("127.0.0.1", port, QUICK)
        request = HeartbeatRequest(group_id="g" * 30_000)
        while connection._writable.is_set():
            connection._write(4, request)

        with pytest.raises(DeadlineError, match=r"read nothing for 1 s"):
            await asyncio.wait_for(connection.send(request, HeartbeatResponse, version=4), 5)
        assert not connection.is_open
        with pytest.raises(ConnectionLostError):
            await connection.send_oneway(4, request)


async def test_a_oneway_request_to_a_broker_that_does_not_read_times_out():
    async with a_server(greet_and_stop_reading) as port:
        connection = await BrokerConnection.open("127.0.0.1", port, QUICK)
        request = HeartbeatRequest(group_id="g" * 30_000)

        async def tell():
            while True:
                await connection.send_oneway(4, request)

        with pytest.raises(DeadlineError, match=r"read nothing for 1 s"):
            await asyncio.wait_for(tell(), 5)
        assert not connection.is_open


async def test_repr_has_the_address_and_the_requests_in_flight():
    async with ScriptedCluster() as stage, connected(stage) as connection:
        connection.send_nowait(4, ApiVersionsRequest(), ApiVersionsResponse)

        assert repr(connection) == f"<BrokerConnection to {stage.address}, 1 in flight>"
