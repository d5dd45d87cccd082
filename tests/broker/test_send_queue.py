"""Large responses leave in pieces, in order and whole, and others have their turn in between."""

import asyncio

import pytest

from ottla.broker.net.send_queue import PIECE_BYTES, SendQueue


class Transport:
    """The other side: takes what it is given."""

    def __init__(self):
        self.given = []

    def write(self, data):
        self.given.append(bytes(data))

    def writelines(self, parts):
        self.given.append(b"".join(parts))


@pytest.fixture
def transport():
    return Transport()


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_small_is_handed_over_at_once(transport):
    outgoing = SendQueue(transport, lambda: None)

    outgoing.send([b"a", b"b"])
    outgoing.send([b"c"])

    assert transport.given == [b"ab", b"c"]
    assert not outgoing


async def test_what_is_large_leaves_in_pieces_with_turns_in_between(transport):
    emptied = []
    outgoing = SendQueue(transport, lambda: emptied.append(True))
    large = bytes(range(256)) * (PIECE_BYTES // 100)

    outgoing.send([b"head", large])
    outgoing.send([b"tail"])

    assert outgoing.size_bytes == len(large) + 8
    await asyncio.sleep(0)
    assert len(transport.given) == 1
    await turns()
    assert b"".join(transport.given) == b"head" + large + b"tail"
    assert max(map(len, transport.given)) == PIECE_BYTES
    assert emptied == [True]
    assert outgoing.size_bytes == 0


async def test_it_waits_while_the_transport_has_enough(transport):
    outgoing = SendQueue(transport, lambda: None)
    outgoing.send([bytes(3 * PIECE_BYTES)])
    outgoing.block()
    await turns()
    held = len(transport.given)

    outgoing.unblock()
    await turns()

    assert held <= 1
    assert sum(map(len, transport.given)) == 3 * PIECE_BYTES


async def test_what_nobody_will_read_is_forgotten(transport):
    outgoing = SendQueue(transport, lambda: None)
    outgoing.send([bytes(3 * PIECE_BYTES)])

    outgoing.close()
    await turns()

    assert transport.given == []
    assert outgoing.size_bytes == 0
