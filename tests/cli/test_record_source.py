"""Reading input ahead of sending."""

import asyncio
import threading
import time
from itertools import count

from ottla.cli.record_format import Row
from ottla.cli.record_source import read


def test_input_is_read_ahead_up_to_a_limit_and_stops_with_its_consumer(monkeypatch):
    trouble = []
    monkeypatch.setattr(threading, "excepthook", trouble.append)
    numbers = count()

    async def story():
        async for rows in read([Row(b"%d" % number)] for number in numbers):
            assert rows == [Row(b"0")]
            await asyncio.sleep(0.05)
            return

    asyncio.run(story())

    assert next(numbers) < 10
    deadline = time.monotonic() + 5
    while "ottla-read" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert trouble == []
