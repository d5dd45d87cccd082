"""A connection that has ended leaves nothing behind, not even for the garbage collector."""

import asyncio
import gc
import weakref
from contextlib import contextmanager, suppress

import pytest
import uvloop

from groups import by_hand
from harness.logs import a_batch
from harness.talk import connected, fetch, produce, until
from harness.wire import create, serving


@contextmanager
def nobody_collects():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def asks_and_waits(address):
    """Have some requests answered, and be gone while others are waited for."""
    async with connected(address) as client:
        await client.ask(produce(a_batch()))
        await client.ask(fetch(0))
        await by_hand.join(client, "g")
        waiting = asyncio.ensure_future(client.ask(fetch(1, max_wait_ms=60_000, min_bytes=1)))
        await asyncio.sleep(0.1)
    waiting.cancel()
    with suppress(asyncio.CancelledError, ConnectionError, EOFError):
        await waiting


async def says_nonsense(address):
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def breaks_off(address):
    host, _, port = address.rpartition(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(bytes.fromhex("000f0000 00000009") + bytes(100_000))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("client", [asks_and_waits, says_nonsense, breaks_off])
def test_who_has_gone_is_forgotten_at_once(tmp_path, client, run):
    async def come_and_go():
        async with serving(tmp_path) as (broker, first):
            await create(first, "t")
            seen = weakref.WeakSet()
            admit = broker.server.admit

            def watched(connection):
                seen.add(connection)
                return admit(connection)

            broker.server.admit = watched
            with nobody_collects():
                for _ in range(3):
                    await client(broker.address)
                await until(lambda: not seen)

    run(come_and_go())
