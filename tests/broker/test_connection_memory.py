"""A closed connection is freed at once, without a garbage collection."""

import asyncio
import gc
import weakref
from contextlib import contextmanager, suppress

import pytest
import uvloop

from harness import group_requests
from harness.brokers import broker_and_client
from harness.logs import a_batch
from harness.requests import create_topic
from harness.waiting import eventually
from harness.wire import connect, fetch_request, produce_request


@contextmanager
def without_garbage_collection():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def disconnects_with_requests_in_flight(address):
    """Complete some requests, and disconnect during a long poll."""
    async with connect(address) as client:
        await client.request(produce_request(a_batch()))
        await client.request(fetch_request(0))
        await group_requests.join(client, "g")
        waiting = asyncio.ensure_future(
            client.request(fetch_request(1, max_wait_ms=60_000, min_bytes=1))
        )
        await asyncio.sleep(0.1)
    waiting.cancel()
    with suppress(asyncio.CancelledError, ConnectionError, EOFError):
        await waiting


async def sends_a_malformed_request(address):
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def disconnects_in_a_request(address):
    host, _, port = address.rpartition(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(bytes.fromhex("000f0000 00000009") + bytes(100_000))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "client",
    [disconnects_with_requests_in_flight, sends_a_malformed_request, disconnects_in_a_request],
)
def test_a_closed_connection_is_freed_at_once(tmp_path, client, run):
    async def connect_and_disconnect():
        async with broker_and_client(tmp_path) as (broker, first):
            await create_topic(first, "t")
            seen = weakref.WeakSet()
            admit = broker.server.admit

            def watched(connection):
                seen.add(connection)
                return admit(connection)

            broker.server.admit = watched
            with without_garbage_collection():
                for _ in range(3):
                    await client(broker.address)
                await eventually(lambda: not seen)

    run(connect_and_disconnect())
