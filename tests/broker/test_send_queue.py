"""SendQueue: large responses are sent in pieces, in order."""

import asyncio

import pytest

from ottla.broker.net.send_queue import PIECE_BYTES, SendQueue


class Transport:
    """Records what is written."""

    def __init__(self):
        self.written = []
        self.is_closed = False

    def is_closing(self):
        return self.is_closed

    def write(self, data):
        self.written.append(bytes(data))

    def writelines(self, parts):
        self.written.append(b"".join(parts))


@pytest.fixture
def transport():
    return Transport()


async def run_loop(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_small_responses_are_written_at_once(transport):
    queue = SendQueue(transport, lambda: None)

    queue.send([b"a", b"b"])
    queue.send([b"c"])

    assert transport.written == [b"ab", b"c"]
    assert not queue


async def test_responses_that_follow_each_other_are_written_together(transport):
    queue = SendQueue(transport, lambda: None)

    queue.hold()
    assert [queue.send([b"a", b"b"]), queue.send([b"c"])] == [2, 1]
    assert transport.written == []
    assert queue  # so that nobody closes the transport before
    queue.release()
    queue.send([b"d"])

    assert transport.written == [b"abc", b"d"]
    assert not queue


async def test_what_is_held_is_limited_and_keeps_its_order(transport):
    queue = SendQueue(transport, lambda: None)
    large = bytes(range(256)) * (PIECE_BYTES // 100)
    sent = [*(b"%d," % number for number in range(100)), bytes(5000), b"x", large, b"y"]

    queue.hold()
    for part in sent[:100]:
        queue.send([part])
    assert len(transport.written) == 3
    queue.send([sent[100]])
    assert len(transport.written) == 4
    for part in sent[101:]:
        queue.send([part])
    queue.release()
    await run_loop()

    assert b"".join(transport.written) == b"".join(sent)


async def test_what_is_held_is_dropped_with_the_connection(transport):
    queue = SendQueue(transport, lambda: None)

    queue.hold()
    queue.send([b"a"])
    transport.is_closed = True
    queue.release()

    assert transport.written == []
    assert not queue


async def test_a_large_response_is_written_in_pieces(transport):
    empty_calls = []
    queue = SendQueue(transport, lambda: empty_calls.append(True))
    large = bytes(range(256)) * (PIECE_BYTES // 100)

    queue.send([b"head", large])
    queue.send([b"tail"])

    assert queue.size_bytes == len(large) + 8
    await asyncio.sleep(0)
    assert len(transport.written) == 1
    await run_loop()
    assert b"".join(transport.written) == b"head" + large + b"tail"
    assert max(map(len, transport.written)) == PIECE_BYTES
    assert empty_calls == [True]
    assert queue.size_bytes == 0


async def test_sending_pauses_while_the_transport_is_full(transport):
    queue = SendQueue(transport, lambda: None)
    queue.send([bytes(3 * PIECE_BYTES)])
    queue.block()
    await run_loop()
    held = len(transport.written)

    queue.unblock()
    await run_loop()

    assert held <= 1
    assert sum(map(len, transport.written)) == 3 * PIECE_BYTES


async def test_close_drops_what_is_queued(transport):
    queue = SendQueue(transport, lambda: None)
    queue.send([bytes(3 * PIECE_BYTES)])

    queue.close()
    await run_loop()

    assert transport.written == []
    assert queue.size_bytes == 0
